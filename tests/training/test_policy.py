"""The policy's gradients: what may change them, and what may not."""

import gc
import json
import random
from functools import cached_property
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.training.tiny import (
    VOCABULARY,
    agent,
    clipped_losses,
    environment,
    random_trajectories,
    seeded,
    tiny_model,
    trajectory,
)
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from coseek.core.errors import SettingError
from coseek.data.question import Question
from coseek.hardware.placement import Placement, Precision
from coseek.models.lora import merged_state_dict
from coseek.models.model import EpisodeState, Request
from coseek.models.model_folder import shape_of_config
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.training.learner.batch import Batch, make_batch
from coseek.training.learner.learner import Loss
from coseek.training.learner.logprobs import target_logprobs
from coseek.training.learner.policy import ADAPTER, Critic, Policy, ValueModule, learner_placement, load_learner
from coseek.training.learner.settings import LearnerSettings, LoraSettings, OptimizerSettings, pass_bytes
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.rl.losses import loss_weights
from coseek.training.rl.settings import LossAggMode

MODEL = tiny_model()


def open_policy(model: PreTrainedModel = MODEL, micro_batch_tokens: int = 10_000) -> Policy:
    return Policy(model, LearnerSettings(micro_batch_tokens=micro_batch_tokens), total_updates=10)


def gradients(policy: Policy) -> dict[str, Tensor]:
    grads = {name: weight.grad.clone() for name, weight in policy.module.named_parameters() if weight.grad is not None}
    policy.module.zero_grad(set_to_none=True)
    return grads


def clipped_loss(batch: Batch, loss_agg_mode: LossAggMode) -> tuple[Tensor, Loss]:
    """A policy loss with advantages that differ from row to row."""
    groups_B = torch.arange(len(batch)) // 2
    weights_BT = loss_weights(batch.agent_BT, loss_agg_mode, loss_scale_factor=9, groups_B=groups_B)
    advantages_B = torch.linspace(-1.0, 1.5, len(batch))

    def loss(new_bt: Tensor, rows_b: Tensor) -> Tensor:
        width = new_bt.shape[1]
        mask_bt = batch.agent_BT[rows_b, :width]
        advantages_bt = advantages_B[rows_b, None].expand_as(new_bt)
        token_bt = clipped_losses(new_bt, batch.logprobs_BT[rows_b, :width], advantages_bt, mask_bt)
        return (token_bt * weights_BT[rows_b, :width]).sum()

    return batch.agent_BT, loss


def test_changing_the_targets_that_the_environment_wrote_changes_no_gradient() -> None:
    """The inputs of the forward pass are fixed; only what each position is asked to predict is changed."""
    batch = make_batch(random_trajectories(4, random.Random(0)))
    other_BT = torch.where(batch.agent_BT, batch.ids_BT, torch.randint(VOCABULARY, batch.ids_BT.shape))
    policy = open_policy()
    computed: list[dict[str, Tensor]] = []
    for targets_BT in (batch.ids_BT, other_BT):
        hidden_BTD = policy.model.base_model(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        head = policy.model.get_output_embeddings()
        new_BT = target_logprobs(hidden_BTD, head, targets_BT, batch.agent_BT)
        _, loss = clipped_loss(batch, "token-mean")
        loss(new_BT, torch.arange(len(batch))).backward()
        computed.append(gradients(policy))
    assert computed[0].keys() == computed[1].keys() and computed[0]
    for name, gradient in computed[0].items():
        assert torch.equal(gradient, computed[1][name]), name


@pytest.mark.parametrize("architecture", ["lfm2", "granite"])
def test_log_probabilities_are_those_of_the_model(architecture: str) -> None:
    """Granite divides its logits; taking its last hidden state through its head alone would be another model."""
    model, batch = small_model(architecture), make_batch(random_trajectories(3, random.Random(3)))
    with torch.no_grad():
        logits_BTV = model(input_ids=batch.ids_BT).logits.log_softmax(-1)
    expected_BT = logits_BTV[:, :-1].gather(2, batch.ids_BT[:, 1:, None])[..., 0]
    said_BT = open_policy(model).forward(batch, batch.agent_BT)
    here = batch.agent_BT
    assert torch.allclose(said_BT[here], expected_BT[here[:, 1:]], atol=1e-5)
    assert not said_BT[~here].any()


def test_steps_toward_a_token_make_it_likelier_and_the_folder_keeps_that(tmp_path: Path) -> None:
    model = tiny_model(seed=5)
    policy = Policy(model, LearnerSettings(optimizer=OptimizerSettings(lr=1e-2)), total_updates=20)
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


def trained_in_step(policy: Policy, sampler: Sampler, tolerance: float) -> None:
    """Three times: compare the log-probabilities of sampler and policy, then update the policy."""
    request = Request(0, (1, 2, 3, 4), 6, 5, EpisodeState(Question("q", "?")))
    for _ in range(3):
        sampler.start(request)
        [turn] = sampler.step()
        sampler.close(0)
        ids = torch.tensor([[*request.ids, *turn.ids]])
        batch = Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(ids.shape), torch.tensor([ids.shape[1]]))
        logprobs = policy.forward(batch, batch.predicted_BT)[0, len(request.ids) :]
        assert torch.allclose(logprobs, torch.tensor(turn.logprobs), atol=tolerance)
        policy.forward_backward(batch, batch.predicted_BT, lambda logprobs, _: -logprobs.mean())
        policy.optim_step()


def test_a_sampler_made_before_training_writes_with_the_trained_weights() -> None:
    """Fused AdamW does not count up a weight's version: a sampler that waited for that would stay with the old ones."""
    model = tiny_model()
    trained = Policy(model, LearnerSettings(optimizer=OptimizerSettings(lr=0.05)), total_updates=3)
    sampler = Sampler(model, ByteTokenizer(), ("#",), SamplerSettings())
    trained_in_step(trained, sampler, 1e-4)


def lora_policy(model: PreTrainedModel, rank: int = 4, lr: float = 0.05) -> Policy:
    settings = LearnerSettings(optimizer=OptimizerSettings(lr=lr), lora=LoraSettings(rank=rank, alpha=8.0))
    return Policy(model, settings, total_updates=20)


def raise_likelihood(policy: Policy, batch: Batch, times: int) -> None:
    for _ in range(times):
        policy.forward_backward(batch, batch.agent_BT, lambda logprobs, _: -logprobs.mean())
        policy.optim_step()


def granite() -> PreTrainedModel:
    """An architecture that divides its logits."""
    config = GraniteConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, logits_scaling=4.0, pad_token_id=None, bos_token_id=None, eos_token_id=1,
    )  # fmt: skip
    return seeded(GraniteForCausalLM, config)


def small_model(architecture: str) -> PreTrainedModel:
    return tiny_model() if architecture == "lfm2" else granite()


def test_an_adapter_begins_as_the_model_learns_and_leaves_the_weights_alone() -> None:
    model = tiny_model(seed=6)
    batch = make_batch(random_trajectories(4, random.Random(6)))
    before = Policy(tiny_model(seed=6), LearnerSettings(), 1).forward(batch, batch.agent_BT)
    policy = lora_policy(model)
    assert torch.equal(policy.forward(batch, batch.agent_BT), before)
    frozen = {name: weight.clone() for name, weight in model.state_dict().items() if "lora_" not in name}
    raise_likelihood(policy, batch, 10)
    assert float(policy.forward(batch, batch.agent_BT).sum()) > float(before.sum()) + 1.0
    assert all(torch.equal(weight, frozen[name]) for name, weight in model.state_dict().items() if name in frozen)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == policy.weights().keys() and all("lora_" in name for name in trained)


def test_the_reference_of_an_adapter_is_the_model_without_it_and_no_second_copy() -> None:
    model = tiny_model(seed=6)
    batch = make_batch(random_trajectories(4, random.Random(6)))
    policy = lora_policy(model)
    policy.temperature = 0.5
    reference = policy.frozen_copy()
    before = reference.forward(batch, batch.agent_BT)
    plain = Policy(tiny_model(seed=6), LearnerSettings(), 1, 0.5).frozen_copy()
    assert torch.equal(plain.forward(batch, batch.agent_BT), before) and reference.settings.lora is None
    raise_likelihood(policy, batch, 3)
    assert torch.equal(reference.forward(batch, batch.agent_BT), before)
    assert not torch.equal(policy.forward(batch, batch.agent_BT), before)
    assert reference.module is policy.module and reference.weights() == {}


@pytest.mark.parametrize("architecture", ["lfm2", "granite"])
@pytest.mark.parametrize("cut", [10_000, 16])
def test_an_adapter_has_the_same_gradient_however_its_batch_is_cut(architecture: str, cut: int) -> None:
    """Also where logits are more than the output layer: the model's own arithmetic is the judge."""
    batch = make_batch(random_trajectories(6, random.Random(7)))
    target_mask_BT, loss = clipped_loss(batch, "token-mean")
    models = [small_model(architecture) for _ in range(2)]
    settings = LearnerSettings(lora=LoraSettings(rank=2), micro_batch_tokens=cut)
    first, second = (Policy(model, settings, 1) for model in models)
    for policy in (first, second):
        for number, weight in enumerate(policy.weights().values()):
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) * 0.1)
    first.forward_backward(batch, target_mask_BT, loss)
    logits_BTV = models[1](input_ids=batch.ids_BT, use_cache=False).logits[:, :-1].log_softmax(-1)
    said_BT = torch.zeros(target_mask_BT.shape).masked_scatter(
        target_mask_BT, logits_BTV.gather(2, batch.ids_BT[:, 1:, None])[..., 0][target_mask_BT[:, 1:]]
    )
    loss(said_BT, torch.arange(len(batch))).backward()
    computed, expected = gradients(first), gradients(second)
    assert computed.keys() == expected.keys() == first.weights().keys()
    for name, gradient in computed.items():
        assert torch.allclose(gradient, expected[name], rtol=1e-4, atol=1e-6), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", ["lfm2", "granite"])
def test_a_sampler_writes_with_the_adapter_as_it_is_now(architecture: str, dtype: Precision) -> None:
    """One engine joins weights, one copies them into another precision, one runs the module itself."""
    model = small_model(architecture)
    sampler = Sampler(model, ByteTokenizer(), ("#",), SamplerSettings(dtype=dtype))  # before the adapter is there
    policy = lora_policy(model)
    trained_in_step(policy, sampler, 1e-4 if dtype == "float32" else 0.1)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft's, of transformers
def test_the_folder_of_an_adapted_policy_is_an_ordinary_one_with_an_adapter_beside_it_that_peft_reads(
    tmp_path: Path,
) -> None:
    batch = make_batch(random_trajectories(4, random.Random(8)))
    policy = lora_policy(tiny_model(seed=5))
    raise_likelihood(policy, batch, 3)
    logprobs = policy.forward(batch, batch.agent_BT)
    policy.save(tmp_path / "policy")
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert torch.allclose(open_policy(whole).forward(batch, batch.agent_BT), logprobs, atol=1e-5)
    adapter = load_file(tmp_path / "policy" / ADAPTER / "adapter_model.safetensors")
    assert len(adapter) == len(policy.weights())
    config = json.loads((tmp_path / "policy" / ADAPTER / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"], config["inference_mode"]) == (4, 8.0, 0.0, True)
    fresh = lora_policy(tiny_model(seed=5))
    fresh.save(tmp_path / "fresh")
    assert not (tmp_path / "fresh" / ADAPTER).exists()  # as long as it changes nothing
    peft = pytest.importorskip("peft")
    adapted = peft.PeftModel.from_pretrained(tiny_model(seed=5), tmp_path / "policy" / ADAPTER)
    assert torch.allclose(open_policy(adapted.merge_and_unload()).forward(batch, batch.agent_BT), logprobs, atol=1e-5)


def held_bytes() -> dict[int, int]:
    """Bytes of the storage of every tensor that is alive, by address."""
    gc.collect()
    alive = [tensor for tensor in gc.get_objects() if isinstance(tensor, Tensor) and tensor.device.type == "cpu"]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}


@pytest.mark.medium
def test_adapters_train_and_sample_over_one_copy_of_weights_in_bfloat16(tmp_path: Path) -> None:
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=512, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, pad_token_id=None, bos_token_id=None, eos_token_id=1, max_position_embeddings=256,
    )  # fmt: skip
    seeded(Qwen2ForCausalLM, config).save_pretrained(tmp_path)
    settings = LearnerSettings(lora=LoraSettings(rank=2), precision="bfloat16", optimizer=OptimizerSettings(lr=0.01))
    placement = Placement(device="cpu", precision="bfloat16")
    exact = learner_placement(Placement(device="cpu", precision="float32"), settings, ALONE, 64)
    assert exact.precision == "float32"  # which its sampler shares
    before = held_bytes()
    policy = Policy(load_learner(tmp_path, placement, settings, ALONE), settings, 5)
    numbers = sum(weight.numel() for weight in policy.model.parameters() if not weight.requires_grad)
    sampler = policy.sampler(ByteTokenizer(), ("#",), SamplerSettings(dtype="bfloat16", max_rows=2, max_tokens=64))
    trained_in_step(policy, sampler, 0.1)
    held = sum(size for address, size in held_bytes().items() if address not in before)
    assert 2 * numbers <= held < 3 * numbers  # two bytes each, and less than half of that for all else
    critic = Critic(policy.model, LearnerSettings(), 1)
    assert {weight.dtype for weight in critic.module.parameters()} == {torch.float32}  # these are trained


def test_a_critic_of_an_adapted_policy_is_a_plain_trunk_that_trains_whole() -> None:
    batch = make_batch(random_trajectories(2, random.Random(9)))
    policy = lora_policy(tiny_model())
    raise_likelihood(policy, batch, 2)
    critic = Critic(policy.model, LearnerSettings(), 1)
    assert all(weight.requires_grad for weight in critic.module.parameters())
    assert not any("lora_" in name for name in critic.weights())
    adapted = Critic(policy.model, LearnerSettings(lora=LoraSettings()), 1)
    assert {"head.weight", "head.bias"} < adapted.weights().keys() and len(adapted.weights()) < len(
        critic.weights()
    ) * 3


def test_an_unknown_lora_target_is_refused_by_name() -> None:
    with pytest.raises(SettingError, match=r"'qproj'; did you mean 'q_proj'\? Known: .*v_proj"):
        Policy(tiny_model(), LearnerSettings(lora=LoraSettings(target_modules=("qproj",))), 1)
    named = Policy(tiny_model(), LearnerSettings(lora=LoraSettings(target_modules=("q_proj",))), 1)
    assert len(named.weights()) == 2


def test_a_micro_batch_in_bytes_is_a_count_of_tokens_and_the_same_gradient() -> None:
    batch = make_batch(random_trajectories(6, random.Random(7)))
    target_mask_BT, loss = clipped_loss(batch, "token-mean")
    results = []
    for learner in (LearnerSettings(), LearnerSettings(micro_batch_gib=1e-4)):
        policy = Policy(tiny_model(), learner, 1)
        policy.forward_backward(batch, target_mask_BT, loss)
        results.append((policy._micro_batch_tokens, gradients(policy)))
    shape = shape_of_config(tiny_model().config.to_dict())
    (_, whole), (tokens, parts) = results
    assert tokens * pass_bytes(shape, LearnerSettings(), 1, 1) <= 1e-4 * 2**30
    assert (tokens + 1) * pass_bytes(shape, LearnerSettings(), 1, 1) > 1e-4 * 2**30
    assert tokens < len(batch) * int(batch.lengths_B.max())
    assert all(torch.allclose(value, whole[name], rtol=1e-4, atol=1e-6) for name, value in parts.items())


def test_all_samplers_of_a_policy_share_one_copy_of_the_weights() -> None:
    policy = Policy(granite(), LearnerSettings(), 1)
    settings = SamplerSettings(dtype="bfloat16")
    sampled = policy.sampler(ByteTokenizer(), (), settings)
    greedy = policy.sampler(ByteTokenizer(), (), settings.model_copy(update={"temperature": 0.0}), on_policy=False)
    assert sampled._engine is greedy._engine


class Gathered(Policy):
    """A policy of two workers whose weights are where this one can read them all."""

    @cached_property
    def _entry(self) -> nn.Module:
        return self.entry()


def redraw(policy: Policy, seed: int) -> None:
    for number, weight in enumerate(policy.weights().values()):
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(10 * seed + number)) * 0.1)


def test_samplers_of_a_sharded_policy_have_whole_copies_that_follow_it_and_can_be_freed() -> None:
    settings = LearnerSettings(lora=LoraSettings(rank=2), strategy="fsdp2")
    policy = Gathered(tiny_model(), settings, 5, workers=Workers(0, 2))
    redraw(policy, 0)  # an adapter that is not as it began
    assert {weight.device.type for weight in policy._skeleton.parameters()} == {"meta"}  # and no third copy
    copies = {dtype: policy.whole_model(dtype) for dtype in (torch.float32, torch.bfloat16)}
    sampler = policy.sampler(ByteTokenizer(), (), SamplerSettings(dtype="bfloat16"))
    assert sampler._engine is policy._engines[torch.bfloat16] and policy.whole_model() is copies[torch.float32]
    for seed in range(2):
        expected = merged_state_dict(policy.model)
        for dtype, copied in copies.items():
            state = copied.state_dict()
            assert state.keys() == expected.keys() and not copied.training
            assert all(torch.equal(weight, expected[name].to(dtype)) for name, weight in state.items())
            assert {(weight.dtype, weight.requires_grad) for weight in copied.parameters()} == {(dtype, False)}
            assert copied.get_output_embeddings().weight is copied.get_input_embeddings().weight
        redraw(policy, seed + 1)
        policy.release()
        assert not any(weight.untyped_storage().nbytes() for copy in copies.values() for weight in copy.parameters())
        policy.refresh()
    whole = Policy(tiny_model(), LearnerSettings(), 1)
    assert whole.whole_model() is whole.model


@pytest.mark.parametrize(
    ("strategy", "world", "device"), [("fsdp2", 2, "cpu"), ("fsdp2", 1, "cuda:1"), ("ddp", 2, "cuda:1")]
)
def test_weights_that_will_be_sharded_are_loaded_where_they_have_room(strategy: str, world: int, device: str) -> None:
    settings = LearnerSettings.model_validate({"strategy": strategy})
    wanted = Placement(device="cuda:1", precision="bfloat16")
    placement = learner_placement(wanted, settings, Workers(0, world), 64)
    assert (placement.device, placement.precision) == (device, "float32")


def batch() -> Batch:
    return make_batch(
        [trajectory(environment(1, 4), agent(2, 3)), trajectory(environment(1), agent(5, 6, 7), agent(8))]
    )


def critic_of(seed: int = 0) -> Critic:
    return Critic(tiny_model(seed), LearnerSettings(optimizer=OptimizerSettings(lr=1e-2)), 4)


def module_of(critic: Critic) -> ValueModule:
    assert isinstance(critic.module, ValueModule)
    return critic.module


def test_the_values_of_an_untrained_critic_are_0() -> None:
    rows = batch()
    assert critic_of().forward(rows, rows.agent_BT).tolist() == [[0.0] * 5] * 2
    assert critic_of().weights()["head.weight"].shape == (1, 16)


def test_the_critic_learns_from_a_trunk_of_its_own() -> None:
    policy = tiny_model()
    critic = Critic(policy, LearnerSettings(optimizer=OptimizerSettings(lr=1e-2)), 4)
    before = {name: weight.clone() for name, weight in policy.state_dict().items()}
    trunk = {name: weight.clone() for name, weight in module_of(critic).trunk.state_dict().items()}
    rows = batch()
    for _ in range(2):  # at first only the head has a gradient: its weights are zero
        critic.forward_backward(rows, rows.agent_BT, lambda values, rows: (values - 1.0).square().sum())
        assert critic.optim_step() > 0
    assert all(torch.equal(weight, before[name]) for name, weight in policy.state_dict().items())
    assert any(not torch.equal(weight, trunk[name]) for name, weight in module_of(critic).trunk.state_dict().items())


def test_a_value_is_that_of_the_state_before_its_token() -> None:
    critic, policy, rows = critic_of(), tiny_model(), batch()
    with torch.no_grad():
        module_of(critic).head.weight.fill_(0.5)
        module_of(critic).head.bias.fill_(0.25)
        hidden_BTD = policy.base_model(input_ids=rows.ids_BT, use_cache=False).last_hidden_state
    expected_BT = torch.zeros(2, 5)
    expected_BT[:, 1:] = 0.5 * hidden_BTD.sum(dim=2)[:, :-1] + 0.25
    expected_BT = torch.where(rows.agent_BT, expected_BT, 0.0)
    assert torch.allclose(critic.forward(rows, rows.agent_BT), expected_BT, atol=1e-5)
