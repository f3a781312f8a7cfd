"""General engine: Hugging Face's causal language models of attention and short-convolution layers that take positions.

The module computes; the engine supplies positions, masks and a cache with slots. Refuses models that keep other states,
count positions themselves or mask some layers themselves.
"""

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from coseek.core.errors import SettingError
from coseek.models.engine import KVCache, TokenBlock, allocate_weights, free_weights
from coseek.models.lora import merge_adapters, merged_state_dict

KNOWN_LAYERS = ("full_attention", "sliding_attention", "conv")


class GeneralEngine:
    """Shares the module's weights if `dtype` is the module's precision, else holds a copy in `dtype`."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._source = model
        self._module = model if model.dtype == dtype else _copy_as(model, dtype)
        self.device = model.device
        self._dtype = dtype
        self._kinds = _layer_kinds(model)
        self._window = int(getattr(model.config.get_text_config(), "sliding_window", None) or 0)
        self.run_ahead = 8 if self.device.type == "cuda" and "conv" not in self._kinds else 1
        self.cache = KVCache()
        self._view = CacheView(self.cache)

    def padded(self, rows: int) -> int:
        return rows

    def reserve(self, slots: int, columns: int) -> None:
        self.cache.reserve(slots, columns)

    def read(self, block: TokenBlock) -> None:
        body = self._module.base_model  # without the output layer
        assert isinstance(body, torch.nn.Module)
        self._forward(body, block)

    def step(self, ids_B: Tensor, starts_B: Tensor, end: int) -> Tensor:
        slots_B = torch.arange(len(ids_B), device=self.device)
        block = TokenBlock(ids_B[:, None], slots_B, starts_B, (1,) * len(ids_B), end, first=True)
        return self._forward(self._module, block)[:, -1].float()

    def refresh(self) -> None:
        if self._module is not self._source:
            allocate_weights(self._module)
            self._module.load_state_dict(merged_state_dict(self._source))

    def release(self) -> None:
        self.cache.release()
        if self._module is not self._source:
            free_weights(self._module)

    @torch.inference_mode()
    def _forward(self, module: torch.nn.Module, block: TokenBlock) -> Tensor:
        self._view.block = block
        # Padding takes the position of its row's last token: learnt positions may end before the block does.
        last_positions_B = block.starts_B + block.lengths_B - 1
        with _without_dropout(self._module):
            outputs = module(
                input_ids=block.ids_BW,
                position_ids=block.positions_BW.minimum(last_positions_B[:, None]),
                attention_mask=self._masks(block.positions_BW, block.end),
                past_key_values=self._view,
                use_cache=True,
            )
        first: Tensor = outputs[0]
        return first

    def _masks(self, positions_BW: Tensor, columns: int) -> Tensor | None | Mapping[str, Tensor | None]:
        """Additive masks by layer kind, 0 where a column may be attended to, so that the module builds none."""
        columns_L = torch.arange(columns, device=self.device)
        lowest = torch.finfo(self._dtype).min

        def mask(kind: str) -> Tensor | None:
            if kind == "conv":
                return None
            seen = positions_BW[:, :, None] >= columns_L
            if kind == "sliding_attention":
                seen &= (positions_BW - self._window)[:, :, None] < columns_L
            return torch.zeros((), dtype=self._dtype, device=self.device).where(seen, lowest)[:, None]

        masks = {kind: mask(kind) for kind in self._kinds}
        return masks if len(masks) > 1 else masks[self._kinds[0]]


class CacheView(Cache):
    """A `KVCache` behind Hugging Face's cache interface. `block` is the next forward pass's."""

    block: TokenBlock

    def __init__(self, slots: KVCache) -> None:
        super().__init__(layers=[])
        self.slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write `[B, heads, W, dim]` and return all keys and values of the rows, `[B, heads, columns, dim]`."""
        self.slots.use(layer_idx, key_states.shape[1], key_states.shape[3], key_states, value_states.shape[3])
        keys, values = self.slots.keys[layer_idx], self.slots.values[layer_idx]
        block = self.block
        cells = (block.slots_B[:, None], slice(None), block.positions_BW)
        keys[cells], values[cells] = key_states.transpose(1, 2), value_states.transpose(1, 2)
        rows = slice(0, len(block.ids_BW)) if block.first else block.slots_B
        return keys[rows, :, : block.end], values[rows, :, : block.end]

    def is_recording_past(self, layer_idx: int) -> bool:
        """True routes every convolution through `update_conv_state`, even of a single column."""
        return True

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return None

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object) -> Tensor:
        """Prepend the K columns before the block, and store the last K before each row's padding."""
        kernel = kwargs["conv_kernel_size"]
        assert isinstance(kernel, int)
        self.slots.use_state(layer_idx, (conv_states.shape[1], kernel), conv_states)
        state, slots_B = self.slots.states[layer_idx], self.block.slots_B
        joined_BHK = torch.cat((state[slots_B], conv_states), dim=-1)
        last_BK = self.block.lengths_B[:, None] + torch.arange(kernel, device=conv_states.device)
        state[slots_B] = joined_BHK.gather(2, last_BK[:, None].expand(-1, joined_BHK.shape[1], -1))
        return joined_BHK


@contextmanager
def _without_dropout(module: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, restored afterwards: a trainer may own the module."""
    was_training = module.training
    if was_training:
        module.eval()
    try:
        yield
    finally:
        if was_training:
            module.train()


def _copy_as(model: PreTrainedModel, dtype: torch.dtype) -> torch.nn.Module:
    module: torch.nn.Module = copy.deepcopy(model)
    merge_adapters(module)
    # Buffers stay as they are: the frequencies of rotary positions would be wrong by radians in bfloat16.
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype)
    return module.requires_grad_(False)


def _layer_kinds(model: PreTrainedModel) -> tuple[str, ...]:
    """The layer kinds of the model. A model that cannot be run with slots is a `SettingError`."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    kinds = tuple(dict.fromkeys(map(str, layer_types)))
    name, known = type(model).__name__, ", ".join(KNOWN_LAYERS)
    local = ["local"] if "local" in getattr(config, "attention_layers", ()) else []  # GPT-Neo's
    if unknown := next((kind for kind in (*kinds, *local) if kind not in KNOWN_LAYERS), None):
        raise SettingError(f"{name} has layers of the kind {unknown!r}, which the sampler cannot run; known: {known}")
    # MPT's biases count from the last column, so that it needs no positions; Falcon's read the mask.
    needed = ("past_key_values",) if config.model_type == "mpt" else ("past_key_values", "position_ids")
    arguments = inspect.signature(model.forward).parameters
    if getattr(config, "alibi", False) or not arguments.keys() >= set(needed):
        raise SettingError(
            f"{name} keeps its past or counts positions itself, which the sampler cannot run; choose a causal model "
            "with a cache, and with rotary or learnt positions"
        )
    attention = getattr(model.config, "_attn_implementation", "sdpa")
    if attention not in ("sdpa", "eager"):
        raise SettingError(f"{name} runs {attention!r} attention; the sampler needs sdpa or eager, so load it with one")
    return kinds
