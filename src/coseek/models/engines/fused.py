"""Fused engine: computes what Hugging Face's Llama, Mistral, Qwen2, Qwen3 and Lfm2 modules do, in fewer operations.

Matrices with the same input are concatenated, the tokens of all rows are packed without padding, and attention of a
single token is two products over the cache, whose heads are not repeated. On a GPU, where launching an operation takes
longer than running it, each decoding step is captured once for each padded shape (`graphs`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from coseek.models.engine import KVCache, TokenBlock
from coseek.models.engines.layers import DecoderWeights, Layer, family_of, weights_of
from coseek.models.lora import adapted_layers

Step: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""(ids_B, starts_B, columns) → logits_BV, without a synchronisation."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured step, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    ids_B: Tensor
    starts_B: Tensor
    logits_BV: Tensor


class StepGraphs:
    """Runs the first step of a shape eagerly, which warms up libraries and allocates the cache, captures the second,
    and replays it from then on. Graphs hold addresses: `clear` them when weights are reallocated."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[tuple[int, int], _Graph | None] = {}
        self._version = 0

    def clear(self) -> None:
        self._graphs.clear()

    def run(self, ids_B: Tensor, starts_B: Tensor, columns: int, version: int) -> Tensor:
        """Return the logits, which the next step of this shape overwrites. `version` is that of the cache."""
        if version != self._version:
            self.clear()
            self._version = version
        shape = (len(ids_B), columns)
        if shape not in self._graphs:
            self._graphs[shape] = None
            return self._step(ids_B, starts_B, columns)
        capture = self._graphs[shape]
        if capture is None:
            capture = self._graphs[shape] = self._capture(ids_B.clone(), starts_B.clone(), columns)
        capture.ids_B.copy_(ids_B)
        capture.starts_B.copy_(starts_B)
        capture.graph.replay()
        return capture.logits_BV

    def _capture(self, ids_B: Tensor, starts_B: Tensor, columns: int) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        pool = next((capture.graph.pool() for capture in self._graphs.values() if capture is not None), None)
        # Other threads, such as a retriever's, may use the device during the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            logits_BV = self._step(ids_B, starts_B, columns)
        return _Graph(graph, ids_B, starts_B, logits_BV)


MAX_SCORES = 2**24
"""Attention scores per operation, unless a single query has more: those of a whole prompt grow with the square of its
length, and would use most of a small model's memory."""
ROWS_TOGETHER = 8
COLUMNS_TOGETHER = 32
"""Rows whose next tokens a processor attends for at once, and the step of the columns that they read."""
QUERIES_TOGETHER = 128
"""Tokens of one row that a processor attends for at once while it reads."""
MAX_COPIED_BYTES = 4 * 2**30
"""Maximum bytes of weights to copy on a CPU only for faster products."""

# N packed tokens of all rows · H hidden size · D size of a head · K width of the convolution

Mix: TypeAlias = Callable[[int, Layer, Tensor], Tensor]
"""The token mixing of a layer: (layer number, layer, projected input) → mixed."""
Attention: TypeAlias = Callable[[int, Tensor], Tensor]
"""(layer number, queries_NHD) → the mixed values, NHD."""
WeightState: TypeAlias = list[tuple[int, int]] | None
"""Address and version of each weight."""


class FusedEngine:
    """Implements `Engine` with copies of the weights in `dtype`. Shares the module's weights if they are in `dtype`
    and either have adapters, are on an accelerator, or take more than `MAX_COPIED_BYTES` bytes."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        """`model` is of a known family."""
        family = family_of(model)
        assert family is not None
        self._model, self._family, self._dtype = model, family, dtype
        self.device = model.device
        config = model.config
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self._eps = float(config.norm_eps if family.laptop else config.rms_norm_eps)
        weight_bytes = dtype.itemsize * sum(weight.numel() for weight in model.parameters())
        self._shares = model.dtype == dtype and (
            bool(adapted_layers(model)) or self.device.type != "cpu" or weight_bytes > MAX_COPIED_BYTES
        )
        # A convolution's state has no columns, so tokens after the end of a turn could not be dropped from it.
        has_states = "conv" in (getattr(config, "layer_types", None) or ())
        self.pads = self.device.type == "cuda" and not has_states
        self.run_ahead = 8 if self.pads else 1
        self.cache = KVCache()
        self._graphs = StepGraphs(self._step)
        self._rotary_PD = (torch.empty(0, device=self.device), torch.empty(0, device=self.device))
        self._state: WeightState = None
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        state = _state_of(self._model)
        if state is not None and state == self._state:
            return
        self._drop_weights()  # before copying, so that memory never holds two copies
        self._state = state
        self._weights = weights_of(self._model, self._family, self._dtype, self._shares)

    def release(self) -> None:
        self.cache.release()
        self._drop_weights()

    def _drop_weights(self) -> None:
        self._graphs.clear()
        self._state = None
        self._weights = DecoderWeights(torch.empty(0), (), None, torch.nn.Identity())

    def reserve(self, slots: int, columns: int) -> None:
        self.cache.reserve(slots, columns)
        if columns > len(self._rotary_PD[0]):
            self._graphs.clear()
            self._rotary_PD = self._rotations(columns * 3 // 2)

    @torch.inference_mode()
    def read(self, block: TokenBlock) -> None:
        tokens = _Tokens(block)
        attend_to = self._attend_by_row(block, tokens.positions_N) if self._few_at_once() else self._padded_block(block)
        rotary = self._rotary_at(tokens.positions_N)

        def mix(number: int, layer: Layer, projected_N: Tensor) -> Tensor:
            if layer.taps_KH is not None:
                return self._convolve_block(number, layer.taps_KH, projected_N, tokens)
            queries_NHD, keys_NHD, values_NHD = self._project_heads(layer, projected_N, rotary)
            self._write_cache(number, tokens.slots_N, tokens.positions_N, keys_NHD, values_NHD)
            if number == len(self._weights.layers) - 1:
                return projected_N  # only the cache of the last layer is needed
            return attend_to(number, queries_NHD).flatten(1)

        self._run(tokens.ids_N, mix, last_matters=False)

    def _attend_by_row(self, block: TokenBlock, positions_N: Tensor) -> Attention:
        """Attention of a block's tokens, a few of one row at a time, each over the columns that its row has by then:
        no padding, no copy of keys, and half of a prompt's scores."""
        pieces: list[tuple[slice, slice, Tensor]] = []
        ends = block.lengths_B.cumsum(0).tolist()
        for slot, last, length in zip(block.slots_B.tolist(), ends, block.lengths, strict=True):
            for first in range(last - length, last, QUERIES_TOGETHER):
                span = slice(first, min(first + QUERIES_TOGETHER, last))
                queries_W = positions_N[span].repeat(self._heads // self._kv_heads)
                pieces.append((slice(slot, slot + 1), span, self._causal(queries_W[None], int(queries_W[-1]) + 1)))

        def attend(number: int, queries_NHD: Tensor) -> Tensor:
            mixed_NHD = torch.empty_like(queries_NHD)
            for row, span, bias in pieces:
                queries = queries_NHD[span].transpose(0, 1).reshape(1, self._kv_heads, -1, self._dim)
                keys, values = self.cache.keys[number][row], self.cache.values[number][row]
                columns = bias.shape[-1]
                mixed = _attend_many(queries, keys[:, :, :columns], values[:, :, :columns], bias)
                mixed_NHD[span] = mixed.view(self._heads, -1, self._dim).transpose(0, 1)
            return mixed_NHD

        return attend

    def _padded_block(self, block: TokenBlock) -> Attention:
        """Attention of all rows of a block at once, padded to its longest."""
        # Query heads that share a key-value head are concatenated along W.
        queries_BW = block.positions_BW.repeat(1, self._heads // self._kv_heads)
        size = max(1, MAX_SCORES // (len(queries_BW) * self._kv_heads * block.end))
        slices = [slice(start, start + size) for start in range(0, queries_BW.shape[1], size)]
        whole_bias = self._causal(queries_BW, block.end) if len(slices) == 1 else None  # the same in all layers
        kernel = _attend if self._family.laptop else _attend_many

        def attend(number: int, queries_NHD: Tensor) -> Tensor:
            padded = queries_NHD.new_zeros((block.ids_BW.numel(), self._heads, self._dim))
            padded[block.real_N] = queries_NHD
            padded = padded.view(*block.ids_BW.shape, self._heads, self._dim)
            queries = padded.transpose(1, 2).reshape(len(block.slots_B), self._kv_heads, -1, self._dim)
            cached = (block.slots_B, slice(None), slice(0, block.end))
            keys, values = self.cache.keys[number][cached], self.cache.values[number][cached]
            if whole_bias is not None:
                mixed = kernel(queries, keys, values, whole_bias)
            else:
                mixed = queries.new_empty(queries.shape)
                for span in slices:
                    bias = self._causal(queries_BW[:, span], block.end)
                    mixed[:, :, span] = kernel(queries[:, :, span], keys, values, bias)
            mixed = mixed.view(len(block.slots_B), self._heads, -1, self._dim).transpose(1, 2)
            return mixed.flatten(0, 1)[block.real_N]

        return attend

    def _few_at_once(self) -> bool:
        """Whether few rows, or tokens of a row, are attended for at once: faster on a processor, other last bits."""
        return self.device.type == "cpu" and not (self.pads or self._family.laptop)

    def padded(self, rows: int) -> int:
        return min(_padded(rows, 1), max(rows, self.cache.slots)) if self.pads else rows

    @torch.inference_mode()
    def step(self, ids_B: Tensor, starts_B: Tensor, end: int) -> Tensor:
        columns = min(_padded(end, 64), self.cache.columns) if self.pads else end
        if self.pads and self.device.type == "cuda":
            return self._graphs.run(ids_B, starts_B, columns, self.cache.version)
        return self._step(ids_B, starts_B, columns)

    def _step(self, ids_B: Tensor, starts_B: Tensor, end: int) -> Tensor:
        rows_B = torch.arange(len(ids_B), device=self.device)
        seen_BL = starts_B[:, None] >= torch.arange(end, device=self.device)
        bias = _bias(seen_BL[:, None, None], self._dtype)
        attend = _attend if self._family.laptop else _attend_one
        blocks = list(_row_blocks(starts_B, end)) if self._few_at_once() else [(slice(0, len(ids_B)), end)]
        rotary = self._rotary_at(starts_B)

        def mix(number: int, layer: Layer, projected_N: Tensor) -> Tensor:
            if layer.taps_KH is not None:
                return self._convolve_one(number, layer.taps_KH, projected_N)
            queries_NHD, keys_NHD, values_NHD = self._project_heads(layer, projected_N, rotary)
            self._write_cache(number, rows_B, starts_B, keys_NHD, values_NHD)
            queries = queries_NHD.view(len(ids_B), self._kv_heads, -1, self._dim)
            keys, values = self.cache.keys[number], self.cache.values[number]
            mixed = [
                attend(queries[rows], keys[rows, :, :columns], values[rows, :, :columns], bias[rows, ..., :columns])
                for rows, columns in blocks
            ]
            return (torch.cat(mixed) if len(mixed) > 1 else mixed[0]).flatten(1)

        hidden_NH = self._run(ids_B, mix, last_matters=True)
        return self._weights.head(self._normalise(hidden_NH, self._weights.last_H)).float()

    def _run(self, ids_N: Tensor, mix: Mix, last_matters: bool) -> Tensor:
        """Run all layers. Without `last_matters`, the last layer only updates its cache."""
        hidden_NH = F.embedding(ids_N, self._weights.embedding_VH)
        for number, layer in enumerate(self._weights.layers):
            mixed_N = mix(number, layer, layer.into(self._normalise(hidden_NH, layer.before_H)))
            if number + 1 == len(self._weights.layers) and not last_matters:
                break
            hidden_NH = hidden_NH + layer.out(mixed_N)
            gate_N, value_N = layer.up(self._normalise(hidden_NH, layer.between_H)).chunk(2, dim=-1)
            hidden_NH = hidden_NH + layer.down(F.silu(gate_N) * value_N)
        return hidden_NH

    def _normalise(self, hidden_NH: Tensor, weight_H: Tensor | None) -> Tensor:
        return F.rms_norm(hidden_NH, (hidden_NH.shape[-1],), weight_H, self._eps)

    def _project_heads(self, layer: Layer, projected_N: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Queries and keys, normalised and rotated to their positions, and values. Queries are scaled for the
        softmax."""
        heads_NHD = projected_N.view(len(projected_N), -1, self._dim)
        rotated_heads = self._heads + self._kv_heads
        unrotated_NHD = heads_NHD[:, :rotated_heads]
        if layer.scale is not None:
            unrotated_NHD = F.rms_norm(unrotated_NHD, (self._dim,), eps=self._eps) * layer.scale
        halves = unrotated_NHD.view(len(projected_N), rotated_heads, 2, -1)
        cos_N1D, sin_N1D = rotary
        rotated_NHD = torch.addcmul(unrotated_NHD * cos_N1D, halves.flip(2).view(unrotated_NHD.shape), sin_N1D)
        queries_NHD = rotated_NHD[:, : self._heads]
        if layer.scale is None:
            queries_NHD = queries_NHD * self._dim**-0.5
        return queries_NHD, rotated_NHD[:, self._heads :], heads_NHD[:, rotated_heads:]

    def _write_cache(self, number: int, slots_N: Tensor, positions_N: Tensor, keys: Tensor, values: Tensor) -> None:
        self.cache.use(number, self._kv_heads, self._dim, keys)
        self.cache.keys[number][slots_N, :, positions_N] = keys
        self.cache.values[number][slots_N, :, positions_N] = values

    def _causal(self, queries_BW: Tensor, end: int) -> Tensor:
        """The mask of queries at these positions over the columns below `end`."""
        seen_BWL = queries_BW[:, :, None] >= torch.arange(end, device=self.device)
        return _bias(seen_BWL[:, None], self._dtype)

    def _convolve_one(self, number: int, taps_KH: Tensor, projected_N: Tensor) -> Tensor:
        """One token per row: y = C · Σ_k taps_k · (B · x)_{t-K+1+k}. The state holds the K−1 previous tokens."""
        before_gate, after_gate, value = projected_N.chunk(3, dim=-1)
        gated_NH = before_gate * value
        kernel = len(taps_KH)
        self.cache.use_state(number, (kernel - 1, gated_NH.shape[1]), gated_NH)
        state_NKH = self.cache.states[number][: len(gated_NH)]
        sum_NH = gated_NH * taps_KH[-1]
        for k in range(kernel - 1):
            sum_NH.addcmul_(state_NKH[:, k], taps_KH[k])
        for k in range(kernel - 2):
            state_NKH[:, k] = state_NKH[:, k + 1]
        if kernel > 1:
            state_NKH[:, -1] = gated_NH
        return after_gate * sum_NH

    def _convolve_block(self, number: int, taps_KH: Tensor, projected_N: Tensor, tokens: "_Tokens") -> Tensor:
        """The same for several tokens per row: each row's state is placed before its tokens."""
        before_gate, after_gate, value = projected_N.chunk(3, dim=-1)
        kernel = len(taps_KH)
        gated_NH = before_gate * value
        self.cache.use_state(number, (kernel - 1, gated_NH.shape[1]), gated_NH)
        state = self.cache.states[number]
        offsets = torch.arange(kernel - 1, device=self.device)
        padded_NH = gated_NH.new_empty((len(gated_NH) + len(tokens.slots_B) * (kernel - 1), gated_NH.shape[1]))
        rows_B = torch.arange(len(tokens.slots_B), device=self.device)
        positions_N = torch.arange(len(gated_NH), device=self.device) + (tokens.rows_N + 1) * (kernel - 1)
        starts_B = tokens.firsts_B + rows_B * (kernel - 1)
        padded_NH[positions_N] = gated_NH
        padded_NH[starts_B[:, None] + offsets] = state[tokens.slots_B]
        state[tokens.slots_B] = padded_NH[(starts_B + tokens.lengths_B)[:, None] + offsets]
        count = len(padded_NH) - kernel + 1
        sums = padded_NH[:count] * taps_KH[0]
        for k in range(1, kernel):
            sums.addcmul_(padded_NH[k : k + count], taps_KH[k])
        return after_gate * sums[positions_N - (kernel - 1)]

    def _rotary_at(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        cos_PD, sin_PD = self._rotary_PD
        return cos_PD[positions_N][:, None], sin_PD[positions_N][:, None]

    @torch.inference_mode()
    def _rotations(self, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the first positions. The sine's first half is negated, since halves are only swapped."""
        positions = torch.arange(count, device=self.device)[None]
        cos, sin = self._model.get_submodule("model.rotary_emb")(torch.zeros(1, device=self.device), positions)
        sin[..., : self._dim // 2].neg_()
        return cos[0].to(self._dtype), sin[0].to(self._dtype)


def _state_of(model: PreTrainedModel) -> WeightState:
    """The state of frozen weights; `None` if an optimizer may change them, since fused ones do not update versions. So
    a served model is copied once and not for every request."""
    weights = list(model.parameters())
    if any(weight.requires_grad or weight.is_inference() for weight in weights):
        return None
    return [(weight.data_ptr(), weight._version) for weight in weights]


class _Tokens:
    """Indices of a block's tokens when packed without padding."""

    def __init__(self, block: TokenBlock) -> None:
        self.ids_N = block.ids_BW.flatten()[block.real_N]
        self.positions_N = block.positions_BW.flatten()[block.real_N]
        self.lengths_B = block.lengths_B
        self.slots_B = block.slots_B
        self.rows_N = block.real_N // block.ids_BW.shape[1]
        self.slots_N = block.slots_B[self.rows_N]
        self.firsts_B = block.lengths_B.cumsum(0) - block.lengths_B


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive mask: 0 where a column may be attended to, else −∞."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _row_blocks(starts_B: Tensor, end: int) -> Iterator[tuple[slice, int]]:
    """Slices of `ROWS_TOGETHER` rows, and the columns that their longest row needs, in steps of `COLUMNS_TOGETHER`.

    A processor's product of matrices with gaps between them copies them first, in bfloat16. The copies of few rows stay
    in its cache; those of a hundred take several times as long as the product."""
    for first in range(0, len(starts_B), ROWS_TOGETHER):
        rows = slice(first, min(first + ROWS_TOGETHER, len(starts_B)))
        longest = int(starts_B[rows].max()) + 1
        yield rows, min(end, -(-longest // COLUMNS_TOGETHER) * COLUMNS_TOGETHER)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """softmax(q·k + bias)·v over `[B, heads, …, D]`; every query attends at least to itself."""
    scores = torch.matmul(queries, keys.transpose(-1, -2))
    return torch.matmul(scores.add_(bias).softmax(dim=-1), values)


def _attend_many(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """`_attend` with the fused kernel, which stores no scores."""
    bias = bias.expand(len(queries), queries.shape[1], -1, -1)
    return F.scaled_dot_product_attention(queries, keys, values, bias, scale=1.0)


def _attend_one(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """`_attend` for a single token. Multiplies keys by queries: on a CPU in bfloat16 this takes a third of the time of
    queries by keys, which transposes the keys."""
    rows, heads, columns, dim = keys.shape
    flat = (rows * heads, columns, dim)
    scores = torch.bmm(keys.reshape(flat), queries.reshape(rows * heads, -1, dim).transpose(1, 2))
    scores = scores.view(rows, heads, columns, -1).transpose(-1, -2) + bias
    mixed = torch.bmm(scores.softmax(dim=-1).reshape(rows * heads, -1, columns), values.reshape(flat))
    return mixed.view(rows, heads, -1, dim)


def _padded(count: int, multiple: int) -> int:
    """Round up to a multiple of `multiple`, with at most four sizes between a power of two and the next."""
    unit = max(multiple, (1 << (count - 1).bit_length()) // 8)
    return -(-count // unit) * unit
