"""Training in bfloat16 on a CPU: few shapes, attention in float32, and the same numbers."""

import copy
import random

import pytest
import torch
from tests.training.tiny import random_trajectories, tiny_model
from torch import Tensor, nn

from coseek.training.learner.batch import make_batch
from coseek.training.learner.learner import Learner
from coseek.training.learner.logprobs import LENGTH_MULTIPLE, POSITION_MULTIPLE, TORCH_ATTENTION, ReplacedAttention
from coseek.training.learner.policy import Critic, Policy
from coseek.training.learner.settings import LearnerSettings

BFLOAT16 = LearnerSettings(precision="bfloat16", micro_batch_tokens=60)


def learn(learner: Learner, seed: int = 3) -> tuple[Tensor, dict[str, Tensor]]:
    """The outputs of a batch and the gradients of their sum."""
    batch = make_batch(random_trajectories(6, random.Random(seed)))
    outputs_BT = learner.forward(batch, batch.agent_BT)
    learner.forward_backward(batch, batch.agent_BT, lambda new_bt, _: new_bt.sum())
    gradients = {name: weight.grad for name, weight in learner.module.named_parameters() if weight.grad is not None}
    return outputs_BT, gradients


@pytest.mark.parametrize("kind", [Policy, Critic])
def test_padding_to_common_shapes_changes_no_output_and_no_gradient(
    kind: type[Policy] | type[Critic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, where a difference shows, with the padding of bfloat16."""
    settings = LearnerSettings(micro_batch_tokens=60)
    first, second = (kind(copy.deepcopy(tiny_model()), settings, 1) for _ in range(2))
    for learner in (first, second):
        if isinstance(learner, Critic):
            nn.init.ones_(learner.module.head.weight)  # type: ignore[arg-type, union-attr]
    plain_BT, plain = learn(first)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: True)
    lengths: set[int] = set()
    trunk = second.module.base_model if isinstance(second, Policy) else second.module.trunk
    assert isinstance(trunk, nn.Module)
    trunk.register_forward_pre_hook(lambda _, __, named: lengths.add(named["input_ids"].shape[1]), with_kwargs=True)
    padded_BT, padded = learn(second)
    assert lengths and all(length % LENGTH_MULTIPLE == 0 for length in lengths)
    assert torch.allclose(plain_BT, padded_BT, atol=1e-6)
    assert plain.keys() == padded.keys() and plain
    for name, gradient in plain.items():
        assert torch.allclose(padded[name], gradient, atol=1e-5 * float(gradient.abs().max())), name


def test_batches_of_any_length_meet_few_shapes() -> None:
    """Each new shape of a bfloat16 product is compiled, which takes longer than the product."""
    policy = Policy(copy.deepcopy(tiny_model()), BFLOAT16, 1)
    lengths: set[int] = set()
    positions: set[int] = set()
    head = policy.model.get_output_embeddings()
    for module in policy.module.modules():
        if isinstance(module, nn.Linear):
            seen = positions if module is head else lengths
            module.register_forward_pre_hook(lambda _, given, seen=seen: seen.add(given[0].shape[-2]))
    for seed in range(4):
        learn(policy, seed)
    assert positions and all(number % POSITION_MULTIPLE == 0 for number in positions)
    assert lengths and all(length % LENGTH_MULTIPLE == 0 for length in lengths)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_attention_and_its_gradient_are_computed_in_float32_unless_layers_are_recomputed(
    gradient_checkpointing: bool,
) -> None:
    """A recomputed layer runs outside of the block, and its tensors must be those of the first time."""
    settings = BFLOAT16.model_copy(update={"gradient_checkpointing": gradient_checkpointing})
    policy = Policy(copy.deepcopy(tiny_model()), settings, 1)
    exact_BT, exact = learn(Policy(copy.deepcopy(tiny_model()), LearnerSettings(), 1))
    if gradient_checkpointing:
        rough_BT, rough = learn(policy)
    else:
        dtypes: set[torch.dtype] = set()

        def seen(*args: object, **named: object) -> object:
            dtypes.update(value.dtype for value in args if isinstance(value, Tensor))
            return TORCH_ATTENTION(*args, **named)

        with ReplacedAttention(seen):
            rough_BT, rough = learn(policy)
        assert dtypes == {torch.float32}
    assert 0 < float((rough_BT - exact_BT).abs().max()) < 0.2
    for name, gradient in exact.items():
        assert float((rough[name] - gradient).norm()) < 0.1 * float(gradient.norm()) + 1e-3, name
