"""Lfm2 engine: the arithmetic of Hugging Face's Lfm2 module in far fewer operations.

In a network of a million weights, the operations between matrix products take as long as the products. Here norm
weights are folded into the following matrices, matrices with the same input are concatenated, the tokens of all rows
are packed without padding, and attention of a single token is two products.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Lfm2ForCausalLM, PreTrainedModel

from coseek.models.engine import KVCache, TokenBlock
from coseek.models.lora import merged_state_dict

MOST_SCORES = 2**24
"""Scores of queries and keys that are computed at a time, unless a single query has more: those of a whole prompt grow
with the square of its length, and would be most of a small model's memory."""

# N packed tokens of all rows · H hidden size · D size of a head · K width of the convolution


@dataclass(frozen=True, slots=True)
class _Layer:
    """The concatenated weights of one layer."""

    into: Tensor
    """Convolution: gates and input, 3H × H. Attention: queries, keys, values."""
    out: Tensor
    up: Tensor
    """Gate and value of the feed-forward part, 2F × H."""
    down: Tensor
    taps_KH: Tensor | None = None
    """The convolution's weights, oldest token first; `None` in an attention layer."""
    scale: Tensor | None = None
    """Norm weights of queries and keys, one row per head; those of queries include the softmax's scale."""


Mix: TypeAlias = Callable[[int, _Layer, Tensor], Tensor]
"""The token mixing of a layer: (layer number, layer, projected input) → mixed."""


class Lfm2Engine:
    """Implements `Engine` for `Lfm2ForCausalLM`, with concatenated copies of the weights in `dtype`."""

    @staticmethod
    def can_run(model: PreTrainedModel) -> bool:
        """Whether the model is an Lfm2 without convolution bias and rope scaling."""
        if type(model) is not Lfm2ForCausalLM:
            return False
        config = model.config
        rope = config.rope_parameters or {}
        return not config.conv_bias and rope.get("rope_type", "default") == "default"

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        assert isinstance(model, Lfm2ForCausalLM)
        self._model = model
        self._dtype = dtype
        self.device = model.device
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self._eps = config.norm_eps
        self.cache = KVCache()
        self._turns_PD = (torch.empty(0, device=self.device), torch.empty(0, device=self.device))
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        weights = merged_state_dict(self._model)
        self._embedding_VH = weights["model.embed_tokens.weight"].detach().to(self._dtype, copy=True)
        head_VH = weights["lm_head.weight"] * weights["model.embedding_norm.weight"]
        self._head_VH = head_VH.detach().to(self._dtype)
        self._layers = [self._joined(number, weights) for number in range(self._model.config.num_hidden_layers)]

    def release(self) -> None:
        self.cache.release()
        self._layers, self._embedding_VH, self._head_VH = [], torch.empty(0), torch.empty(0)

    def reserve(self, slots: int, columns: int) -> None:
        self.cache.reserve(slots, columns)
        if columns > len(self._turns_PD[0]):
            self._turns_PD = self._rotations(columns * 3 // 2)

    @torch.inference_mode()
    def read(self, block: TokenBlock) -> None:
        tokens = _Tokens(block)
        positions_N = block.positions_BW[tokens.real_BW]
        # Query heads that share a key-value head are concatenated along W.
        asking_BW = block.positions_BW.repeat(1, self._heads // self._kv_heads)
        parts = _parts(asking_BW.shape[1], len(asking_BW) * self._kv_heads * block.end)
        whole = self._causal(asking_BW, block.end) if len(parts) == 1 else None  # the same in all layers
        turns = self._turns_at(positions_N)

        def mix(number: int, layer: _Layer, projected_N: Tensor) -> Tensor:
            if layer.taps_KH is not None:
                return self._convolve_block(number, layer.taps_KH, projected_N, tokens)
            queries_NHD, keys_NHD, values_NHD = self._heads_of(layer, projected_N, turns)
            self._remember(number, tokens.slots_N, positions_N, keys_NHD, values_NHD)
            if number == len(self._layers) - 1:
                return projected_N  # only the cache of the last layer is needed
            padded = queries_NHD.new_zeros((*block.ids_BW.shape, self._heads, self._dim))
            padded[tokens.real_BW] = queries_NHD
            queries = padded.transpose(1, 2).reshape(len(block.slots_B), self._kv_heads, -1, self._dim)
            seen = (block.slots_B, slice(None), slice(0, block.end))
            keys, values = self.cache.keys[number][seen], self.cache.values[number][seen]
            if whole is not None:
                mixed = _attend(queries, keys, values, whole)
            else:
                mixed = queries.new_empty(queries.shape)
                for part in parts:
                    bias = self._causal(asking_BW[:, part], block.end)
                    mixed[:, :, part] = _attend(queries[:, :, part], keys, values, bias)
            mixed = mixed.view(len(block.slots_B), self._heads, -1, self._dim).transpose(1, 2)
            return mixed[tokens.real_BW].flatten(1)

        self._run(block.ids_BW[tokens.real_BW], mix, last_matters=False)

    @torch.inference_mode()
    def step(self, ids_B: Tensor, starts_B: Tensor, end: int) -> Tensor:
        rows_B = torch.arange(len(ids_B), device=self.device)
        seen_BL = starts_B[:, None] >= torch.arange(end, device=self.device)
        bias = _bias(seen_BL[:, None, None], self._dtype)
        turns = self._turns_at(starts_B)

        def mix(number: int, layer: _Layer, projected_N: Tensor) -> Tensor:
            if layer.taps_KH is not None:
                return self._convolve_one(number, layer.taps_KH, projected_N)
            queries_NHD, keys_NHD, values_NHD = self._heads_of(layer, projected_N, turns)
            self._remember(number, rows_B, starts_B, keys_NHD, values_NHD)
            queries = queries_NHD.view(len(ids_B), self._kv_heads, -1, self._dim)
            seen = (slice(0, len(ids_B)), slice(None), slice(0, end))
            return _attend(queries, self.cache.keys[number][seen], self.cache.values[number][seen], bias).flatten(1)

        hidden_NH = self._run(ids_B, mix, last_matters=True)
        return F.linear(self._normed(hidden_NH), self._head_VH).float()

    def _run(self, ids_N: Tensor, mix: Mix, last_matters: bool) -> Tensor:
        """Run all layers. Without `last_matters`, the last layer only updates its cache."""
        hidden_NH = F.embedding(ids_N, self._embedding_VH)
        for number, layer in enumerate(self._layers):
            mixed_N = mix(number, layer, F.linear(self._normed(hidden_NH), layer.into))
            if number + 1 == len(self._layers) and not last_matters:
                break
            hidden_NH = hidden_NH + F.linear(mixed_N, layer.out)
            gate_N, value_N = F.linear(self._normed(hidden_NH), layer.up).chunk(2, dim=-1)
            hidden_NH = hidden_NH + F.linear(F.silu(gate_N) * value_N, layer.down)
        return hidden_NH

    def _normed(self, hidden_NH: Tensor) -> Tensor:
        return F.rms_norm(hidden_NH, (hidden_NH.shape[-1],), eps=self._eps)

    def _heads_of(self, layer: _Layer, projected_N: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Queries and keys, normalised and rotated to their positions, and values."""
        assert layer.scale is not None
        heads_NHD = projected_N.view(len(projected_N), -1, self._dim)
        turned = self._heads + self._kv_heads
        plain_NHD = F.rms_norm(heads_NHD[:, :turned], (self._dim,), eps=self._eps) * layer.scale
        halves = plain_NHD.view(len(projected_N), turned, 2, -1)
        cos_N1D, sin_N1D = turns
        turned_NHD = torch.addcmul(plain_NHD * cos_N1D, halves.flip(2).view_as(plain_NHD), sin_N1D)
        return turned_NHD[:, : self._heads], turned_NHD[:, self._heads :], heads_NHD[:, turned:]

    def _remember(self, number: int, slots_N: Tensor, positions_N: Tensor, keys: Tensor, values: Tensor) -> None:
        self.cache.use(number, self._kv_heads, self._dim, keys)
        self.cache.keys[number][slots_N, :, positions_N] = keys
        self.cache.values[number][slots_N, :, positions_N] = values

    def _causal(self, asking_BW: Tensor, end: int) -> Tensor:
        """The mask of queries at these positions over the columns below `end`."""
        seen_BWL = asking_BW[:, :, None] >= torch.arange(end, device=self.device)
        return _bias(seen_BWL[:, None], self._dtype)

    def _convolve_one(self, number: int, taps_KH: Tensor, projected_N: Tensor) -> Tensor:
        """One token per row: y = C · Σ_k taps_k · (B · x)_{t-K+1+k}. The state holds the K−1 previous tokens."""
        before_gate, after_gate, value = projected_N.chunk(3, dim=-1)
        now_NH = before_gate * value
        kernel = len(taps_KH)
        self.cache.use_state(number, (kernel - 1, now_NH.shape[1]), now_NH)
        state_NKH = self.cache.states[number][: len(now_NH)]
        sum_NH = now_NH * taps_KH[-1]
        for k in range(kernel - 1):
            sum_NH.addcmul_(state_NKH[:, k], taps_KH[k])
        for k in range(kernel - 2):
            state_NKH[:, k] = state_NKH[:, k + 1]
        if kernel > 1:
            state_NKH[:, -1] = now_NH
        return after_gate * sum_NH

    def _convolve_block(self, number: int, taps_KH: Tensor, projected_N: Tensor, tokens: "_Tokens") -> Tensor:
        """The same for several tokens per row: each row's state is placed before its tokens."""
        before_gate, after_gate, value = projected_N.chunk(3, dim=-1)
        kernel = len(taps_KH)
        now_NH = before_gate * value
        self.cache.use_state(number, (kernel - 1, now_NH.shape[1]), now_NH)
        state = self.cache.states[number]
        behind = torch.arange(kernel - 1, device=self.device)
        laid = now_NH.new_empty((len(now_NH) + len(tokens.slots_B) * (kernel - 1), now_NH.shape[1]))
        rows_B = torch.arange(len(tokens.slots_B), device=self.device)
        places_N = torch.arange(len(now_NH), device=self.device) + (tokens.rows_N + 1) * (kernel - 1)
        starts_B = tokens.firsts_B + rows_B * (kernel - 1)
        laid[places_N] = now_NH
        laid[starts_B[:, None] + behind] = state[tokens.slots_B]
        state[tokens.slots_B] = laid[(starts_B + tokens.lengths_B)[:, None] + behind]
        count = len(laid) - kernel + 1
        sums = laid[:count] * taps_KH[0]
        for k in range(1, kernel):
            sums.addcmul_(laid[k : k + count], taps_KH[k])
        return after_gate * sums[places_N - (kernel - 1)]

    def _turns_at(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        cos_PD, sin_PD = self._turns_PD
        return cos_PD[positions_N][:, None], sin_PD[positions_N][:, None]

    @torch.inference_mode()
    def _rotations(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions. The sine's first half is negated, since halves are only swapped."""
        positions = torch.arange(count, device=self.device)[None]
        cos, sin = self._model.model.rotary_emb(torch.zeros(1, device=self.device), positions)
        sin[..., : self._dim // 2].neg_()
        return cos[0].to(self._dtype), sin[0].to(self._dtype)

    def _joined(self, number: int, weights: Mapping[str, Tensor]) -> _Layer:
        def weight(name: str) -> Tensor:
            return weights[f"model.layers.{number}.{name}.weight"].detach()

        def cast(joined: Tensor) -> Tensor:
            return joined.to(self._dtype, copy=True).contiguous()

        before, between = weight("operator_norm"), weight("ffn_norm")
        up = cast(torch.cat((weight("feed_forward.w1"), weight("feed_forward.w3"))) * between)
        down = cast(weight("feed_forward.w2"))
        if f"model.layers.{number}.conv.conv.weight" in weights:
            into, out = weight("conv.in_proj") * before, weight("conv.out_proj")
            return _Layer(cast(into), cast(out), up, down, taps_KH=cast(weight("conv.conv")[:, 0].T))
        into = torch.cat([weight(f"self_attn.{name}_proj") for name in "qkv"]) * before
        queries = weight("self_attn.q_layernorm").expand(self._heads, -1) * self._dim**-0.5
        keys = weight("self_attn.k_layernorm").expand(self._kv_heads, -1)
        return _Layer(cast(into), cast(weight("self_attn.out_proj")), up, down, scale=cast(torch.cat((queries, keys))))


class _Tokens:
    """Indices of a block's tokens when packed without padding."""

    def __init__(self, block: TokenBlock) -> None:
        width = torch.arange(block.ids_BW.shape[1], device=block.ids_BW.device)
        self.real_BW = width < block.lengths_B[:, None]
        self.lengths_B = block.lengths_B
        self.slots_B = block.slots_B
        self.rows_N = torch.repeat_interleave(block.lengths_B)
        self.slots_N = block.slots_B[self.rows_N]
        self.firsts_B = block.lengths_B.cumsum(0) - block.lengths_B


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask: 0 where a column may be attended to, else −∞."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _parts(queries: int, scores: int) -> list[slice]:
    """Pieces of so many queries, each of which has so many scores."""
    size = max(1, MOST_SCORES // scores)
    return [slice(start, start + size) for start in range(0, queries, size)]


def _attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """softmax(q·k + bias)·v over `[B, heads, …, D]`; every query attends at least to itself."""
    scores = torch.matmul(queries, keys.transpose(-1, -2))
    return torch.matmul(scores.add_(bias).softmax(dim=-1), values)
