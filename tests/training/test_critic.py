"""Fears about the critic: it trains the policy's own weights, values the wrong state, or begins with an opinion."""

import torch
from tests.training.tiny import agent, environment, tiny_model, trajectory

from coseek.training.learner.batch import Batch, make_batch
from coseek.training.learner.policy import Critic, ValueModule
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings


def batch() -> Batch:
    return make_batch(
        [trajectory(environment(1, 4), agent(2, 3)), trajectory(environment(1), agent(5, 6, 7), agent(8))]
    )


def critic_of(seed: int = 0) -> Critic:
    return Critic(tiny_model(seed), LearnerSettings(optimizer=OptimizerSettings(lr=1e-2)), 4)


def module_of(critic: Critic) -> ValueModule:
    assert isinstance(critic.module, ValueModule)
    return critic.module


def test_an_untrained_critic_values_everything_at_nothing() -> None:
    found = batch()
    assert critic_of().forward(found, found.agent_BT).tolist() == [[0.0] * 5] * 2
    assert critic_of().weights()["head.weight"].shape == (1, 16)


def test_the_critic_learns_from_a_trunk_of_its_own() -> None:
    policy = tiny_model()
    critic = Critic(policy, LearnerSettings(optimizer=OptimizerSettings(lr=1e-2)), 4)
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    trunk = {name: weight.clone() for name, weight in module_of(critic).trunk.state_dict().items()}
    found = batch()
    for _ in range(2):  # at first only the head has a gradient: its weights are zero
        critic.forward_backward(found, found.agent_BT, lambda values, rows: (values - 1.0).square().sum())
        assert critic.optim_step() > 0
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())
    assert any(not torch.equal(weight, trunk[name]) for name, weight in module_of(critic).trunk.state_dict().items())


def test_a_value_is_that_of_the_state_before_its_token() -> None:
    critic, policy, found = critic_of(), tiny_model(), batch()
    with torch.no_grad():
        module_of(critic).head.weight.fill_(0.5)
        module_of(critic).head.bias.fill_(0.25)
        hidden_BTD = policy.base_model(input_ids=found.ids_BT, use_cache=False).last_hidden_state
    expected_BT = torch.zeros(2, 5)
    expected_BT[:, 1:] = 0.5 * hidden_BTD.sum(dim=2)[:, :-1] + 0.25
    expected_BT = torch.where(found.agent_BT, expected_BT, 0.0)
    assert torch.allclose(critic.forward(found, found.agent_BT), expected_BT, atol=1e-5)
