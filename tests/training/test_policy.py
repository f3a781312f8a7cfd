"""The policy's gradients: what may change them, and what may not."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.tiny import VOCABULARY, agent, environment, random_trajectories, tiny_model, trajectory
from torch import Tensor
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM, PreTrainedModel

from coseek.data.errors import SettingError
from coseek.data.question import Question
from coseek.models.model import Request, SoFar
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.training.learning.batch import Batch, make_batch
from coseek.training.learning.critic import Critic
from coseek.training.learning.learner import Loss
from coseek.training.learning.policy import Policy
from coseek.training.rl.losses import loss_weights, policy_loss, target_logprobs
from coseek.training.settings import LearnerSettings, Normaliser, OptimiserSettings

MODEL = tiny_model()


def open_policy(model: PreTrainedModel = MODEL, micro_batch_tokens: int = 10_000) -> Policy:
    return Policy(model, LearnerSettings(micro_batch_tokens=micro_batch_tokens), updates=10)


def gradients(policy: Policy) -> dict[str, Tensor]:
    found = {name: weight.grad.clone() for name, weight in policy.module.named_parameters() if weight.grad is not None}
    policy.module.zero_grad(set_to_none=True)
    return found


def clipped_loss(batch: Batch, normaliser: Normaliser) -> tuple[Tensor, Loss]:
    """A policy loss with advantages that differ from row to row."""
    groups_B = torch.arange(len(batch)) // 2
    weights_BT = loss_weights(batch.agent_BT, normaliser, constant_tokens=9, groups_B=groups_B)
    advantages_B = torch.linspace(-1.0, 1.5, len(batch))

    def loss(new_bt: Tensor, rows_b: Tensor) -> Tensor:
        width = new_bt.shape[1]
        mask_bt = batch.agent_BT[rows_b, :width]
        advantages_bt = advantages_B[rows_b, None].expand_as(new_bt)
        token_bt = policy_loss(new_bt, batch.logprobs_BT[rows_b, :width], advantages_bt, mask_bt)
        return (token_bt * weights_BT[rows_b, :width]).sum()

    return batch.agent_BT, loss


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_changing_the_targets_that_the_environment_wrote_changes_no_gradient(seed: int) -> None:
    """The inputs of the forward pass are fixed; only what each position is asked to predict is changed."""
    rng = random.Random(seed)
    batch = make_batch(random_trajectories(4, rng))
    other_BT = torch.where(batch.agent_BT, batch.ids_BT, torch.randint(VOCABULARY, batch.ids_BT.shape))
    policy = open_policy()
    found: list[dict[str, Tensor]] = []
    for targets_BT in (batch.ids_BT, other_BT):
        hidden_BTD = policy.model.base_model(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        head = policy.model.get_output_embeddings()
        new_BT = target_logprobs(hidden_BTD, head, targets_BT, batch.agent_BT)
        _, loss = clipped_loss(batch, "token")
        loss(new_BT, torch.arange(len(batch))).backward()
        found.append(gradients(policy))
    assert found[0].keys() == found[1].keys() and found[0]
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


@pytest.mark.parametrize("normaliser", ["token", "sequence", "group", "constant"])
def test_cutting_a_batch_into_micro_batches_changes_no_gradient(normaliser: Normaliser) -> None:
    batch = make_batch(random_trajectories(12, random.Random(1)))
    whole, cut = open_policy(), open_policy(micro_batch_tokens=16)
    wanted_BT, loss = clipped_loss(batch, normaliser)
    first_loss = whole.forward_backward(batch, wanted_BT, loss)
    first = gradients(whole)
    second_loss = cut.forward_backward(batch, wanted_BT, loss)
    second = gradients(cut)
    largest = max(float((first[name] - second[name]).abs().max() / first[name].abs().max()) for name in first)
    print(f"{normaliser}: largest difference {largest:.1e} of a gradient's largest entry")
    assert first_loss == pytest.approx(second_loss, abs=1e-6)
    assert largest < 1e-5


def test_a_row_says_the_same_alone_and_padded_beside_a_longer_one() -> None:
    runs = random_trajectories(6, random.Random(2))
    policy = open_policy()
    together = make_batch(runs)
    said_BT = policy.forward(together, together.predicted_BT)
    for row, run in enumerate(runs):
        alone = make_batch([run])
        expected = policy.forward(alone, alone.predicted_BT)[0]
        assert torch.allclose(said_BT[row, : len(run.ids)], expected, atol=1e-5)


def test_the_policy_says_what_the_model_says() -> None:
    batch = make_batch(random_trajectories(3, random.Random(3)))
    with torch.no_grad():
        logits_BTV = MODEL(input_ids=batch.ids_BT).logits.log_softmax(-1)
    expected_BT = logits_BTV[:, :-1].gather(2, batch.ids_BT[:, 1:, None])[..., 0]
    said_BT = open_policy().forward(batch, batch.agent_BT)
    here = batch.agent_BT
    assert torch.allclose(said_BT[here], expected_BT[here[:, 1:]], atol=1e-5)
    assert not said_BT[~here].any()


def test_a_model_that_scales_its_logits_is_not_shortened_to_its_head() -> None:
    """Granite divides its logits; taking its last hidden state through its head alone would be another model."""
    config = GraniteConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, logits_scaling=4.0, pad_token_id=None, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GraniteForCausalLM(config).eval()
    batch = make_batch([trajectory(environment(3, 4), agent(5, 6))])
    with torch.no_grad():
        expected = model(input_ids=batch.ids_BT).logits.log_softmax(-1)[0, [1, 2], [5, 6]]
    assert torch.allclose(open_policy(model).forward(batch, batch.agent_BT)[0, 2:], expected, atol=1e-5)


def test_steps_toward_a_token_make_it_likelier_and_the_folder_keeps_that(tmp_path: Path) -> None:
    model = tiny_model(seed=5)
    policy = Policy(model, LearnerSettings(optimiser=OptimiserSettings(lr=1e-2)), updates=20)
    batch = make_batch([trajectory(environment(3, 4), agent(5))])
    before = float(policy.forward(batch, batch.agent_BT).sum())
    for _ in range(20):
        policy.forward_backward(batch, batch.agent_BT, lambda logprobs, _: -logprobs.sum())
        policy.optim_step()
    after = float(policy.forward(batch, batch.agent_BT).sum())
    assert after > before + 1.0
    policy.save(tmp_path / "policy")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert float(open_policy(again).forward(batch, batch.agent_BT).sum()) == pytest.approx(after, abs=1e-5)


def test_rollouts_to_train_on_are_sampled_from_the_whole_softmax_at_the_policys_temperature() -> None:
    """Trap 15: a nucleus in the rollouts and a full softmax in the trainer are two policies."""
    policy, tokenizer = open_policy(), ByteTokenizer()
    assert policy.sampler(tokenizer, (), SamplerSettings()).settings.temperature == 1.0
    for other in (SamplerSettings(top_p=0.95), SamplerSettings(top_k=5), SamplerSettings(temperature=0.7)):
        with pytest.raises(SettingError, match=r"whole softmax at temperature 1\.0, not temperature"):
            policy.sampler(tokenizer, (), other)


def test_bfloat16_arithmetic_stays_near_float32() -> None:
    batch = make_batch(random_trajectories(3, random.Random(4)))
    exact = open_policy().forward(batch, batch.agent_BT)
    rough = Policy(MODEL, LearnerSettings(precision="bfloat16"), 1).forward(batch, batch.agent_BT)
    assert rough.dtype is torch.float32
    assert 0 < float((exact - rough).abs().max()) < 0.2


def test_the_critic_begins_at_zero_and_sees_nothing_of_the_token_it_speaks_of() -> None:
    critic = Critic(MODEL, LearnerSettings(optimiser=OptimiserSettings(lr=1e-2)), 20)
    first = make_batch([trajectory(environment(3, 4), agent(5, 6))])
    assert not critic.forward(first, first.agent_BT).any()
    for _ in range(10):
        critic.forward_backward(first, first.agent_BT, lambda values, _: (values - 1.0)[:, 2:].square().sum())
        critic.optim_step()
    second = make_batch([trajectory(environment(3, 4), agent(5, 9))])
    values, others = critic.forward(first, first.agent_BT), critic.forward(second, second.agent_BT)
    assert float(values[0, 3]) > 0.3
    assert torch.allclose(values, others, atol=1e-6)  # token 3 differs, and its value is that of the state before it


def test_a_sampler_made_before_training_writes_with_the_trained_weights() -> None:
    """Fused AdamW does not count up a weight's version: a sampler that waited for that would stay with the old ones."""
    model = tiny_model()
    trained = Policy(model, LearnerSettings(optimiser=OptimiserSettings(lr=0.05)), updates=3)
    tokenizer = ByteTokenizer()
    sampler = Sampler(model, tokenizer, ("#",), SamplerSettings())
    request = Request(0, (1, 2, 3, 4), 6, 5, SoFar(Question("q", "?")))
    for _ in range(3):
        sampler.start(request)
        [turn] = sampler.step()
        sampler.close(0)
        ids = torch.tensor([[*request.ids, *turn.ids]])
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(ids.shape), torch.tensor([ids.shape[1]]))
        said = trained.forward(batch, batch.predicted_BT)[0, len(request.ids) :]
        assert torch.allclose(said, torch.tensor(turn.logprobs), atol=1e-4)
        trained.forward_backward(batch, batch.predicted_BT, lambda logprobs, _: -logprobs.mean())
        trained.optim_step()
