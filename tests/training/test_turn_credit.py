"""Fears about credits of turns: a formula that is not the paper's, a gradient that the baseline bends."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from tests.training.echo import settings_of
from tests.training.tiny import agent, environment, tiny_model, trajectory
from torch import Tensor

from coseek.agents.protocol import load_protocol
from coseek.core.errors import SettingError
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.models.tokenizer import ByteTokenizer
from coseek.rewards.reward import make_reward, reward_spec
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.algorithm import GoldContext, GoldProbe, StepRewards, algorithm_name, open_algorithm
from coseek.training.rl.experience import make_experience
from coseek.training.rl.gold_probe import AnswerWriter, PolicyProbe
from coseek.training.rl.losses import zero_std_rows
from coseek.training.rl.rollout import score

PROMPT = environment(1, 2)


def run(*turns: int, found_ids: Sequence[str] = (), right: bool = True) -> Trajectory:
    """A run whose turns write one token each; turn n of those in `found_ids` searches and finds these passages."""
    segments: list[Segment] = [PROMPT]
    for token in turns:
        segments += [agent(token), environment(9)]
    searches = tuple(
        Search(f"q{turn}", tuple(Hit(Passage(ident, "", ident), 0.0) for ident in idents.split()), turn=turn)
        for turn, idents in enumerate(found_ids, start=1)
    )
    question = Question("q", "?", ("gold",), gold_ids=("g1", "g2"))
    answer = "gold" if right else "other"
    return Trajectory(question, "search-r1", tuple(segments[:-1]), searches, StopReason.ANSWERED, answer, valid=True)


def credit(
    name: str,
    runs: Sequence[Trajectory],
    rewards: Sequence[float],
    turns: Sequence[Sequence[float]] = (),
    levels: GoldProbe | None = None,
    kl: Sequence[float] = (),
    size: int = 0,
    **own: float | str | bool,
) -> list[list[float]]:
    """What an algorithm gives each turn of the runs of one question."""
    width = max(len(run.ids) for run in runs)
    mask_BT = torch.tensor([[*run.agent_mask, *[False] * (width - len(run.ids))] for run in runs])
    kl_penalty_BT = torch.zeros(mask_BT.shape)
    for row, charged in enumerate(kl):
        kl_penalty_BT[row, runs[row].turn_spans[-1][0]] = charged
    step = StepRewards(
        torch.tensor(rewards, dtype=torch.float64), kl_penalty_BT, mask_BT, (tuple(range(len(runs))),),
        size or len(runs), zero_std_rows(torch.tensor(rewards), [range(len(runs))], size or len(runs)),
        trajectories=tuple(runs), rewards_of_turns=tuple(map(tuple, turns)), gold_probe=levels,
    )  # fmt: skip
    opened = open_algorithm(settings_of(name, group_size=len(runs), algorithm_settings=own))
    advantages_BT = opened.advantages(step).advantages_BT
    return [[float(advantages_BT[row, start]) for start, _ in run.turn_spans] for row, run in enumerate(runs)]


def test_mt_grpo_compares_a_turn_with_the_returns_of_the_others_from_there_on() -> None:
    runs, turns = [run(3, 4, 5), run(3, 4), run(6)], [[1, 0, 0], [0, 0], [0]]
    paid = credit("mt-grpo", runs, [2.0, 0.0, 1.0], turns)
    assert paid[0] == pytest.approx([2 - (0 + 1) / 2, 1 - 0.0, 1 - 0.0])  # the rest of the reward is the last turn's
    assert paid[1] == pytest.approx([0 - (2 + 1) / 2, 0 - (1 + 0) / 2])
    assert credit("mt-grpo", runs[1:2], [2.0], turns[1:2]) == [[2.0, 2.0]]  # a group of one has no baseline
    biased = credit("mt-grpo", runs, [2.0, 0.0, 1.0], turns, ended="skip")
    assert biased[0] == pytest.approx([(1 - 2 / 3) + 0 + (1 - 1), 0 + 0, 0])


def bent_gradient(ended: str, stop: float) -> tuple[float, float]:
    """d E[return] / d θ of a policy that stops with probability σ(θ) after each of two turns, exactly; and the mean of
    the estimator over all pairs of runs. A turn that goes on earns 1, the end 0."""
    going = [(2,), (1, 2), (1, 1)]  # token 2 stops, token 1 goes on
    chance = {2: stop, 1: 1 - stop}
    slope = {2: 1 - stop, 1: -stop}  # of the log-probability
    earned = {tokens: [1.0 if token == 1 else 0.0 for token in tokens] for tokens in going}
    weight = {tokens: math.prod(chance[token] for token in tokens) for tokens in going}
    true = sum(weight[tokens] * sum(map(slope.__getitem__, tokens)) * sum(earned[tokens]) for tokens in going)
    estimate = 0.0
    for pair in itertools.product(going, repeat=2):
        turns = [earned[tokens] for tokens in pair]
        values = credit("mt-grpo", [run(*tokens) for tokens in pair], [sum(each) for each in turns], turns, ended=ended)
        of_pair = sum(
            slope[token] * value
            for tokens, row in zip(pair, values, strict=True)
            for token, value in zip(tokens, row, strict=True)
        )
        estimate += weight[pair[0]] * weight[pair[1]] * of_pair / 2
    return true, estimate


@pytest.mark.parametrize(
    ("name", "turns"),
    [
        *((name, [(3, 4), (3, 5), (6,)]) for name in ("grpo", "tree-grpo", "ig-search", "leave-one-turn-out")),
        *((name, [(3,), (5,), (6,)]) for name in ("gigpo", "igpo")),  # whose returns differ by the number of turns
    ],
)
def test_noise_of_the_kl_is_not_scaled_up_where_all_rewards_are_equal(name: str, turns: list[tuple[int, ...]]) -> None:
    runs = [run(*tokens) for tokens in turns]
    paid = credit(name, runs, [1.0] * 3, levels=lambda contexts: [0.0] * len(contexts), kl=[1e-3, 2e-3, 3e-3])
    assert all(abs(value) < 0.01 for values in paid for value in values)


@pytest.mark.parametrize("stop", [0.2, 0.5, 0.7])
def test_a_baseline_of_turns_bends_no_gradient_unless_it_skips_runs_that_ended(stop: float) -> None:
    true, estimate = bent_gradient("zero", stop)
    assert estimate == pytest.approx(true, abs=1e-6)
    true, biased = bent_gradient("skip", stop)
    assert abs(biased - true) > 0.05  # verl-project/verl#7244


def test_gigpo_adds_the_advantage_among_turns_that_had_read_the_same() -> None:
    runs = [run(3, 4, found_ids=["a b"]), run(5, 6, found_ids=["b a"]), run(7, 8, found_ids=["c"])]
    advantages = credit("gigpo", runs, [1.0, 0.0, 0.0], scale_by_std=False, gamma=0.5, weight=2.0)
    third = 1 / 3
    assert advantages[0] == pytest.approx([2 * third + 2 * (0.5 - 0.5 * third), 2 * third + 2 * 0.5])
    assert advantages[2] == pytest.approx([-third - 2 * 0.5 * third, -third])  # no other run had read c alone
    scaled = credit("gigpo", runs, [1.0, 0.0, 0.0])
    assert scaled[0] == pytest.approx([2 * math.sqrt(2), math.sqrt(2) + 1], abs=1e-4)
    assert scaled[2] == pytest.approx([-math.sqrt(2), -math.sqrt(0.5)], abs=1e-4)


def test_tree_grpo_compares_runs_within_their_tree_and_in_the_group() -> None:
    runs = [run(3, 4, 7), run(3, 4, 5), run(6, 4)]  # two that part in their third turn are in one tree
    advantages = credit("tree-grpo", runs, [1.0, 0.0, 0.0])
    whole = math.sqrt(2)  # (1 - 1/3) / std of 1, 0, 0
    assert advantages[0] == pytest.approx([whole + 1] * 3)
    assert advantages[1] == pytest.approx([-whole / 2 - 1] * 3) and advantages[2] == pytest.approx([-whole / 2] * 2)


def test_igpo_pays_each_turn_the_gain_in_probability_standardised_over_the_group() -> None:
    levels = iter(map(math.log, [0.1, 0.5, 0.5, 0.2]))

    def probe(contexts: Sequence[GoldContext]) -> list[float]:
        assert [len(context) for _, context in contexts] == [1, 3, 5, 1]
        return [next(levels) for _ in contexts]

    advantages = credit("igpo", [run(3, 4, 5), run(6)], [1.0, 0.0], levels=probe)
    gains = torch.tensor([0.4, 0.0, 1.0, 0.0])
    standard = ((gains - gains.mean()) / gains.std(correction=0)).tolist()
    assert advantages[0] == pytest.approx([sum(standard[:3]), sum(standard[1:3]), standard[2]], abs=1e-5)
    assert advantages[1] == pytest.approx([standard[3]], abs=1e-5)


def test_a_turn_is_paid_what_the_gold_answer_loses_without_it() -> None:
    def probe(contexts: Sequence[GoldContext]) -> list[float]:
        """Token 4 in the context adds one nat."""
        assert [len(context) for _, context in contexts] == [5, 3, 3, 1]
        return [-1.0 + (4 in [token for segment in context for token in segment.ids]) for _, context in contexts]

    advantages = credit("leave-one-turn-out", [run(3, 4, 5), run(6)], [1.0, 0.0], levels=probe)
    assert advantages[0] == pytest.approx([1.0 + 0.0, 1.0 + 1.0, 1.0])
    with pytest.raises(SettingError, match="how likely the policy finds the gold answer"):
        credit("igpo", [run(3)], [1.0])


def test_lapo_keeps_a_standardised_loss_only_where_its_sign_stays() -> None:
    worth = {3: 2.0, 4: 1.0, 6: -0.5, 7: 0.1}

    def probe(contexts: Sequence[GoldContext]) -> list[float]:
        """Each turn in a context adds what it is worth."""
        return [sum(worth.get(token, 0.0) for segment in context for token in segment.ids) for _, context in contexts]

    runs = [run(3, 4, 5), run(6, 7, 8), run(5, 8)]
    advantages = credit("leave-one-turn-out", runs, [1.0, 1.0, 1.0], levels=probe, gated=True)
    losses = torch.tensor([2.0, 1.0, -0.5, 0.1, 0.0])
    standard = ((losses - losses.mean()) / losses.std(correction=0)).tolist()
    assert advantages[0] == pytest.approx([standard[0], standard[1], 0.0], abs=1e-5)
    assert advantages[1] == pytest.approx([standard[2], 0.0, 0.0], abs=1e-5)  # .1 is a gain, though less than the mean
    assert advantages[2] == [0.0, 0.0]  # nothing was lost


def test_ig_search_pays_what_passages_add_beyond_those_that_others_found() -> None:
    def shows(trajectory: Trajectory, *tokens: int) -> Trajectory:
        shown = iter(tokens)
        return replace(trajectory, segments=(PROMPT, *(environment(next(shown)) if segment.author is Author.ENVIRONMENT
                                                else segment for segment in trajectory.segments[1:])))  # fmt: skip

    worth = {11: 3.0, 12: 1.0, 13: 0.5}
    read: list[list[int]] = []

    def probe(contexts: Sequence[GoldContext]) -> list[float]:
        read.extend([token for segment in context for token in segment.ids] for _, context in contexts)
        return [worth[context[-1].ids[0]] for _, context in contexts]

    runs = [shows(run(3, 4, 5, found_ids=["a", "b"]), 11, 12), shows(run(6, 7, found_ids=["c"]), 13)]
    advantages = credit("ig-search", runs, [1.0, 0.0], levels=probe, weight=2.0)
    assert advantages[0] == pytest.approx([1 + 2 * (3 - 0.75), 1 + 2 * (1 - 1.75), 1.0])
    assert advantages[1] == pytest.approx([-1 + 2 * (0.5 - 2), -1.0])
    assert read[0] == [1, 2, 3, 11] and sorted(ids[-1] for ids in read[1:3]) == [12, 13]
    assert read[3] == [1, 2, 3, 11, 4, 12]  # earlier observations stay
    assert credit("ig-search", [run(3, 4)], [1.0], levels=probe, others=1) == [[1.0, 1.0]]  # nothing was read


def test_turn_rewards_pay_what_a_turn_found_first() -> None:
    trajectory = run(3, 4, 5, 6, found_ids=["a g1", "g1 b", "gold g2"])
    step = make_reward(reward_spec("step_search"))(trajectory)
    assert step is not None and step.turns == pytest.approx((0.5, -0.5, 0.5, 0.0))
    again = run(3, 4, 5, 6, found_ids=["a g1", "b", "g1 g2"])
    opened = replace(again, searches=(replace(again.searches[1], turn=0), *again.searches))  # finds b before the agent
    for ran, worth in ((again, (0.5, 0.0, 0.0, 0.0)), (opened, (0.5, -1.0, 0.0, 0.0))):
        late = make_reward(reward_spec("step_search"))(ran)
        assert late is not None and late.turns == pytest.approx(worth)
    nearer = make_reward({"step_search": {"redundancy": 0.0}})(trajectory)
    assert nearer is not None and nearer.turns == pytest.approx((0.5, 0.0, 0.5, 0.0))
    first = make_reward(reward_spec("first_appearance"))(trajectory)
    assert first is not None and first.turns == (0.0, 0.0, 1.0, 0.0) and first.value == 1.0
    assert credit("turn-reward", [trajectory], [0.5], [step.turns])[0] == pytest.approx([0.375, -0.625, 0.375, -0.125])


def test_the_gold_answer_is_weighed_by_the_policy_where_the_agent_would_write_it() -> None:
    class Letters(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return [5 + byte % 19 for byte in super().encode(text)]

        encode_data = encode

    model = tiny_model(seed=2)
    probe = PolicyProbe(Policy(model, LearnerSettings(), 1), AnswerWriter(load_protocol("search-r1"), Letters()))
    trajectory = run(3, 4, found_ids=["a"])
    short, long = probe([(trajectory, context) for context in trajectory.contexts])
    turn, answer = probe.writer.ids(trajectory, trajectory.contexts[1])
    ids = [token for segment in trajectory.contexts[1] for token in segment.ids]
    logprobs = model(input_ids=torch.tensor([[*ids, *turn]])).logits[0].log_softmax(1)
    wanted = [float(logprobs[len(ids) + at - 1, turn[at]].detach()) for at in answer]
    assert long == pytest.approx(sum(wanted) / len(wanted), abs=1e-4) and short != pytest.approx(long)
    assert [turn[at] for at in answer] == Letters().encode("gold")
    letter = replace(trajectory, question=replace(trajectory.question, answers=("a",)))  # as in the tags around it
    turn, answer = AnswerWriter(load_protocol("search-r1"), ByteTokenizer()).ids(letter, letter.contexts[1])
    assert ByteTokenizer().decode(turn[: answer.start]).endswith("<answer>") and turn[answer.start] == ord("a")


@pytest.mark.parametrize("name", ["mt-grpo", "turn-reward", "tree-grpo", "gigpo", "igpo", "ig-search"])
def test_a_charged_kl_counts_in_every_credit(name: str) -> None:
    pair = [run(3, 4), run(3, 6)]

    def flat(contexts: Sequence[GoldContext]) -> list[float]:
        return [-1.0] * len(contexts)

    better, worse = (credit(name, pair, [1.0, 0.0], levels=flat, kl=kl) for kl in ((), (1.5, 0.0)))
    assert better[0][1] > better[1][1] and worse[0][1] < worse[1][1]  # -.5 is less than 0
    assert credit(name, pair[:1], [1.0], levels=flat, size=2) == [[0.0, 0.0]]  # whose others failed


RUNS = [
    trajectory(PROMPT, agent(3, 4), environment(5), agent(6)),  # forks from the next one in its second turn
    trajectory(PROMPT, agent(3, 4), environment(5), agent(7, 7), environment(8), agent(9)),
    trajectory(PROMPT, agent(4)),
    trajectory(PROMPT, agent(3, 4), environment(5), agent(6), question="other"),  # of another group
]
REWARDS = [1.0, 0.0, 0.5, 2.0]


def by_turn(run: Trajectory) -> list[float]:
    return [0.25 * number for number in range(1, len(run.turn_spans) + 1)]


def step_of(runs: Sequence[Trajectory], groups: Sequence[int], algorithm: str) -> tuple[Tensor, StepRewards]:
    """The advantages of an algorithm, and its input."""
    handed: list[StepRewards] = []
    opened = open_algorithm(settings_of(algorithm, group_size=3))

    def advantages(step: StepRewards, settings: object) -> Tensor:
        handed.append(step)
        return opened.advantages(step).advantages_BT

    spied = type(opened)(opened.name, opened.settings, advantages)
    episodes = score(groups, runs, make_reward(reward_spec(by_turn)))
    experience = make_experience(episodes, settings_of(algorithm, group_size=3), spied, None)
    return experience.advantages_BT, handed[0]


def tree_credit(step: StepRewards) -> Tensor:
    """The value of a turn, the mean reward of the runs through it, less that of the turn before it."""
    nodes, values = step.tree(), [[0.0] * len(spans) for spans in step.turn_spans]
    for node in nodes:
        before = step.rewards_B if node.parent is None else step.rewards_B[list(nodes[node.parent].rows)]
        for row in node.rows:
            values[row][node.turn - 1] = float(step.rewards_B[list(node.rows)].mean() - before.mean())
    return step.every_turn(values)


def turn_credit(step: StepRewards) -> Tensor:
    return step.every_turn(step.rewards_of_turns)


def test_the_reward_of_a_turn_stands_at_the_turns_tokens() -> None:
    advantages_BT, step = step_of(RUNS, [0, 0, 0, 1], algorithm_name(turn_credit))
    assert step.turn_spans[1] == ((2, 4), (5, 7), (8, 9)) and step.trajectories == tuple(RUNS)
    assert step.rewards_of_turns[1] == (0.25, 0.5, 0.75)
    assert step.rewards_B.tolist() == [0.75, 1.5, 0.25, 0.75]
    assert advantages_BT[1].tolist() == [0, 0, 0.25, 0.25, 0, 0.5, 0.5, 0, 0.75]
    assert advantages_BT[2].tolist() == [0, 0, 0.25, 0, 0, 0, 0, 0, 0]


def test_runs_of_a_group_with_one_beginning_are_a_tree() -> None:
    advantages_BT, step = step_of(RUNS, [0, 0, 0, 1], algorithm_name(tree_credit))
    nodes = step.tree()
    assert [(node.turn, node.rows, node.parent) for node in nodes] == [
        (1, (0, 1), None),
        (2, (0,), 0),
        (2, (1,), 0),
        (3, (1,), 2),
        (1, (2,), None),
        (1, (3,), None),
        (2, (3,), 5),
    ]
    everything, shared = fmean([0.75, 1.5, 0.25, 0.75]), fmean([0.75, 1.5])
    assert advantages_BT[0, 2:6].tolist() == pytest.approx([shared - everything] * 2 + [0.0, 0.75 - shared])
    assert advantages_BT[1, 5].item() == pytest.approx(1.5 - shared) and advantages_BT[1, 8].item() == 0.0


def test_the_rewards_of_turns_are_weighted_and_gated_like_the_reward() -> None:
    name = next(iter(reward_spec(by_turn)))
    paid = make_reward({name: 2.0, "exact_match": 1.0, "valid": {"gate": True}})(RUNS[1])
    assert paid is not None and paid.turns == (0.5, 1.0, 1.5) and paid.value == 3.0
    shut = make_reward({name: 2.0, "valid": {"gate": True}})(replace(RUNS[1], valid=False))
    assert shut is not None and shut.turns == (0.0, 0.0, 0.0)
    reward = make_reward({"exact_match": 1.0})(RUNS[1])
    assert reward is not None and reward.turns == ()

    def too_few(run: Trajectory) -> list[float]:
        return [1.0]

    with pytest.raises(SettingError, match="gave 1 numbers for the 3 turns"):
        make_reward(reward_spec(too_few))(RUNS[1])


WITHOUT_TRAJECTORIES = StepRewards(
    torch.ones(1), torch.zeros(1, 2), torch.ones(1, 2).bool(), ((0,),), 1, torch.zeros(1).bool()
)
"""One run of two tokens, as an engine hands it over that passes no trajectories on."""


def test_a_reward_that_names_no_turns_is_paid_at_the_last_one() -> None:
    mask_BT = torch.tensor([[True, False, True]])
    step = replace(WITHOUT_TRAJECTORIES, kl_penalty_BT=torch.zeros(1, 3), mask_BT=mask_BT, trajectories=(run(3, 4),))
    assert step.turn_rewards() == [[0.0, 1.0]]


def test_an_engine_without_trajectories_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="reads turns"):
        WITHOUT_TRAJECTORIES.tree()
    for wrong in (lambda: 1, lambda step, more: 1):
        with pytest.raises(SettingError, match=r"algorithm.*step"):
            algorithm_name(wrong)  # type: ignore[arg-type]
    assert algorithm_name(tmp_path / "mine.py") == str(tmp_path / "mine.py")
    by_run = open_algorithm(settings_of(algorithm_name(lambda step: step.rewards_B))).advantages(WITHOUT_TRAJECTORIES)
    assert by_run.advantages_BT.tolist() == [[1.0, 1.0]]  # one number a run is that of its tokens


NEAR: dict[str, Callable[[StepRewards], object]] = {
    "a list": lambda step: [1.0],
    "an array": lambda step: step.rewards_B.double().numpy(),
    "whole numbers": lambda step: step.rewards_B.long(),
    "groups in float64": lambda step: step.compare_groups(lambda rewards: rewards.double()),
    "groups as lists": lambda step: step.compare_groups(lambda rewards: rewards.tolist()),  # type: ignore[arg-type,return-value]
}


@pytest.mark.parametrize("kind", NEAR)
def test_an_algorithm_may_return_what_is_nearly_a_tensor(kind: str) -> None:
    opened = open_algorithm(settings_of(algorithm_name(NEAR[kind])))  # type: ignore[arg-type]
    advantages_BT = opened.advantages(WITHOUT_TRAJECTORIES).advantages_BT
    assert advantages_BT.tolist() == [[1.0, 1.0]] and advantages_BT.dtype == torch.float32


@pytest.mark.parametrize("nothing", [None, ["a"], [[1.0], [1.0, 2.0]]])
def test_an_algorithm_that_returns_no_numbers_is_asked_for_a_tensor(nothing: object) -> None:
    opened = open_algorithm(settings_of(algorithm_name(lambda step: nothing)))  # type: ignore[arg-type, return-value]
    with pytest.raises(SettingError, match=r"the algorithm lambda returned .*; let it return a tensor"):
        opened.advantages(WITHOUT_TRAJECTORIES)
