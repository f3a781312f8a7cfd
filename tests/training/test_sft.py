"""The warm start: what is drawn, what is weighed, and that a stop changes nothing."""

import json
import random
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, strategies as st
from pydantic import ValidationError
from tests.training.tiny import agent, environment, tiny_model, trajectory
from tests.watching import Heard, Presses

from coseek.core.errors import DataError
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import EpisodeState, Request
from coseek.models.sampler import SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.training.learner.batch import make_batch
from coseek.training.learner.optimizer import rate_at
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.sft.loop import LENGTH_RANGE, MAX_GAP, repeat_batch, token_weights, train_sft, varied_batch
from coseek.training.sft.settings import Phase, SftSettings, draw_any, draw_by_hops

LEARNER = LearnerSettings(optimizer=OptimizerSettings(lr=1e-2, lr_scheduler_type="linear"))
MUON = LearnerSettings(optimizer=OptimizerSettings(algorithm="muon", lr=1e-2, lr_scheduler_type="linear"))


def demonstrations() -> list[Trajectory]:
    """The agent repeats the token that it was shown."""
    return [
        trajectory(environment(*[2] * (ident % 3), 1, ident), agent(ident), hops=1 + ident % 2, question=f"q{ident}")
        for ident in range(4, 16)
    ]


def settings_of(**changes: object) -> SftSettings:
    repeats = {"repeat_steps": 3, "varied_steps": 2}
    tree = {"steps": 30, "tokens_per_step": 40, **repeats, "learner": LEARNER, "log_every": 1}
    return SftSettings.model_validate(tree | changes)


@pytest.mark.slow
def test_training_on_demonstrations_makes_them_likely(tmp_path: Path) -> None:
    model = tiny_model(seed=4)
    train_sft(
        Policy(model, LEARNER, 0), draw_any(demonstrations()), settings_of(steps=80, environment_weight=0.0), tmp_path
    )
    batch = make_batch(demonstrations())
    logprobs = Policy(model, LEARNER, 1).forward(batch, batch.agent_BT)[batch.agent_BT]
    assert float(logprobs.mean()) > -0.7 > -2.0 > float(first_loss(tmp_path)) * -1


def first_loss(folder: Path) -> float:
    rows = [json.loads(line) for line in (folder / "round-1" / "metrics.jsonl").read_text().splitlines()]
    return float(rows[0]["loss"])


@pytest.mark.slow
def test_a_warm_start_that_was_stopped_and_resumed_ends_with_the_same_weights(tmp_path: Path) -> None:
    settings = settings_of(checkpoint_every=7, evaluate_every=17, learner=MUON)
    whole, parts = tiny_model(), tiny_model()
    train_sft(Policy(whole, MUON, 0), draw_any(demonstrations()), settings, tmp_path / "whole")

    def stop(step: int) -> Mapping[str, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_sft(Policy(parts, MUON, 0), draw_any(demonstrations()), settings, tmp_path / "parts", evaluate=stop)
    again = tiny_model(seed=9)  # what is in the checkpoint counts, not what the caller brings
    train_sft(Policy(again, MUON, 0), draw_any(demonstrations()), settings, tmp_path / "parts", resume=True)
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in whole.state_dict().items())
    logs = [(tmp_path / name / "round-1" / "metrics.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    rows = [[(row["loss"], row["tokens"]) for row in map(json.loads, lines)] for lines in logs]
    assert rows[0] == rows[1] and len(rows[0]) == 35


@pytest.mark.medium
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_loses_no_step_though_no_checkpoint_was_due(sign: signal.Signals, tmp_path: Path) -> None:
    settings = settings_of(steps=8, repeat_steps=0, varied_steps=0, checkpoint_every=100)
    whole, parts, again = tiny_model(), tiny_model(), tiny_model(seed=9)
    train_sft(Policy(whole, LEARNER, 0), draw_any(demonstrations()), settings, tmp_path / "whole")
    draw, progress = draw_any(demonstrations()), Presses(3, sign)
    before = signal.signal(sign, signal.default_int_handler)  # else it would end this process
    try:
        with pytest.raises(KeyboardInterrupt):
            train_sft(Policy(parts, LEARNER, 0), draw, settings, tmp_path / "parts", progress=progress)
    finally:
        signal.signal(sign, before)
    assert progress.steps[-1] == 3
    train_sft(Policy(again, LEARNER, 0), draw, settings, tmp_path / "parts", resume=True, progress=(resumed := Heard()))
    assert resumed.steps[0] == 4
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in whole.state_dict().items())


@pytest.mark.medium
def test_rounds_go_on_until_the_gate_is_reached(tmp_path: Path) -> None:
    readings = iter([0.1, 0.3, 0.9])
    settings = settings_of(steps=3, gate=0.25, rounds=5)

    def evaluate(step: int) -> Mapping[str, float]:
        return {"exact_match": next(readings)}

    ended = train_sft(
        Policy(tiny_model(), LEARNER, 0), draw_any(demonstrations()), settings, tmp_path, evaluate=evaluate
    )
    assert ended.passed and ended.rounds == 2
    # Resumed, it remembers its evaluations and asks for no new one.
    ended = train_sft(
        Policy(tiny_model(), LEARNER, 0), draw_any(demonstrations()), settings, tmp_path, resume=True, evaluate=evaluate
    )
    assert ended.passed and ended.rounds == 2 and next(readings) == 0.9


def test_a_sampler_that_waits_for_its_evaluation_holds_no_memory_meanwhile(tmp_path: Path) -> None:
    policy = Policy(tiny_model(), LEARNER, 0)
    sampler = policy.sampler(ByteTokenizer(), (), SamplerSettings(max_tokens=16, dtype="bfloat16"))

    def write(step: int) -> Mapping[str, float]:
        sampler.start(Request(0, (1, 2), 4, 0, EpisodeState(Question("q", "?"))))
        assert sampler.step()
        sampler.close(0)
        return {}

    def draw(done: float, rng: random.Random) -> Trajectory:
        cache = sampler._engine.cache
        assert not (cache.keys or cache.values or cache.states)
        return demonstrations()[0]

    write(0)
    train_sft(policy, draw, settings_of(steps=3, evaluate_every=2), tmp_path, evaluate=write)


def test_token_weights_add_up_to_one_and_leave_out_the_first_token_and_the_padding() -> None:
    batch = make_batch([trajectory(environment(1, 2), agent(3, 4)), trajectory(environment(1), agent(2))])
    weights_BT = token_weights(batch, 0.5)
    assert float(weights_BT.sum()) == pytest.approx(1.0)
    assert (weights_BT * 3.5).tolist() == [pytest.approx([0, 0.5, 1, 1]), pytest.approx([0, 1, 0, 0])]
    assert not token_weights(batch, 0.0)[~batch.agent_BT].any()


def test_a_curriculum_draws_the_hops_of_its_phase() -> None:
    draw = draw_by_hops(demonstrations(), [Phase(until=0.5, hops={1: 1.0}), Phase(until=1.0, hops={2: 1.0, 9: 5.0})])
    rng = random.Random(0)
    assert {draw(0.2, rng).question.hops for _ in range(20)} == {1}
    assert {draw(0.5, rng).question.hops for _ in range(20)} == {2}
    assert {draw(1.0, rng).question.hops for _ in range(20)} == {2}
    anything = draw_by_hops(demonstrations(), [])
    assert {anything(0.0, rng).question.hops for _ in range(40)} == {1, 2}
    with pytest.raises(DataError, match="no demonstrations"):
        draw_any([])


def test_demonstrations_of_unknown_hops_are_not_forgotten() -> None:
    known = demonstrations()[:6]
    unknown = [trajectory(environment(1), agent(2), question=f"u{number}") for number in range(6)]
    phases = [Phase(until=1.0, hops={1: 1.0})]
    draw, rng = draw_by_hops([*known, *unknown], phases), random.Random(0)
    drawn = [draw(0.5, rng).question for _ in range(400)]
    assert {question.hops for question in drawn} == {None, 1}
    assert 160 < sum(question.hops is None for question in drawn) < 240, "half of them are of unknown hops"
    draw, rng, again = draw_by_hops(known, phases), random.Random(5), random.Random(5)
    ones = [run for run in known if run.question.hops == 1]
    for _ in range(20):  # where all hops are known, a seed gives what it always gave
        again.choices([1], weights=[1.0])
        assert draw(0.5, rng) == again.choice(ones)


def test_the_learning_rate_rises_holds_and_falls() -> None:
    settings = OptimizerSettings(lr=1.0, warmup_updates=2, lr_scheduler_type="linear", decay_from=0.5, min_lr_ratio=0.1)
    rates = [rate_at(settings, update, 10) for update in range(12)]
    assert rates[:6] == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates[9] == pytest.approx(0.28) and rates[10] == rates[11] == pytest.approx(0.1)
    share = OptimizerSettings(lr=1.0, warmup_ratio=0.25)
    assert [rate_at(share, update, 9) for update in range(4)] == [0.5, 1.0, 1.0, 1.0]  # two of nine
    with pytest.raises(ValidationError, match="set one of them to 0"):
        OptimizerSettings(warmup_updates=2, warmup_ratio=0.25)
    assert rate_at(OptimizerSettings(lr=1.0, lr_scheduler_type="cosine"), 75, 100) == pytest.approx(0.5)
    assert rate_at(OptimizerSettings(lr=1.0), 99, 100) == 1.0


def test_later_rounds_may_be_shorter_and_a_gate_that_is_never_reached_is_reported(tmp_path: Path) -> None:
    settings = SftSettings(steps=3, later_steps=2, repeat_steps=1, rounds=2, gate=2.0, log_every=1, tokens_per_step=60)
    policy = Policy(tiny_model(), LEARNER, 0)
    ended = train_sft(policy, draw_any(demonstrations()), settings, tmp_path, evaluate=lambda _: {"exact_match": 0.0})
    assert not ended.passed and ended.rounds == 2
    lines = [len((tmp_path / f"round-{n}" / "metrics.jsonl").read_text().splitlines()) for n in (1, 2)]
    assert lines == [4, 2]


def test_a_later_round_does_not_walk_through_the_curriculum_again(tmp_path: Path) -> None:
    drawn: list[float] = []

    def draw(done: float, rng: random.Random) -> Trajectory:
        drawn.append(done)
        return rng.choice(demonstrations())

    settings = SftSettings(steps=3, repeat_steps=0, rounds=2, gate=2.0, tokens_per_step=60)
    train_sft(Policy(tiny_model(), LEARNER, 0), draw, settings, tmp_path, evaluate=lambda _: {"exact_match": 0.0})
    assert min(drawn) < 1.0 and drawn[-1] == 1.0
    assert drawn == sorted(drawn)


@given(st.integers(2, 30), st.integers(0, 30), st.integers(0, 2**31))
def test_only_predictable_tokens_are_targets_of_the_copy_task(length: int, gap: int, seed: int) -> None:
    batch = repeat_batch(50, 3, length, torch.Generator().manual_seed(seed), gap)
    again = slice(length + gap, 2 * length + gap)
    assert torch.equal(batch.ids_BT[:, :length], batch.ids_BT[:, again])
    assert not batch.agent_BT[:, : length + gap].any()
    assert batch.agent_BT[:, again].sum(dim=1).tolist() == [length - (gap > 0)] * 3, "where a gap ends nobody knows"


@given(st.floats(0, 1), st.integers(0, 2**31))
def test_lengths_and_distances_spread_from_one_distance_to_all(spread: float, seed: int) -> None:
    batch = varied_batch(50, 1536, 24, spread, torch.Generator().manual_seed(seed))
    rows, width = batch.ids_BT.shape
    distance = int(batch.agent_BT[0].nonzero()[0])
    length = width - distance
    assert LENGTH_RANGE[0] - 1 <= length <= LENGTH_RANGE[1]
    assert distance <= LENGTH_RANGE[1] + MAX_GAP + 1
    assert rows * width <= max(1536, width)
    if spread == 0.0:
        assert (length, distance) == (24, 24)
