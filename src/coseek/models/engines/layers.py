"""Layers: the weights of known decoders, as the fused engine multiplies them.

Shared weights are the model's own modules, including adapters. Copies concatenate the matrices with the same input,
and on a CPU pack them for oneDNN, which multiplies packed matrices faster.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    Lfm2ForCausalLM,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from coseek.models.lora import LoraLinear, merged_state_dict

Product: TypeAlias = Callable[[Tensor], Tensor]
"""A linear layer, or several with the same input whose outputs are concatenated."""


@dataclass(frozen=True, slots=True)
class Family:
    """The names of an architecture's parts: those of a layer, and of the last norm."""

    before: str = "input_layernorm"
    between: str = "post_attention_layernorm"
    last: str = "model.norm"
    out: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    up: tuple[str, str] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    laptop: bool = False
    """Whether laptop policies have this architecture. Their results must not change by a bit, so norm weights are
    folded into copied matrices, and matrices are not packed."""


LFM2 = Family(
    "operator_norm", "ffn_norm", "model.embedding_norm", "self_attn.out_proj", "self_attn.q_layernorm",
    "self_attn.k_layernorm", ("feed_forward.w1", "feed_forward.w3"), "feed_forward.w2", laptop=True,
)  # fmt: skip
FAMILIES: Mapping[type, Family] = {
    Lfm2ForCausalLM: LFM2,
    LlamaForCausalLM: Family(),
    MistralForCausalLM: Family(),
    Qwen2ForCausalLM: Family(),
    Qwen3ForCausalLM: Family(),
}
ROTATIONS = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose frequencies do not depend on the length of the text."""
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. The weight of a norm is `None` where it is folded into the next matrix."""

    into: Product
    """Attention: queries, keys and values. Convolution: gates and input, 3H."""
    out: Product
    up: Product
    """Gate and value of the feed-forward part."""
    down: Product
    before_H: Tensor | None = None
    """Weight of the norm before `into`."""
    between_H: Tensor | None = None
    """Weight of the norm before `up`."""
    scale: Tensor | None = None
    """Norm weights of queries and keys, one row per head; those of queries include the softmax's scale. `None` without
    such norms."""
    taps_KH: Tensor | None = None
    """The convolution's weights, oldest token first; `None` in an attention layer."""


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a network."""

    embedding_VH: Tensor
    layers: Sequence[Layer]
    last_H: Tensor | None
    """Weight of the last norm."""
    head: Product


def family_of(model: PreTrainedModel) -> Family | None:
    """The family of a model that computes exactly what its architecture does; `None` for all others."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    is_known = (
        rope.get("rope_type", "default") in ROTATIONS
        and rope.get("partial_rotary_factor", 1.0) == 1.0
        and set(kinds) <= {"full_attention", "conv"}
        and getattr(config, "hidden_act", "silu") == "silu"
        and not getattr(config, "conv_bias", False)
        and all(type(layer) in (nn.Linear, LoraLinear) for layer in model.modules() if isinstance(layer, nn.Linear))
        and all(weight.is_floating_point() for weight in model.parameters())
    )
    return FAMILIES.get(type(model)) if is_known else None


def weights_of(model: PreTrainedModel, family: Family, dtype: torch.dtype, shares: bool) -> DecoderWeights:
    """The model's own weights with `shares`, else copies in `dtype` with merged adapters."""
    state = model.state_dict() if shares else merged_state_dict(model)
    tensors = {name: weight.detach() for name, weight in state.items()}
    folds = family.laptop and not shares
    pack = not family.laptop and _packs(dtype, model.device)

    def copied(weight: Tensor) -> Tensor:
        return weight if shares else weight.to(dtype, copy=True).contiguous()

    def product(names: Sequence[str], gain_H: Tensor | None = None) -> Product:
        if shares:
            products = [cast(Product, model.get_submodule(name)) for name in names]
            return products[0] if len(products) == 1 else lambda x: torch.cat([part(x) for part in products], dim=-1)
        weights = [tensors[f"{name}.weight"] for name in names]
        joined = torch.cat(weights) if gain_H is None else torch.cat(weights) * gain_H
        biases = [bias for name in names if (bias := tensors.get(f"{name}.bias")) is not None]  # all of them, or none
        return _product(copied(joined), copied(torch.cat(biases)) if biases else None, pack)

    def layer(prefix: str) -> Layer:
        taps = tensors.get(f"{prefix}conv.conv.weight")
        in_names, out_name = (QKV, family.out) if taps is None else (("conv.in_proj",), "conv.out_proj")
        before, between = tensors[f"{prefix}{family.before}.weight"], tensors[f"{prefix}{family.between}.weight"]
        norms = tensors.get(f"{prefix}{family.query_norm}.weight"), tensors.get(f"{prefix}{family.key_norm}.weight")
        return Layer(
            into=product([prefix + name for name in in_names], before if folds else None),
            out=product([prefix + out_name]),
            up=product([prefix + name for name in family.up], between if folds else None),
            down=product([prefix + family.down]),
            before_H=None if folds else copied(before),
            between_H=None if folds else copied(between),
            scale=None if norms[0] is None or norms[1] is None else copied(_scale(model, norms[0], norms[1])),
            taps_KH=None if taps is None else copied(taps[:, 0].T),
        )

    last_norm, embedding_VH = tensors[f"{family.last}.weight"], copied(tensors["model.embed_tokens.weight"])
    is_tied = tensors["lm_head.weight"].data_ptr() == tensors["model.embed_tokens.weight"].data_ptr()
    shares_embedding = is_tied and not (shares or folds or pack)
    return DecoderWeights(
        embedding_VH,
        [layer(f"model.layers.{number}.") for number in range(model.config.num_hidden_layers)],
        None if folds else copied(last_norm),
        _product(embedding_VH, None, pack) if shares_embedding else product(["lm_head"], last_norm if folds else None),
    )


def _scale(model: PreTrainedModel, queries_D: Tensor, keys_D: Tensor) -> Tensor:
    heads, kv_heads = model.config.num_attention_heads, model.config.num_key_value_heads
    return torch.cat((queries_D.expand(heads, -1) * len(queries_D) ** -0.5, keys_D.expand(kv_heads, -1)))


def _packs(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN can pack matrices here. Inductor uses the same operators; they are not a public interface."""
    if device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype is not torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _product(weight: Tensor, bias: Tensor | None, pack: bool) -> Product:
    if not pack:
        return lambda x: F.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    multiply = cast(Callable[..., Tensor], torch.ops.mkldnn._linear_pointwise)
    return lambda x: multiply(x, packed, bias, "none", [], "")
