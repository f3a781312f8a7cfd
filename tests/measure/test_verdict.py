"""Fears about verdicts: luck called better, harm called a success, a number of searches called good."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from coseek.data.question import Question
from coseek.measure.intervals import paired_difference
from coseek.measure.score import QuestionScores, ScoredRun, Scores, summaries_of
from coseek.measure.table import Outcome, PairedClaim, claims_of, comparison_table, outcomes, overall, verdict
from coseek.retrieval.factory import settings_in


def claim(differences: Sequence[float], where: str = "") -> PairedClaim:
    before = {str(number): 0.0 for number in range(len(differences))}
    after = {str(number): value for number, value in enumerate(differences)}
    return PairedClaim("after", "before", "em", paired_difference(before, after, np.random.default_rng(0)), where)


def scores(after: Mapping[str, Sequence[float]], before: Mapping[str, Sequence[float]]) -> Scores:
    """Two runs by their metrics, question by question."""
    questions = [Question(str(number), "?", ("a",)) for number in range(len(next(iter(after.values()))))]

    def run(name: str, values: Mapping[str, Sequence[float]]) -> ScoredRun:
        rows = {
            question.id: QuestionScores(question, {metric: some[number] for metric, some in values.items()}, 1, 0)
            for number, question in enumerate(questions)
        }
        return ScoredRun(name, rows, {})

    return summaries_of([run("before", before), run("after", after)], questions, (), tuple(after), 0)


@pytest.mark.parametrize(
    ("differences", "outcome"),
    [
        ([1.0] * 30 + [0.0] * 70, Outcome.BETTER),
        ([-1.0] * 30 + [0.0] * 70, Outcome.WORSE),
        ([1.0, -1.0] * 50, Outcome.OPEN),
        ([1.0, 1.0, 1.0], Outcome.OPEN),  # an interval of width 0 that excludes it, from three questions
        ([1.0], Outcome.OPEN),
        ([], Outcome.OPEN),
    ],
)
def test_better_and_worse_are_what_luck_does_not_explain(differences: Sequence[float], outcome: Outcome) -> None:
    assert outcomes([claim(differences)]) == [outcome]
    line = verdict([claim(differences)])
    assert line.startswith("Verdict: ") and str(outcome) in line


def test_many_comparisons_make_luck_likelier() -> None:
    chance = claim([1.0] * 6 + [0.0] * 20)  # p = .03
    assert outcomes([chance]) == [Outcome.BETTER]
    assert outcomes([chance, *[claim([1.0, -1.0])] * 9])[0] is Outcome.OPEN


def test_sets_that_disagree_decide_nothing_and_one_that_harms_decides() -> None:
    good, bad, none = claim([1.0] * 30), claim([-1.0] * 30), claim([0.0] * 30)
    assert [overall(some) for some in ([good, none], [bad, none], [good, bad], [none], [])] == [
        *(Outcome.BETTER, Outcome.WORSE, Outcome.OPEN, Outcome.OPEN, Outcome.OPEN)
    ]


def test_more_searches_are_neither_better_nor_worse() -> None:
    sides = scores({"searches": [3.0] * 20, "em": [1.0] * 20}, {"searches": [1.0] * 20, "em": [0.0] * 20})
    assert [claim.metric for claim in claims_of(sides, ("searches", "em"))] == ["em"]
    assert not claims_of(sides, ("searches",))
    assert comparison_table(sides, ("searches", "em")).notes[0].startswith("Verdict: after is better than before in em")


def test_a_training_that_ended_worse_recommends_what_there_was_before(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from coseek.pipelines.agent import AgentTraining
    from coseek.pipelines.agent_recipe import load_recipe
    from coseek.pipelines.agent_results import next_commands, notes_of

    training = AgentTraining(load_recipe("quickstart", []), tmp_path)
    for values, policy in (((0.0, 1.0), "warm"), ((1.0, 0.0), "trained"), ((1.0, 1.0), "trained")):
        scored = scores({"em": [values[0]] * 50}, {"em": [values[1]] * 50})
        notes = notes_of(training, {"test": scored})
        assert notes[0].startswith("Verdict: on test, ")
        assert ("Keep the policy before training" in notes[1]) == (policy == "warm")
        assert all(str(training.policy_folder(policy)) in command for command in [*next_commands(training)][1:])


def test_the_commands_after_a_training_search_and_ask_as_it_did(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from coseek.pipelines.agent import AgentTraining
    from coseek.pipelines.agent_recipe import load_recipe
    from coseek.pipelines.agent_results import next_commands

    data = ["data.index=http://host:80", "data.view=query", "data.train=dev"]
    *_, run = next_commands(AgentTraining(load_recipe("quickstart", data), tmp_path))
    words = shlex.split(run)
    searched = settings_in(words[words.index("--retriever") + 1])
    assert searched == {"retriever": "viewed", "over": "http://host:80", "view": "query"}
    assert words[words.index("--split") + 1] == "dev"


def test_an_encoder_that_training_harmed_is_not_recommended(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    from coseek.pipelines.encoder import RetrieverTraining
    from coseek.training.encoder.evaluation import BEFORE, BM25, HYBRID, TRAINED
    from coseek.training.encoder.recipe import load_retriever_recipe

    bad, good = claim([-1.0] * 50).difference, claim([1.0] * 50).difference
    recipe = load_retriever_recipe("documents", [f"data.folder={tmp_path}"], [])
    for pairs, kept, command in (
        ({(TRAINED, BEFORE): bad, (HYBRID, BM25): good}, BEFORE, "--encoder"),
        ({(TRAINED, BEFORE): good, (HYBRID, BM25): bad, (TRAINED, BM25): bad}, BM25, "index/bm25"),
        ({(TRAINED, BEFORE): good, (HYBRID, TRAINED): bad}, TRAINED, "index/trained"),
        ({(TRAINED, BEFORE): good, (HYBRID, BM25): good, (TRAINED, BM25): bad}, "", "hybrid.yaml"),
    ):
        training = RetrieverTraining(recipe, tmp_path / "run")
        training._judge([PairedClaim(*names, "mrr", paired) for names, paired in pairs.items()])
        assert training.kept in (kept, HYBRID) and command in training.next_command
