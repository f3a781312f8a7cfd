"""Sampler: continues many rows at once and never reads a token twice. Knows stop strings; nothing of tags or passages.

Rows come and go as they please (continuous batching). What a row draws depends on its own seed and positions alone, so
a row is the same whoever shares its batch. (In float32. Matrix products of different sizes differ in the last bits; in
bfloat16 these are large enough to tip a draw now and then.)
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from coseek.core.settings import Settings
from coseek.hardware.precision import Precision, PrecisionSetting, SamplingPrecision, Use
from coseek.hardware.speed import precision_of
from coseek.models.engine import Engine, TokenBlock
from coseek.models.engines.general import GeneralEngine
from coseek.models.engines.lfm2 import Lfm2Engine
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.prefix_sharing import PromptPiece, plan_prefix_sharing
from coseek.models.pretrained import DTYPES
from coseek.models.slots import SlotTable
from coseek.models.stop_strings import StopStrings
from coseek.models.token_sampling import filter_logits, sample_tokens, uniforms

SEED_MASK = 2**64 - 1
READ_TOKENS = 4096
"""About how many tokens are read in one forward pass: enough to keep a processor busy, few enough for its memory."""


class SamplerSettings(Settings):
    """How tokens are drawn and how many rows are written at once."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Divides the logits; 0 always takes the most likely token."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Draw from the most likely tokens of this mass only. Below 1 it is for evaluation: see `on_policy`."""
    top_k: int = Field(default=0, ge=0)
    """Draw from this many most likely tokens only; 0 means all. Above 0 it is for evaluation: see `on_policy`."""
    max_rows: int = Field(default=256, ge=1)
    """Rows that are kept in the cache at once; more are taken up as these are closed."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Longest row, prompt included; the model's own limit when not set."""
    dtype: SamplingPrecision = "float32"
    """Precision of weights and cache while sampling; `auto` is what is fastest here for a model of this width."""
    patience: float = Field(default=0.25, ge=0.0, lt=1.0)
    """Share of the rows being written that may have stopped before the driver hears of them. Waiting lets searches
    and readings happen in batches; 0 reports every row at once. It changes the speed and no row."""
    share: bool = True
    """Rows that are opened together and begin alike are read once as far as they do (in float32, and but for the last
    bits of their log-probabilities, it changes no row)."""

    @property
    def on_policy(self) -> bool:
        """Log-probabilities are those of the whole softmax, so a trainer may compare its own with them."""
        return self.temperature > 0.0 and self.top_p == 1.0 and self.top_k == 0


class Sampler:
    """Implements `Model` over the weights of a Hugging Face causal language model.

    The weights are the module's own: train it, and the next row is written by the trained model. Where they have to
    be copied (another precision, a faster layout), the copy is brought up to date when a row is opened and no other
    is open. Close all rows before you train: what an open row has read was read with the old weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        settings: SamplerSettings | None = None,
    ) -> None:
        self.settings = settings or SamplerSettings()
        self.tokenizer = tokenizer
        config = model.config.get_text_config()
        self._model = model
        self._engine = make_engine(model, DTYPES[pick_dtype(self.settings.dtype, model)])
        self._stops = StopStrings(stops, tokenizer, int(config.vocab_size))
        self._is_end = _end_table(model, tokenizer)
        longest = int(getattr(config, "max_position_embeddings", 0) or 2**31)
        self._longest = min(longest, self.settings.max_tokens or longest)
        self._board = SlotTable(self.settings.max_rows)
        self._waiting: dict[int, Request] = {}
        """Rows that are to be opened as soon as there is room."""
        self._unread: dict[int, tuple[int, ...]] = {}
        """Rows that hold a line of the board and have something to read before they are written."""
        self._stopped: list[Turn] = []
        self.tokens_read = 0
        """Tokens read ahead of writing, since the sampler was made."""
        self.tokens_copied = 0
        """Tokens that would have been read as well if no row took over what another one held."""

    def start(self, request: Request) -> None:
        self._check_new(request.key)
        if not request.ids:
            raise ValueError(f"row {request.key} starts with no tokens; a model needs at least one to go on from")
        if not self._board.slot_of and not self._waiting:
            # Fused optimisers write to weights behind the back of their version counters, so nothing short of copying
            # anew is sure to see a trained module as it is.
            self._engine.refresh()
        self._waiting[request.key] = request

    def extend(self, request: Request) -> None:
        slot = self._stopped_slot(request.key)
        self._board.begin_turn(slot, request.seed & SEED_MASK, request.max_tokens)
        self._queue(request, slot, (int(self._board.pending[slot]), *request.ids))

    @torch.inference_mode()
    def fork(self, key: int, request: Request) -> None:
        """Open `request.key` as a second row with the past of `key`, which has stopped and stays as it is.

        The new row goes on as if `extend` had been said of it, and reads nothing of its past. It takes room at once:
        before the rows that wait for some.
        """
        self._stopped_slot(key)
        self._check_new(request.key)
        self._arrange()
        board = self._board
        if not board.free:
            raise ValueError(f"no room to fork row {key}: {board.used} rows are open, and max_rows admits no more")
        source, slot = board.slot_of[key], board.take(request.key)
        length = int(board.length[source])
        self._engine.reserve(board.used, length)
        self._copy([(source, slot)])
        board.pending[slot] = board.pending[source]
        self.extend(request)

    @property
    def max_rows(self) -> int:
        return self.settings.max_rows

    def close(self, key: int) -> None:
        self._waiting.pop(key, None)
        self._unread.pop(key, None)
        self._stopped = [turn for turn in self._stopped if turn.key != key]
        if key in self._board.slot_of:
            self._board.drop(key)

    @torch.inference_mode()
    def step(self, most_tokens: int | None = None) -> list[Turn]:
        """As `Model.step`; after `most_tokens` a row it returns even when none has stopped, so that others may join."""
        self._arrange()
        self._place()
        self._read()
        enough = max(1, int(self._board.live * self.settings.patience))
        left = -1 if most_tokens is None else most_tokens
        while self._board.live and len(self._stopped) < enough and left:
            self._write()
            left -= 1
        turns, self._stopped = self._stopped, []
        return turns

    def _check_new(self, key: int) -> None:
        if key in self._waiting or key in self._board.slot_of:
            raise ValueError(f"a row with the key {key} is open already; close it first")

    def _stopped_slot(self, key: int) -> int:
        slot = self._board.slot_of.get(key)
        if slot is None or slot < self._board.live or key in self._unread:
            raise ValueError(f"row {key} is not open or has not stopped yet, so it cannot go on")
        return slot

    def _queue(self, request: Request, slot: int, ids: tuple[int, ...]) -> None:
        """Note what a row has to read, unless that is more than a row can hold."""
        room = self._longest - int(self._board.length[slot]) - len(ids)
        if room < 1:
            held = self._longest - room
            fault = f"row {request.key} would hold {held} tokens before it is written, and the limit is {self._longest}"
            self._stopped.append(Turn(request.key, (), (), TurnEnd.FAULT, fault))
            return
        self._board.budget[slot] = min(request.max_tokens, room)
        self._unread[request.key] = ids

    def _arrange(self) -> None:
        """Close the gaps that closed rows left."""
        board = self._board
        self._exchange(*board.partition(board.open[: board.live]))
        board.live = int(board.open[: board.live].sum())
        self._exchange(*board.partition(board.open[: board.used]))
        board.used = int(board.open[: board.used].sum())

    def _place(self) -> None:
        """Give lines of the board to waiting rows, first come, first served."""
        board = self._board
        for request in list(self._waiting.values())[: board.free]:
            del self._waiting[request.key]
            slot = board.take(request.key)
            board.begin_turn(slot, request.seed & SEED_MASK, request.max_tokens)
            self._queue(request, slot, request.ids)

    def _read(self) -> None:
        """Read what is to be read, all but each row's last token: that one is read when the first is written."""
        if not self._unread:
            return
        board = self._board
        front = np.arange(board.used) < board.live
        front[[board.slot_of[key] for key in self._unread]] = True
        # A row that was placed beside open ones may have a slot that the engine has never seen.
        self._engine.reserve(board.used, int(board.length[: board.used].max()))
        self._exchange(*board.partition(front))
        board.live += len(self._unread)
        pieces = []
        for key, ids in self._unread.items():
            slot = board.slot_of[key]
            board.pending[slot] = ids[-1]
            pieces.append((slot, ids[:-1]))
        self._unread = {}
        self._engine.reserve(board.used, int((board.length + board.budget)[: board.live].max()))
        self._engine.clear(_indices([slot for slot, _ in pieces if board.length[slot] == 0], self._engine.device))
        self._read_pieces(self._read_shared(pieces) if self.settings.share else pieces)
        self._rest()

    def _rest(self) -> None:
        """Take the rows that are to write nothing from among the live ones: they were only to be read."""
        board = self._board
        front = board.budget[: board.live] > 0
        self._stopped += [Turn(int(key), (), (), TurnEnd.LENGTH) for key in board.key[: board.live][~front]]
        self._exchange(*board.partition(front))
        board.live = int(front.sum())

    def _read_shared(self, pieces: Sequence[PromptPiece]) -> list[PromptPiece]:
        """Read once what new rows have in common; returns what is left of all pieces."""
        rounds, left = plan_prefix_sharing([(slot, ids) for slot, ids in pieces if self._board.length[slot] == 0])
        for one in rounds:
            self._read_pieces(one.pieces)
            self._copy(one.copies)
        return [(slot, left.get(slot, ids)) for slot, ids in pieces]

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Let rows take over what others hold."""
        board, device = self._board, self._engine.device
        sources, targets = (np.array(slots) for slots in zip(*copies, strict=True))
        lengths = board.length[sources]
        self._engine.copy(_indices(sources, device), _indices(targets, device), int(lengths.max()))
        board.length[targets] = lengths
        self.tokens_copied += int(lengths.sum())

    def _read_pieces(self, pieces: Sequence[PromptPiece]) -> None:
        while pieces := [(slot, ids) for slot, ids in pieces if ids]:
            for group in _groups([(slot, ids[:READ_TOKENS]) for slot, ids in pieces]):
                self._read_group(group)
            pieces = [(slot, ids[READ_TOKENS:]) for slot, ids in pieces]

    def _read_group(self, group: Sequence[PromptPiece]) -> None:
        width = max(len(ids) for _, ids in group)
        ids_BW = torch.zeros((len(group), width), dtype=torch.long)
        for row, (_, ids) in enumerate(group):
            ids_BW[row, : len(ids)] = torch.tensor(ids)
        slots = np.array([slot for slot, _ in group])
        lengths = np.array([len(ids) for _, ids in group])
        device = self._engine.device
        starts_B = _indices(self._board.length[slots], device)
        block = TokenBlock(ids_BW.to(device), _indices(slots, device), starts_B, _indices(lengths, device))
        self._engine.reserve(self._board.used, block.end)
        self._engine.read(block)
        self._board.length[slots] += lengths
        self.tokens_read += int(lengths.sum())

    def _write(self) -> None:
        """One more token on every live row."""
        board, device = self._board, self._engine.device
        live = slice(0, board.live)
        self._engine.reserve(board.used, int(board.length[live].max()) + 1)
        logits_BV = self._engine.step(_indices(board.pending[live], device), _indices(board.length[live], device))
        # A token's position in its row is one after that of the pending token.
        uniform_B = torch.from_numpy(uniforms(board.seed[live], board.length[live] + 1)).to(device)
        if self.settings.top_p < 1.0 or self.settings.top_k:
            logits_BV = filter_logits(logits_BV, self.settings.temperature, self.settings.top_p, self.settings.top_k)
        drawn_B, logprobs_B = sample_tokens(logits_BV, uniform_B, self.settings.temperature)
        ids: NDArray[np.int64] = drawn_B.cpu().numpy()
        board.record(ids, logprobs_B.double().cpu().numpy())
        self._retire(ids)

    def _retire(self, ids: NDArray[np.int64]) -> None:
        """Take the rows whose turn has ended from among the live ones."""
        board = self._board
        last = np.arange(board.live), board.written[: board.live] - 1
        broken = ~np.isfinite(board.logprobs[last])
        candidates = self._stops.maybe[ids] | self._is_end[ids] | (board.written >= board.budget)[: board.live] | broken
        front = np.ones(board.live, np.bool_)
        for slot in np.flatnonzero(candidates).tolist():
            turn = self._turn(slot, bool(broken[slot]))
            if turn is not None:
                self._stopped.append(turn)
                front[slot] = False
        self._exchange(*board.partition(front))
        board.live = int(front.sum())

    def _turn(self, slot: int, broken: bool) -> Turn | None:
        """The turn in this slot, if it has ended."""
        key = int(self._board.key[slot])
        ids, logprobs = self._board.turn(slot)
        if broken:
            return Turn(key, ids[:-1], logprobs[:-1], TurnEnd.FAULT, "the model's output is not a number")
        if self._stops.completed(ids):
            return Turn(key, ids, logprobs, TurnEnd.STOP)
        if self._is_end[ids[-1]]:
            return Turn(key, ids, logprobs, TurnEnd.EOS)
        if len(ids) >= self._board.budget[slot]:
            return Turn(key, ids, logprobs, TurnEnd.LENGTH)
        return None

    def _exchange(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        """Let the cache follow what `Board.partition` did."""
        if len(first):
            columns = int(max(self._board.length[first].max(), self._board.length[second].max()))
            self._engine.swap(_indices(first, self._engine.device), _indices(second, self._engine.device), columns)


def make_engine(model: PreTrainedModel, dtype: torch.dtype) -> Engine:
    """The fastest engine that can run this network."""
    return Lfm2Engine(model, dtype) if Lfm2Engine.can_run(model) else GeneralEngine(model, dtype)


def pick_dtype(wish: PrecisionSetting, model: PreTrainedModel) -> Precision:
    """The precision that this network is sampled in."""
    return precision_of(wish, Use.SAMPLING, int(model.config.get_text_config().hidden_size), model.device.type)


def _groups(pieces: Sequence[PromptPiece]) -> list[list[PromptPiece]]:
    """Pieces of like length together, so that little is padded; about `READ_TOKENS` tokens a group."""
    groups: list[list[PromptPiece]] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece[1])):
        # The first piece of a group is its longest.
        if groups and len(groups[-1][0][1]) * (len(groups[-1]) + 1) <= READ_TOKENS:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    return groups


def _indices(values: NDArray[np.int64] | Sequence[int], device: torch.device) -> Tensor:
    # A copy: the board's arrays change while a tensor that shared their memory would still be in use.
    return torch.tensor(np.asarray(values, dtype=np.int64), device=device)


def _end_table(model: PreTrainedModel, tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which ids end a text: the tokenizer's, and those that the model's own generation settings name."""
    table = np.zeros(int(model.config.get_text_config().vocab_size), np.bool_)
    settings = model.generation_config
    named = settings.eos_token_id if settings is not None else None
    ends = {tokenizer.eos_id, *(named if isinstance(named, list) else [named] if named is not None else [])}
    table[[end for end in ends if end < len(table)]] = True
    return table
