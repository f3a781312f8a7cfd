"""Fears about the ruler of credit: values that are not the policy's, a score that chance or a tie can lift."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted_agent import Move, ScriptedAgentModel
from coseek.data.grade_cache import GradeCache
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.measure.credit import auc, score_signal, turn_values
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines import credit as pipeline
from coseek.pipelines.credit import (
    CountingProbe,
    CreditSignal,
    GoldLikelihood,
    Ruler,
    credit_of,
    measured_turns,
    values_of,
)
from coseek.retrieval.retriever import FixedRetriever
from coseek.training.rl.algorithm import GoldContext

pytestmark = pytest.mark.medium

LIMITS = Limits(max_turns=4, passages_per_search=1, max_turn_tokens=200, max_observation_tokens=200, max_tokens=4000)
SHELF = FixedRetriever(
    Corpus([Passage("good", "", "it is blue"), Passage("bad", "", "nothing")]), {"well": ["good"], "badly": ["bad"]}
)


class Coin:
    """Searches twice, well or badly by a coin, and answers rightly with .9 if a search found the passage, else .1."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        if len(so_far.searches) < 2:
            return Move("", (rng.choice(("well", "badly")),))
        is_found = any(hit.passage.id == "good" for search in so_far.searches for hit in search.hits)
        return Move("", answer="blue" if (rng.random() < 0.9) == is_found else "red")


@pytest.fixture(scope="module")
def coin() -> Agent:
    protocol = load_protocol("search-r1")
    return Agent(protocol, ScriptedAgentModel(Coin(), protocol, ByteTokenizer()))


@pytest.fixture(scope="module")
def runs(coin: Agent) -> list[Trajectory]:
    questions = [Question(f"q{number}", "which colour?", ("blue",), gold_ids=("good",)) for number in range(4)]
    repeated = [question for question in questions for _ in range(4)]
    return rollout(coin, SHELF, repeated, range(len(repeated)), LIMITS)


def true_value(run: Trajectory, turn: int) -> float:
    """E[right] after a turn of a coin's run less that before it."""

    def reached(turns: int) -> float:
        is_found = any(hit.passage.id == "good" for search in run.searches[:turns] for hit in search.hits)
        chance = 1.0 if is_found else 1 - 0.5 ** (2 - turns)
        return 0.9 * chance + 0.1 * (1 - chance)

    return reached(turn) - reached(turn - 1)


def test_the_values_of_turns_are_those_of_a_known_policy(coin: Agent, runs: list[Trajectory], tmp_path: Path) -> None:
    ruler = Ruler(coin, "coin", SHELF, LIMITS, 100, tmp_path)
    values, _, _ = values_of(runs, ruler.measure(runs))
    assert values.keys() == {(run.question.id, run.seed, turn) for run in runs for turn in (1, 2)}
    truth = {(run.question.id, run.seed, turn): true_value(run, turn) for run in runs for turn in (1, 2)}
    for kind in {round(value, 3) for value in truth.values()}:  # every kind of turn, over the runs that made it
        alike = [values[key] - truth[key] for key in truth if round(truth[key], 3) == kind]
        assert abs(float(np.mean(alike))) < 4 * (0.5 / 100 / len(alike)) ** 0.5, kind
    best = score_signal(values, truth, decisive=0.15)
    assert best.auc is not None and best.auc.mean > 0.95 and best.correlation is not None
    assert best.correlation.mean > 0.9


def test_a_measurement_goes_on_and_takes_more_continuations(
    coin: Agent, runs: list[Trajectory], tmp_path: Path
) -> None:
    few = Ruler(coin, "coin", SHELF, LIMITS, 4, tmp_path).measure(runs[:4])
    done: list[int] = []
    assert Ruler(coin, "coin", SHELF, LIMITS, 4, tmp_path).measure(runs[:4], lambda at, _: done.append(at)) == few
    assert not done
    more = Ruler(coin, "coin", SHELF, LIMITS, 6, tmp_path).measure(runs[:4])
    fresh = Ruler(coin, "coin", SHELF, LIMITS, 6, tmp_path / "fresh").measure(runs[:4])
    assert sorted(map(str, more)) == sorted(map(str, fresh)) and len(more) == 6 * (1 + 4 * 2)
    assert Ruler(coin, "coin", SHELF, LIMITS, 4, tmp_path).measure(runs[:4]) == few  # the others count no more
    halves = [turn_values(measured_turns(runs[:4]), more, half) for half in (0, 1)]
    whole = turn_values(measured_turns(runs[:4]), more)
    assert whole == pytest.approx({key: (halves[0][key] + halves[1][key]) / 2 for key in whole})


def test_outcomes_of_another_run_or_other_gold_answers_are_not_those_of_this_one(
    coin: Agent, runs: list[Trajectory], tmp_path: Path
) -> None:
    Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path).measure(runs[:1])
    corrected = replace(runs[0], question=replace(runs[0].question, answers=("red",)))
    again = Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path).measure([corrected])
    assert again == Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path / "fresh").measure([corrected])
    other = next(run for run in runs if run.searches[0] != runs[0].searches[0])
    other = replace(other, seed=runs[0].seed, question=runs[0].question)
    here = Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path).measure([other])
    assert here == Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path / "other").measure([other])


def test_a_state_with_one_half_of_its_continuations_does_not_stop_the_scores(
    coin: Agent, runs: list[Trajectory], tmp_path: Path
) -> None:
    outcomes = Ruler(coin, "coin", SHELF, LIMITS, 2, tmp_path).measure(runs[:4])
    failed = [replace(each, outcome=None) if each.turn == 1 and each.number else each for each in outcomes]
    values, even, odd = values_of(runs[:4], failed)
    assert values and even.keys() == odd.keys() == set() and score_signal(even, odd).auc is None


def test_signals_are_scored_at_the_turns_that_searched(coin: Agent, runs: list[Trajectory]) -> None:
    truth = {(run.question.id, run.seed, turn): true_value(run, turn) for run in runs for turn in (1, 2)}
    credited = credit_of(runs, CreditSignal(algorithm="turn-reward", reward={"step_search": {"redundancy": 0.0}}), None)
    scored = score_signal(truth, credited, decisive=0.15)
    assert scored.auc is not None and scored.auc.mean == 1.0  # new gold is what counts for this agent
    outcome = score_signal(truth, credit_of(runs, CreditSignal(algorithm="grpo"), None), decisive=0.15)
    assert outcome.within is not None and outcome.within.mean < 0.9


def test_a_context_is_read_once_also_by_the_command_that_goes_on(
    runs: list[Trajectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "READ_AT_ONCE", 1)
    contexts = [(run, run.segments[:count]) for run in runs[:3] for count in (1, 3)]
    truth = [float(-number) for number in range(6)]
    read: list[GoldContext] = []

    def probe(part: Sequence[GoldContext], most: int = 6) -> list[float]:
        if len(read) == most:
            raise KeyboardInterrupt
        read.extend(part)
        return [truth[contexts.index((run, tuple(context)))] for run, context in part]

    cache = GradeCache.beside(tmp_path, GoldLikelihood, "coin", {})
    stopped = CountingProbe(partial(probe, most=4), cache)
    with pytest.raises(KeyboardInterrupt):
        stopped(contexts)
    resumed = CountingProbe(probe, cache)
    assert resumed(contexts) == resumed(contexts) == truth
    assert read == contexts
    assert resumed.tokens == 2 * sum(len(segment.ids) for _, context in contexts for segment in context)


def test_chance_and_ties_score_a_half() -> None:
    rng = np.random.default_rng(0)
    keys = [(f"q{number // 4}", number % 4, 1) for number in range(4000)]
    values = dict(zip(keys, rng.random(4000).tolist(), strict=True))
    drawn = score_signal(values, dict(zip(keys, rng.random(4000).tolist(), strict=True)), decisive=0.7)
    assert drawn.auc is not None and drawn.within is not None
    assert abs(drawn.auc.mean - 0.5) < 0.03 and abs(drawn.within.mean - 0.5) < 0.03
    tied = score_signal(dict(zip(keys[:4], (1.0, 0.0, 0.0, 0.0), strict=True)), dict.fromkeys(keys[:4], 0.5))
    assert tied.precision == 0.25
    assert auc(np.zeros(4), np.array([True, False, False, True])) == 0.5
    assert auc(np.array([3.0, 1.0, 2.0]), np.array([True, True, False])) == 0.5
    assert auc(np.zeros(2), np.array([True, True])) is None
