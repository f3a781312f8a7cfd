"""What an algorithm is handed of turns: their spans, their rewards, and the tree of a group's runs."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest
import torch
from tests.training.echo import settings_of
from tests.training.tiny import agent, environment, trajectory
from torch import Tensor

from coseek.core.errors import SettingError
from coseek.data.trajectory import Trajectory
from coseek.rewards.reward import make_reward, reward_spec
from coseek.training.rl.algorithm import StepRewards, algorithm_name, open_algorithm
from coseek.training.rl.experience import make_experience
from coseek.training.rl.rollout import score

PROMPT = environment(1, 2)
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
    """The advantages of an algorithm, and what it was handed."""
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
        (1, (2,), None),
        (2, (0,), 0),
        (2, (1,), 0),
        (3, (1,), 3),
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
    one = make_reward({"exact_match": 1.0})(RUNS[1])
    assert one is not None and one.turns == ()

    def too_few(run: Trajectory) -> list[float]:
        return [1.0]

    with pytest.raises(SettingError, match="gave 1 numbers for the 3 turns"):
        make_reward(reward_spec(too_few))(RUNS[1])


def test_an_engine_without_trajectories_is_named(tmp_path: Path) -> None:
    mask_BT = torch.ones(1, 2).bool()
    step = StepRewards(torch.ones(1), torch.zeros(1, 2), mask_BT, ((0,),), 1, torch.zeros(1).bool())
    with pytest.raises(SettingError, match="reads turns"):
        step.tree()
    for wrong in (lambda: 1, lambda step, more: 1):
        with pytest.raises(SettingError, match=r"algorithm.*step"):
            algorithm_name(wrong)  # type: ignore[arg-type]
    assert algorithm_name(tmp_path / "mine.py") == str(tmp_path / "mine.py")
    by_run = open_algorithm(settings_of(algorithm_name(lambda step: step.rewards_B))).advantages(step)
    assert by_run.advantages_BT.tolist() == [[1.0, 1.0]]  # one number a run is that of its tokens
