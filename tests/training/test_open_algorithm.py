"""Which setting follows the length of a run, and a file that is no algorithm."""

from pathlib import Path

import pytest
import torch
from tests.training.echo import settings_of

from coseek.core.errors import SettingError
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.rl.algorithm import StepRewards, open_algorithm, spread_over_steps

FALLING = LearnerSettings(optimizer=OptimizerSettings(lr_scheduler_type="linear"))
LEVEL = LearnerSettings(optimizer=OptimizerSettings(lr_scheduler_type="constant"))


@pytest.mark.parametrize(
    ("algorithm", "policy", "critic", "name"),
    [
        ("grpo", LEVEL, FALLING, ""),  # GRPO trains no critic
        ("ppo", LEVEL, LEVEL, ""),
        ("ppo", LEVEL, FALLING, "rl.critic.optimizer.lr_scheduler_type"),
        ("ppo", FALLING, FALLING, "rl.policy.optimizer.lr_scheduler_type"),
        ("grpo", FALLING, LEVEL, "rl.policy.optimizer.lr_scheduler_type"),
    ],
)
def test_a_decaying_rate_of_a_model_that_is_trained_follows_the_steps(
    algorithm: str, policy: LearnerSettings, critic: LearnerSettings, name: str
) -> None:
    assert spread_over_steps(settings_of(algorithm, policy=policy, critic=critic)) == name


def test_a_run_alone_in_its_group_has_no_advantage_unless_groups_are_of_one() -> None:
    def compared(group_size: int, *groups: tuple[int, ...]) -> list[float]:
        rewards_B, mask_BT = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64), torch.ones(3, 2, dtype=torch.bool)
        step = StepRewards(rewards_B, torch.full((3, 2), 0.25), mask_BT, groups, group_size, torch.zeros(3).bool())
        advantages_B = step.compare_groups(lambda rewards_G: rewards_G.float())
        assert advantages_B.dtype == torch.float32
        found: list[float] = advantages_B.tolist()
        return found

    assert compared(2, (0, 2), (1,)) == [0.5, 0.0, 4.5]  # each less the KL of its two tokens
    assert compared(3, (0, 2), (1,)) == [0.5, 0.0, 4.5]
    assert compared(1, (0,), (1,), (2,)) == [0.5, 2.5, 4.5]


def test_a_users_algorithm_that_returns_nan_is_named_and_a_nan_of_the_model_is_not_its_fault(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(
        "from coseek.training.rl.algorithm import GroupSettings as SETTINGS\n"
        "def advantages(step, settings): return step.every_token(step.rewards_B.float() / step.rewards_B)\n"
    )
    mask_BT = torch.tensor([[False, False], [True, True], [False, True]])

    def step(penalty: float) -> StepRewards:
        rewards_B = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
        return StepRewards(rewards_B, torch.full((3, 2), penalty), mask_BT, ((0, 1, 2),), 3, torch.zeros(3).bool())

    with pytest.raises(SettingError, match=r"the algorithm mine returned advantages that are not finite \(row 2\)"):
        open_algorithm(settings_of(str(own))).advantages(step(0.0))
    open_algorithm(settings_of(str(own))).advantages(step(float("nan")))  # the gradient will say so
