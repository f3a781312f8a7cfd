"""Sampler: samples continuations of many rows at once and reads every token once. Knows stop strings, but no protocol.

Rows join and leave at any time (continuous batching). A row's samples depend on its seed and positions only, not on the
rest of the batch. (In float32. The last bits of matrix products depend on their size; in bfloat16 this occasionally
changes a sample.)
"""

import sys
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.core.settings import Settings
from coseek.hardware.placement import Precision, PrecisionSetting, SamplingPrecision, Use, precision_of
from coseek.models.engine import Engine, PromptPiece, SlotTable, TokenBlock, plan_prefix_sharing
from coseek.models.engines.fused import FusedEngine
from coseek.models.engines.general import GeneralEngine
from coseek.models.engines.layers import family_of
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.model_folder import shape_of_config
from coseek.models.pretrained import DTYPES, position_limit
from coseek.models.tokenizer import HfTokenizer, StopStrings

SEED_MASK = 2**64 - 1
READ_TOKENS = 4096
"""Tokens per prefill pass, approximately: enough to use the hardware, few enough for its memory."""


class SamplerSettings(Settings):
    """Sampling parameters and limits."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Divides the logits; 0 selects the most likely token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus sampling: the probability mass sampled from. Values below 1 are for evaluation: see `on_policy`."""
    top_k: int = Field(default=0, ge=0)
    """Sample from this many most likely tokens; 0 means all. Values above 0 are for evaluation: see `on_policy`."""
    max_rows: int = Field(default=256, ge=1)
    """Rows in the cache at once; more wait until rows are closed."""
    cache_gib: float | None = Field(default=None, gt=0.0)
    """Maximum memory of the cache, in GiB. `max_rows` is lowered to the rows that fit at their maximum length."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of a row, prompt included; the model's own limit if not set."""
    dtype: SamplingPrecision = "auto"
    """Precision of weights and cache; `auto` is the fastest here for a model of this width."""
    patience: float = Field(default=0.25, ge=0.0, lt=1.0)
    """Share of live rows that may stop before `step` returns. Waiting batches searches; 0 returns every row at once."""
    share: bool = True
    """Read common prefixes of new rows once (in float32 this changes the last bits of log-probabilities only)."""

    @property
    def on_policy(self) -> bool:
        """Whether log-probabilities are those of the full softmax, as a trainer needs."""
        return self.temperature > 0.0 and self.top_p == 1.0 and self.top_k == 0


class Sampler:
    """Implements `Model` for a Hugging Face causal language model. The weights are the module's own, so that a trained
    module samples with its new weights. A copy (another precision, a faster layout) is refreshed when a row is opened
    and no other is open. Close all rows before training: an open row's cache was computed with the old weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        settings: SamplerSettings | None = None,
        engine: Engine | None = None,
    ) -> None:
        """`engine`: an engine of the model to share with other samplers, of which one may have open rows."""
        self.settings = settings or SamplerSettings()
        self.tokenizer = tokenizer
        if isinstance(tokenizer, HfTokenizer):  # it may be from another folder than the model
            tokenizer.check_embedded(len(cast(nn.Embedding, model.get_input_embeddings()).weight))
        config = model.config.get_text_config()
        dtype = pick_dtype(self.settings.dtype, model)
        self._engine = engine or make_engine(model, DTYPES[dtype])
        self._stops = StopStrings(stops, tokenizer, int(config.vocab_size))
        self._is_end = _eos_table(model, tokenizer)
        max_positions = position_limit(config) or 2**31
        self._max_length = min(max_positions, self.settings.max_tokens or max_positions)
        self.max_rows = self.settings.max_rows
        if self.settings.cache_gib is not None:
            fitting_rows = rows_that_fit(self.settings.cache_gib, model, dtype, self._max_length)
            self.max_rows = max(1, min(self.max_rows, fitting_rows))
        self._engine.cache.expect(self.max_rows, self._max_length)
        self._table = SlotTable(self.max_rows)
        self._waiting: dict[int, Request] = {}
        """Requests that wait for a free slot."""
        self._unread: dict[int, tuple[int, ...]] = {}
        """Tokens to read of rows with a slot, before they are continued."""
        self._prompts: dict[int, tuple[int, ...]] = {}
        """What open rows have read at first, by key."""
        self._stopped: list[Turn] = []
        self.tokens_read = 0
        """Prefill tokens since the sampler was made."""
        self.tokens_copied = 0
        """Tokens copied from other rows instead of being read."""

    def start(self, request: Request) -> None:
        self._check_new(request.key)
        if not request.ids:
            raise ValueError(f"row {request.key} starts with no tokens; a model needs at least one to go on from")
        if not self._table.slot_of and not self._waiting:
            if self._engine.cache.holder is not None:
                raise ValueError("another sampler of this model has open rows; close them first")
            # Fused optimizers do not update the weights' version counters, so only a copy is sure to be current.
            self._engine.refresh()
            self._engine.cache.holder = self
        self._waiting[request.key] = request

    def extend(self, request: Request) -> None:
        slot = self._stopped_slot(request.key)
        self._begin(request, slot, (int(self._table.pending[slot]), *request.ids))

    @torch.inference_mode()
    def fork(self, key: int, request: Request) -> None:
        """Open `request.key` as a second row with the past of `key`, which has stopped and stays as it is. The new row
        continues as after `extend`, without reading its past. It takes a slot at once, before waiting rows."""
        self._stopped_slot(key)
        self._check_new(request.key)
        self._compact()
        table = self._table
        if not table.free:
            raise ValueError(f"no room to fork row {key}: {table.used} rows are open, and max_rows admits no more")
        source, slot = table.slot_of[key], table.take(request.key)
        length = int(table.length[source])
        self._reserve(length)
        self._copy([(source, slot, length)])
        table.pending[slot] = table.pending[source]
        self.extend(request)

    def close(self, key: int) -> None:
        self._waiting.pop(key, None)
        self._unread.pop(key, None)
        self._prompts.pop(key, None)
        self._stopped = [turn for turn in self._stopped if turn.key != key]
        if key in self._table.slot_of:
            self._table.drop(key)
        if not self._table.slot_of and not self._waiting and self._engine.cache.holder is self:
            self._engine.cache.holder = None

    def release(self) -> None:
        """Free the cache and the engine's copy of weights until the next row. Raises `ValueError` while rows are
        open."""
        self._engine.release()
        self._table.trim()

    @torch.inference_mode()
    def step(self, max_tokens: int | None = None) -> list[Turn]:
        """Like `Model.step`, but returns after at most `max_tokens` tokens per row, so that others may join."""
        self._compact()
        self._admit()
        self._prefill()
        min_stopped = max(1, int(self._table.live * self.settings.patience))
        budget = sys.maxsize if max_tokens is None else max_tokens
        while self._table.live and len(self._stopped) < min_stopped and budget:
            budget -= self._decode(budget)
        turns, self._stopped = self._stopped, []
        return turns

    def written(self, key: int, start: int = 0) -> list[int]:
        """The ids that an open row has sampled in its turn so far, from the index `start` on."""
        slot = self._table.slot_of.get(key)  # a row that waits has none
        return [] if slot is None else self._table.ids[slot, start : int(self._table.written[slot])].tolist()

    def _check_new(self, key: int) -> None:
        if key in self._waiting or key in self._table.slot_of:
            raise ValueError(f"a row with the key {key} is open already; close it first")

    def _stopped_slot(self, key: int) -> int:
        slot = self._table.slot_of.get(key)
        if slot is None or slot < self._table.live or key in self._unread:
            raise ValueError(f"row {key} is not open or has not stopped yet, so it cannot be continued")
        return slot

    def _begin(self, request: Request, slot: int, ids: tuple[int, ...]) -> None:
        """Begin a turn after the tokens `ids`, which are still to be read. A row that is too long is a fault."""
        self._table.begin_turn(slot, request.seed & SEED_MASK, request.max_tokens)
        length = int(self._table.length[slot]) + len(ids)
        if length >= self._max_length:
            fault = f"row {request.key} would hold {length} tokens before its turn, and the limit is {self._max_length}"
            self._stopped.append(Turn(request.key, (), (), TurnEnd.FAULT, fault))
            return
        self._table.budget[slot] = min(request.max_tokens, self._max_length - length)
        self._unread[request.key] = ids

    def _compact(self) -> None:
        """Compact the slots after rows were closed."""
        table = self._table
        self._exchange(*table.partition(table.open[: table.live]))
        table.live = int(table.open[: table.live].sum())
        self._exchange(*table.partition(table.open[: table.used]))
        table.used = int(table.open[: table.used].sum())

    def _admit(self) -> None:
        """Give free slots to waiting rows, in order."""
        table = self._table
        for request in list(self._waiting.values())[: table.free]:
            del self._waiting[request.key]
            self._begin(request, table.take(request.key), request.ids)

    def _prefill(self) -> None:
        """Prefill all but each row's last token, which is read with the first sampled one."""
        if not self._unread:
            return
        table = self._table
        front = np.arange(table.used) < table.live
        front[[table.slot_of[key] for key in self._unread]] = True
        self._reserve(0)  # a new row may have a slot that the engine has not allocated
        self._exchange(*table.partition(front))
        table.live += len(self._unread)
        unread_rows = [(table.slot_of[key], ids) for key, ids in self._unread.items()]
        for slot, ids in unread_rows:
            table.pending[slot] = ids[-1]
        pieces = [(slot, ids[:-1]) for slot, ids in unread_rows]
        self._unread = {}
        # The rows' lengths at the end of their turns, without the tokens still to be read.
        self._reserve(int((table.length + table.budget - table.written)[: table.live].max()))
        self._engine.cache.clear(_indices([slot for slot, _ in pieces if table.length[slot] == 0], self._engine.device))
        self._prefill_pieces(self._prefill_shared(pieces) if self.settings.share else pieces)
        self._stop_read_only()

    def _stop_read_only(self) -> None:
        """Stop the rows with a budget of 0, which are only read."""
        table = self._table
        front = table.budget[: table.live] > 0
        self._stopped += [Turn(int(key), (), (), TurnEnd.LENGTH) for key in table.key[: table.live][~front]]
        self._exchange(*table.partition(front))
        table.live = int(front.sum())

    def _prefill_shared(self, pieces: Sequence[PromptPiece]) -> list[PromptPiece]:
        """Read common prefixes of new rows once, if no open row has read them; returns the remaining pieces."""
        table = self._table
        new_rows = [(slot, ids) for slot, ids in pieces if table.length[slot] == 0]
        open_rows: list[PromptPiece] = []
        if new_rows and not self._engine.cache.states:  # a layer's state is that of a row's end alone
            slot_of = {ids: table.slot_of[key] for key, ids in self._prompts.items()}
            open_rows = [(slot, ids) for ids, slot in slot_of.items()]
        rounds, remaining_ids = plan_prefix_sharing(new_rows, open_rows)
        self._prompts |= {int(table.key[slot]): ids for slot, ids in new_rows}
        for sharing_round in rounds:
            self._prefill_pieces(sharing_round.pieces)
            self._copy(sharing_round.copies)
        return [(slot, remaining_ids.get(slot, ids)) for slot, ids in pieces]

    def _copy(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy the beginnings of rows to other rows, in the cache."""
        table, device = self._table, self._engine.device
        sources, targets, lengths = np.array(copies).T
        self._engine.cache.copy(_indices(sources, device), _indices(targets, device), int(lengths.max()))
        table.length[targets] = lengths
        self.tokens_copied += int(lengths.sum())

    def _prefill_pieces(self, pieces: Sequence[PromptPiece]) -> None:
        while pieces := [(slot, ids) for slot, ids in pieces if ids]:
            for group in _groups([(slot, ids[:READ_TOKENS]) for slot, ids in pieces]):
                self._prefill_group(group)
            pieces = [(slot, ids[READ_TOKENS:]) for slot, ids in pieces]

    def _prefill_group(self, group: Sequence[PromptPiece]) -> None:
        width = max(len(ids) for _, ids in group)
        ids_BW = torch.zeros((len(group), width), dtype=torch.long)
        for row, (_, ids) in enumerate(group):
            ids_BW[row, : len(ids)] = torch.tensor(ids)
        slots = np.array([slot for slot, _ in group])
        lengths = np.array([len(ids) for _, ids in group])
        device = self._engine.device
        starts = self._table.length[slots]
        block = TokenBlock(
            ids_BW.to(device), _indices(slots, device), _indices(starts, device), lengths.tolist(),
            int(starts.max()) + width, first=np.array_equal(slots, np.arange(len(slots))),
        )  # fmt: skip
        self._reserve(block.end)
        self._engine.read(block)
        self._table.length[slots] += lengths
        self.tokens_read += int(lengths.sum())

    def _reserve(self, columns: int) -> None:
        """Reserve at least this many columns for all open rows, and at least their lengths."""
        used_slots = self._table.used
        self._engine.reserve(used_slots, max(columns, int(self._table.length[:used_slots].max())))

    def _decode(self, max_tokens: int) -> int:
        """Sample at most `max_tokens` tokens, and at most the engine's `run_ahead`, on every live row; returns their
        number. Tokens that a row sampled after the end of its turn are dropped."""
        table, device = self._table, self._engine.device
        live = table.live
        budget_B = (table.budget - table.written)[:live]
        count = min(max_tokens, self._engine.run_ahead, int(budget_B.max()))
        needed = int((table.length[:live] + np.minimum(budget_B, count - 1)).max()) + 1
        padded = min(self._engine.padded(live), len(table.length))
        self._reserve(needed if padded == live else max(needed, int(table.length[: table.used].max()) + 1))
        # Rows that wait, and rows with no budget left, rewrite the column after their end, which is read before use.
        starts_SB = np.repeat(np.where(table.open, table.length, 0)[None, :padded], count, axis=0)
        starts_SB[:, :live] += np.minimum(np.arange(count)[:, None], budget_B)
        # The sampled token's position is one after the pending token's.
        uniform_SB = torch.from_numpy(uniforms(table.seed[:live], starts_SB[:, :live] + 1)).to(device)
        starts_S, ids_B = _indices(starts_SB, device), _indices(table.pending[:padded], device)
        samples_S = []
        for number in range(count):
            end = int(starts_SB[number].max()) + 1
            logits_BV = self._engine.step(ids_B, starts_S[number], end)[:live]
            sampled_B, logprobs_B = sample_filtered(logits_BV, uniform_SB[number], self.settings)
            ids_B = sampled_B if padded == live else torch.cat((sampled_B, ids_B[live:]))
            samples_S.append(torch.stack((sampled_B.double(), logprobs_B.double())))
        # One transfer, since each waits for the device. A double represents every id.
        samples_S2B: NDArray[np.float64] = torch.stack(samples_S).cpu().numpy()
        self._record(samples_S2B[:, 0].astype(np.int64), samples_S2B[:, 1])
        return count

    def _record(self, ids_SB: NDArray[np.int64], logprobs_SB: NDArray[np.float64]) -> None:
        """Append the sampled tokens to the live rows, each up to the end of its turn, and stop rows that ended."""
        table = self._table
        is_running = np.ones(table.live, np.bool_)
        for ids, logprobs in zip(ids_SB, logprobs_SB, strict=True):
            table.record(is_running, ids, logprobs)
            candidates = self._stops.maybe[ids] | self._is_end[ids] | ~np.isfinite(logprobs)
            candidates |= (table.written >= table.budget)[: table.live]
            for slot in np.flatnonzero(candidates & is_running).tolist():
                turn = self._turn(slot, not np.isfinite(logprobs[slot]))
                if turn is not None:
                    self._stopped.append(turn)
                    is_running[slot] = False
        self._exchange(*table.partition(is_running))
        table.live = int(is_running.sum())

    def _turn(self, slot: int, broken: bool) -> Turn | None:
        """The turn in a slot, if it has ended."""
        key = int(self._table.key[slot])
        ids, logprobs = self._table.turn(slot)
        if broken:
            return Turn(key, ids[:-1], logprobs[:-1], TurnEnd.FAULT, "the model's output is not a number")
        if self._stops.completed(ids):
            return Turn(key, ids, logprobs, TurnEnd.STOP)
        if self._is_end[ids[-1]]:
            return Turn(key, ids, logprobs, TurnEnd.EOS)
        if len(ids) >= self._table.budget[slot]:
            return Turn(key, ids, logprobs, TurnEnd.LENGTH)
        return None

    def _exchange(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        """Apply the exchanges of `SlotTable.partition` to the cache."""
        if len(first):
            columns = int(max(self._table.length[first].max(), self._table.length[second].max()))
            first_N, second_N = _indices(first, self._engine.device), _indices(second, self._engine.device)
            self._engine.cache.copy(torch.cat((first_N, second_N)), torch.cat((second_N, first_N)), columns)


def make_engine(model: PreTrainedModel, dtype: torch.dtype) -> Engine:
    """The fastest engine that supports the network."""
    return GeneralEngine(model, dtype) if family_of(model) is None else FusedEngine(model, dtype)


def rows_that_fit(gib: float, model: PreTrainedModel, dtype: Precision, tokens: int) -> int:
    """Number of rows of `tokens` tokens whose keys and values fit in `gib` GiB.

    Raises `DataError` for a model of unknown size.
    """
    shape = shape_of_config(model.config.get_text_config().to_dict())
    return int(gib * 2**30 / max(1, tokens * shape.cache_bytes(DTYPES[dtype].itemsize)))


def pick_dtype(setting: PrecisionSetting, model: PreTrainedModel) -> Precision:
    """The precision in which the network is sampled."""
    return precision_of(setting, Use.SAMPLING, int(model.config.get_text_config().hidden_size), str(model.device))


def _groups(pieces: Sequence[PromptPiece]) -> list[list[PromptPiece]]:
    """Group pieces of similar length, about `READ_TOKENS` tokens each, to reduce padding."""
    groups: list[list[PromptPiece]] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece[1])):
        # The first piece of a group is its longest.
        if groups and len(groups[-1][0][1]) * (len(groups[-1]) + 1) <= READ_TOKENS:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _indices(values: NDArray[np.int64] | Sequence[int], device: torch.device) -> Tensor:
    # A copy: the slot table's arrays change while the tensor is in use.
    return torch.tensor(np.asarray(values, dtype=np.int64), device=device)


def _eos_table(model: PreTrainedModel, tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which ids are end-of-text tokens of the tokenizer or the model's generation settings."""
    table = np.zeros(int(model.config.get_text_config().vocab_size), np.bool_)
    eos_ids = getattr(model.generation_config, "eos_token_id", None)
    ends = (tokenizer.eos_id, *(eos_ids if isinstance(eos_ids, list) else [eos_ids]))
    table[[end for end in ends if end is not None and end < len(table)]] = True
    return table


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BITS = 23
"""Bits of a uniform number. With the added half that excludes 0 and 1, float32 holds it exactly."""


def uniforms(seeds_B: NDArray[np.uint64], positions_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """One number in (0, 1) per row, a function of seed and position: two rounds of the splitmix64 finaliser."""
    mixed = _mix(_mix(seeds_B + _GOLDEN) ^ ((positions_B.astype(np.uint64) + np.uint64(1)) * _GOLDEN))
    return ((mixed >> np.uint64(64 - _BITS)).astype(np.float64) + 0.5).astype(np.float32) * np.float32(2.0**-_BITS)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def sample_tokens(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Token ids and natural log-probabilities per row, by inverting the cumulative distribution. Temperature 0 selects
    the most likely token, with its log-probability at temperature 1. Logits that are not finite give a log-probability
    that is not finite."""
    if temperature == 0.0:
        best_B = logits_BV.argmax(dim=-1)
        return best_B, logits_BV.gather(1, best_B[:, None])[:, 0] - logits_BV.logsumexp(dim=-1)
    shifted_BV = logits_BV - logits_BV.amax(dim=-1, keepdim=True)
    if temperature != 1.0:
        shifted_BV /= temperature
    cumulative_BV = shifted_BV.exp().cumsum(dim=-1)
    total_B1 = cumulative_BV[:, -1:]
    # Rounding must not lift the threshold to the total, beyond the last token with probability.
    threshold_B1 = torch.minimum(uniform_B[:, None] * total_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    ids_B1 = torch.searchsorted(cumulative_BV, threshold_B1, right=True).clamp_(max=logits_BV.shape[1] - 1)
    return ids_B1[:, 0], (shifted_BV.gather(1, ids_B1) - total_B1.log())[:, 0]


def sample_filtered(logits_BV: Tensor, uniform_B: Tensor, settings: SamplerSettings) -> tuple[Tensor, Tensor]:
    """`sample_tokens` of filtered logits."""
    if settings.top_p < 1.0 or settings.top_k:
        logits_BV = filter_logits(logits_BV, settings.temperature, settings.top_p, settings.top_k)
    return sample_tokens(logits_BV, uniform_B, settings.temperature)


def filter_logits(logits_BV: Tensor, temperature: float, top_p: float, top_k: int) -> Tensor:
    """Set logits to −∞ beyond the `top_k` most likely tokens (0: none) and the mass `top_p`, except the most likely."""
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True)
    removed_BV = torch.zeros_like(sorted_BV, dtype=torch.bool)
    if top_k:
        removed_BV[:, top_k:] = True
    if top_p < 1.0:
        mass_BV = (sorted_BV / (temperature or 1.0)).softmax(dim=-1)
        removed_BV |= mass_BV.cumsum(dim=-1) - mass_BV >= top_p
    removed_BV[:, 0] = False
    return logits_BV.masked_fill(torch.zeros_like(removed_BV).scatter(1, order_BV, removed_BV), -torch.inf)
