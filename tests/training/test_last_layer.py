"""Trimming: what runs on some positions alone, how that is found out, and that no gradient can tell; and rows that
share what they begin with."""

import copy
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings, strategies as st
from tests.training.tiny import VOCABULARY, agent, environment, random_trajectories, seeded, tiny_model, trajectory
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from coseek.core.errors import SettingError
from coseek.data.trajectory import Trajectory
from coseek.training.learner.batch import Batch, before, make_batch
from coseek.training.learner.logprobs import Entropy, reduced_last_layer, reducible_parts
from coseek.training.learner.policy import Critic, Policy
from coseek.training.learner.prefixes import PrefixTree, tree_micro_batches
from coseek.training.learner.settings import LearnerSettings, LoraSettings

SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.3,
}  # fmt: skip


def qwen() -> PreTrainedModel:
    return seeded(Qwen2ForCausalLM, Qwen2Config.from_dict(SHAPE))


def gemma() -> PreTrainedModel:
    return seeded(Gemma2ForCausalLM, Gemma2Config.from_dict({**SHAPE, "head_dim": 8}))


def batch_of(seed: int) -> Batch:
    return make_batch(random_trajectories(5, random.Random(seed)))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


def agree(module: nn.Module, other: nn.Module) -> None:
    computed, expected = gradients(module), gradients(other)
    assert computed.keys() == expected.keys() and computed
    for name, gradient in expected.items():
        assert float((computed[name] - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name


def parts_of(model: PreTrainedModel) -> set[str]:
    """What may be trimmed of the second layer."""
    return {name.removeprefix("layers.1.") for name in reducible_parts(model.base_model)}


def test_keys_and_values_are_read_everywhere_and_the_rest_of_the_last_layer_is_not() -> None:
    attention = {"attention", "self_attn.q_proj", "self_attn.q_layernorm", "self_attn.out_proj"}
    assert parts_of(tiny_model()) == {*attention, "feed_forward", "ffn_norm"}
    assert parts_of(tiny_model(layers=("full_attention", "conv"))) == {"conv.out_proj", "feed_forward", "ffn_norm"}


def test_other_architectures_are_tested_for_reducible_parts() -> None:
    attention = {"attention", "self_attn.q_proj", "self_attn.o_proj"}
    norms = {f"{name}_layernorm" for name in ("post_attention", "pre_feedforward", "post_feedforward")}
    assert parts_of(qwen()) == {*attention, "mlp", "post_attention_layernorm"}
    # Gemma caps its scores, which no fused attention does; its own is left as it is.
    assert parts_of(gemma()) == {*attention, "mlp", *norms} - {"attention"}


def test_attention_whose_output_is_still_zero_does_not_make_its_input_look_unread() -> None:
    """A layer may begin at 0: what it is fed would change nothing yet, and everything later."""
    model = tiny_model()
    projection = model.get_submodule("model.layers.1.self_attn.out_proj")
    assert isinstance(projection, nn.Linear)
    nn.init.zeros_(projection.weight)
    assert parts_of(model) == parts_of(tiny_model())


def test_a_part_that_goes_by_its_position_is_left_alone() -> None:
    class Numbered(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + torch.arange(input.shape[1])[:, None]

    model = tiny_model()
    numbered = Numbered(24, 16, bias=False)
    layer = model.get_submodule("model.layers.1")
    layer.get_submodule("feed_forward").w2 = numbered
    assert parts_of(model).isdisjoint({"feed_forward", "feed_forward.w2"})
    assert parts_of(model) >= {"ffn_norm", "feed_forward.w1", "feed_forward.w3"}


def test_a_model_without_layers_that_are_known_is_not_trimmed() -> None:
    assert reducible_parts(nn.Linear(2, 2)) == ()


@pytest.mark.parametrize("make", [tiny_model, qwen, gemma])
@pytest.mark.parametrize("seed", range(3))
def test_a_reduced_layer_has_the_same_gradient(make: Callable[[], PreTrainedModel], seed: int) -> None:
    model = make()
    batch = batch_of(seed)
    looked_BT = before(batch.agent_BT)
    direction_ND = torch.randn(int(looked_BT.sum()), 16)
    other = copy.deepcopy(model)
    for tested, names in ((model, reducible_parts(model.base_model)), (other, ())):
        with reduced_last_layer(tested.base_model, names, looked_BT):
            hidden_BTD = tested.base_model(input_ids=batch.ids_BT, use_cache=False).last_hidden_state
        (hidden_BTD[looked_BT] * direction_ND).sum().backward()
    agree(model, other)


def test_the_network_is_as_it_was_afterwards_even_if_it_failed() -> None:
    """The sampler writes with the same module."""
    model = tiny_model()
    batch = batch_of(0)
    plain_BTV = model(input_ids=batch.ids_BT).logits
    with (
        pytest.raises(IndexError),
        reduced_last_layer(model.base_model, reducible_parts(model.base_model), batch.agent_BT),
    ):
        model(input_ids=batch.ids_BT[:, :2])
    assert torch.equal(model(input_ids=batch.ids_BT).logits, plain_BTV)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)])
def test_policy_and_critic_take_the_gradient_of_an_untrimmed_network_whose_layers_are_recomputed(
    lora: LoraSettings | None,
) -> None:
    batch = batch_of(4)
    kept, whole = LearnerSettings(lora=lora), LearnerSettings(lora=lora, gradient_checkpointing=True)
    for reduced, other in (
        (Policy(tiny_model(), kept, 1), Policy(tiny_model(), whole, 1)),
        (Critic(tiny_model(), kept, 1), Critic(tiny_model(), whole, 1)),
    ):
        for learner, times in ((reduced, 1), (other, 2)):
            if isinstance(learner, Critic):
                nn.init.ones_(learner.module.get_parameter("head.weight"))
            calls: list[bool] = []
            (layer,) = (module for name, module in learner.module.named_modules() if name.endswith("layers.0.conv"))
            layer.register_forward_hook(lambda module, *_, calls=calls: calls.append(module.training))
            learner.forward_backward(batch, batch.agent_BT, lambda said_bt, _: (said_bt + 1.0).square().sum())
            assert len(calls) == times  # recomputed on the way back
            assert not any(module.training for module in learner.module.modules())  # a sampler would lose its cache
        agree(reduced.module, other.module)


def test_only_the_positions_before_the_agents_tokens_run() -> None:
    policy = Policy(tiny_model(), LearnerSettings(), 1)
    batch = make_batch([trajectory(environment(3, 4), agent(5, 6)), trajectory(environment(3, 4, 7, 8), agent(5))])
    ran: list[int] = []
    feed_forward = policy.module.get_submodule("model.layers.1.feed_forward.w1")
    hook = feed_forward.register_forward_hook(lambda _, given, __: ran.append(given[0][..., 0].numel()))
    policy.forward(batch, batch.agent_BT)
    hook.remove()
    assert ran == [3]


def network(name: str = "llama") -> PreTrainedModel:
    config: PretrainedConfig = AutoConfig.for_model(name, **SHAPE)
    return seeded({"llama": LlamaForCausalLM, "mistral": MistralForCausalLM}[name], config, 1)


def forks(rng: random.Random) -> list[Trajectory]:
    """Two questions with one instruction, four runs each, which fork at different turns."""

    def ids(count: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    instruction, runs = ids(5), []
    for question in range(2):
        prompt, turn, result = environment(*instruction, *ids(3)), agent(*ids(4)), environment(*ids(6))
        for _ in range(2):
            runs.append(trajectory(prompt, turn, result, agent(*ids(3)), question=str(question)))
            runs.append(
                trajectory(prompt, agent(*ids(2)), environment(*ids(2)), agent(*ids(5)), question=str(question))
            )
    return runs


@pytest.mark.medium
@pytest.mark.parametrize("entropy", ["off", "detached", "with_grad"])
@pytest.mark.parametrize("tokens", [24, 1000])
def test_shared_rows_have_the_outputs_and_gradients_of_the_rows_apart(entropy: Entropy, tokens: int) -> None:
    batch = make_batch(forks(random.Random(0)))
    weights_BT = torch.rand(batch.ids_BT.shape, generator=torch.Generator().manual_seed(0))
    outputs, gradients = [], []
    for shares in (False, True):
        learner = LearnerSettings(share_prefixes=shares, micro_batch_tokens=tokens)
        policy = Policy(network(), learner, 1, temperature=0.7)
        target_mask_BT = batch.agent_BT.clone()
        target_mask_BT[3] = False  # a row that is left out of the loss
        outputs.append(policy.forward(batch, target_mask_BT))
        policy.forward_backward(
            batch, target_mask_BT, lambda out, rows: (out * weights_BT[rows, : out.shape[-1]]).sum(), entropy
        )
        gradients.append([weight.grad for weight in policy.model.parameters()])
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-5)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=8), st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_a_tree_holds_every_beginning_once_and_every_row_is_a_path(rows: list[list[int]], most: int) -> None:
    ids_BT = torch.tensor([row + [0] * (9 - len(row)) for row in rows])
    ends_B = torch.tensor([len(row) for row in rows])
    tree = PrefixTree.of(ids_BT, ends_B)
    paths = [path[: len(row)] for row, path in zip(rows, tree.nodes_BT.tolist(), strict=True)]
    beginnings = {tuple(row[: at + 1]) for row in rows for at in range(len(row))}
    assert {node for path in paths for node in path} == set(range(len(beginnings)))
    for row, path in zip(rows, paths, strict=True):
        for at, node in enumerate(path):
            assert int(tree.nodes_BT.flatten()[tree.tokens_U[node]]) == node
            assert int(tree.ids_1U[0, node]) == row[at] and int(tree.positions_1U[0, node]) == at
    parts = [batch.tolist() for batch in tree_micro_batches(ids_BT, ends_B, torch.arange(len(rows)), most)]
    assert sorted(row for batch in parts for row in batch) == list(range(len(rows)))
    for batch in parts:
        held = {tuple(rows[row][: at + 1]) for row in batch for at in range(len(rows[row]))}
        assert len(batch) == 1 or len(held) <= most


def test_a_network_whose_layers_mix_neighbours_is_refused() -> None:
    with pytest.raises(SettingError, match="share_prefixes needs a network of full attention"):
        Policy(tiny_model(), LearnerSettings(share_prefixes=True), 1)
    with pytest.raises(SettingError, match="share_prefixes needs a network of full attention"):
        Policy(network("mistral"), LearnerSettings(share_prefixes=True), 1)
