"""The update may not depend on how a step is cut up: micro-batches, their order, the order of the rows."""

import random

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.training.echo import settings_of
from tests.training.tiny import random_trajectories, tiny_model
from torch import Tensor

from coseek.rewards.reward import Reward
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import score
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import update_weights

ROWS = 8
# With eps far above any gradient, a first step of AdamW is the gradient times a constant: weights show gradients.
LINEAR = OptimizerSettings(lr=1e3, eps=1e3, max_grad_norm=0.0)
TOLERANCE = 1e-11


def choice_of(algorithm: str, loss_agg_mode: str) -> RlSettings:
    leash = {"kl_coef": 0.3, "entropy_coef": 0.1} if algorithm == "grpo" else {}
    return settings_of(
        algorithm, loss_agg_mode=loss_agg_mode, loss_scale_factor=9, num_minibatches=1, group_size=4, **leash
    )


def experience_of(choice: RlSettings, seed: int, order: list[int]) -> Experience:
    """A step of two groups, its rows in this order."""
    rng = random.Random(seed)
    runs = random_trajectories(ROWS, rng)
    paid = {id(run): Reward(rng.uniform(-1, 1)) for run in runs}
    episodes = score([row // 4 for row in order], [runs[row] for row in order], lambda run: paid[id(run)])
    backend = LocalBackend(Policy(tiny_model(), choice.policy, 1), choice)
    backend.reference = Policy(tiny_model(1), choice.policy, 1)
    return make_experience(episodes, choice, open_algorithm(choice), backend)


def weights_after(experience: Experience, choice: RlSettings, micro_batch_tokens: int) -> list[Tensor]:
    """All weights after one update of a network in float64."""
    learner = LearnerSettings(optimizer=LINEAR, micro_batch_tokens=micro_batch_tokens)
    choice = choice.model_copy(update={"critic": learner})
    backend = LocalBackend(Policy(tiny_model().double(), learner, 1), choice)
    if backend.critic is not None:
        backend.critic.module.double()
    update_weights(experience, choice, open_algorithm(choice), backend, random.Random(micro_batch_tokens))
    return [weight.detach() for weight in backend.policy.module.parameters()]


PAIRS = [
    *(("grpo", mode) for mode in ("token-mean", "seq-mean-token-mean", "group-mean", "seq-mean-token-sum-norm")),
    *((algorithm, "group-mean") for algorithm in ("ppo", "rloo", "reinforce-pp")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "loss_agg_mode"), PAIRS)
@given(seed=st.integers(0, 10_000), tokens=st.integers(1, 60))
@settings(max_examples=3)
def test_the_update_is_the_same_however_a_step_is_cut_and_shuffled(
    algorithm: str, loss_agg_mode: str, seed: int, tokens: int
) -> None:
    choice = choice_of(algorithm, loss_agg_mode)
    experience = experience_of(choice, seed, list(range(ROWS)))
    before = [weight.detach() for weight in tiny_model().double().parameters()]
    # Another micro-batch size brings another number of backward passes, and another seed of the shuffle.
    whole, cut = weights_after(experience, choice, 10_000), weights_after(experience, choice, tokens)
    assert any(float((old - new).abs().max()) > 1e-6 for old, new in zip(before, whole, strict=True))
    for first, second in zip(whole, cut, strict=True):
        assert float((first - second).abs().max()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "ppo", "rloo", "reinforce-pp"])
def test_the_order_in_which_runs_come_changes_no_advantage_and_no_update(algorithm: str) -> None:
    choice = choice_of(algorithm, "group-mean")
    order = random.Random(3).sample(range(ROWS), k=ROWS)
    straight, shuffled = experience_of(choice, 5, list(range(ROWS))), experience_of(choice, 5, order)
    assert torch.allclose(straight.advantages_BT[order], shuffled.advantages_BT, atol=1e-6)
    first, second = weights_after(straight, choice, 10_000), weights_after(shuffled, choice, 10_000)
    assert all(torch.allclose(tensor, other, atol=1e-6) for tensor, other in zip(first, second, strict=True))
