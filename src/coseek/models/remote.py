"""Remote: a model behind HTTP, with the sampled ids and log-probabilities if the server returns them.

Each request contains the whole row, which servers have in their prefix caches; servers keep no other state.

If a server returns text only, the text is tokenised and the turn is marked as inexact: usable for evaluation, not for
training.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Annotated, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.http import HttpClient, HttpFailure
from coseek.core.prompt_file import without_role_marks
from coseek.core.settings import MayChange
from coseek.models.dialect import RowSegment, ServerTurn, TurnRequest, dialect_of, why_wordless
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.server import (
    FIXED,
    NEUTRAL,
    Prices,
    ServerPaths,
    ServerSettings,
    Usage,
    check_read,
    open_client,
    read_usage,
    refused_field,
    with_changes,
)
from coseek.models.tokenizer import ByteTokenizer, stopped_after
from coseek.models.written import ToolCallText


@dataclass(slots=True)
class CalledRow:
    """A row so far."""

    max_tokens: int = 0
    """Of the latest request."""
    version: int | None = None
    """The version of the weights at the latest request."""


AnswerT = TypeVar("AnswerT")
RowT = TypeVar("RowT", bound=CalledRow)
EndedCall = tuple[int, "Future[AnswerT]"]
"""A row's key, and its call."""


class RowCalls(ABC, Generic[RowT, AnswerT]):
    """Implements `ServedModel` except `tokenizer` and `concurrency`. Driven by one thread."""

    done: "SimpleQueue[EndedCall[AnswerT] | None]"
    """Rows with their ended calls; `None` wakes `step`."""
    failures: ClassVar[tuple[type[Exception], ...]]
    """The exceptions of failed calls, and `ValueError` for an invalid response."""

    def __init__(self, new_row: Callable[[], RowT]) -> None:
        """`new_row` makes a row without tokens."""
        self._new_row = new_row
        self._rows: dict[int, RowT] = {}
        self._calls: dict[int, Future[AnswerT]] = {}
        """The calls of turns that were requested and not returned yet, by row."""

    @abstractmethod
    def _call(self, row: RowT, request: Request) -> "Future[AnswerT]":
        """Add a request's ids to its row, and request the next turn."""

    @abstractmethod
    def _read(self, key: int, row: RowT, answer: AnswerT) -> Turn:
        """Parse a turn from a response and append its ids to the row. Raises `ValueError` for an invalid response."""

    def _describe_error(self, row: RowT, error: Exception) -> str:
        """The description of a failed call."""
        return str(error) or type(error).__name__

    def start(self, request: Request) -> None:
        if request.key in self._rows:
            raise ValueError(f"a row with the key {request.key} is open already; close it first")
        self._rows[request.key] = self._new_row()
        self._send(request)

    def extend(self, request: Request) -> None:
        if request.key not in self._rows or request.key in self._calls:
            raise ValueError(f"row {request.key} is not open or has not stopped yet, so it cannot be extended")
        self._send(request)

    @property
    def pending(self) -> "list[Future[AnswerT]]":
        """The calls of turns that were requested and not returned yet."""
        return list(self._calls.values())

    def wake(self) -> None:
        self.done.put(None)

    def step(self) -> list[Turn]:
        """Wait for at least one row, or until `wake`; returns the turns of all finished rows."""
        return collect(self.done, self.taken, []) if self._calls else []

    def close(self, key: int) -> None:
        """Close a row and cancel its pending call."""
        self._rows.pop(key, None)
        call = self._calls.pop(key, None)
        if call is not None:
            call.cancel()

    def taken(self, key: int, call: "Future[AnswerT]") -> list[Turn]:
        """The turn of an ended call; empty for a row that was closed in the meantime."""
        if self._calls.get(key) is not call:
            return []
        del self._calls[key]
        try:
            return [self._read(key, self._rows[key], call.result())]
        except CancelledError:
            fault = "the connection to the server was closed"
        except self.failures as error:
            fault = self._describe_error(self._rows[key], error)
        return [Turn(key, (), (), TurnEnd.FAULT, fault)]

    def _send(self, request: Request) -> None:
        row, key, done = self._rows[request.key], request.key, self.done
        row.max_tokens = request.max_tokens
        self._calls[key] = call = self._call(row, request)
        call.add_done_callback(lambda call: done.put((key, call)))


def collect(
    done: "SimpleQueue[EndedCall[AnswerT] | None]",
    read: Callable[[int, "Future[AnswerT]"], list[Turn]],
    turns: list[Turn],
) -> list[Turn]:
    """Add the turns of ended calls to `turns`. Waits until there is one, or for `None`."""
    with suppress(Empty):
        while (ended_call := done.get(block=not turns)) is not None:
            turns += read(*ended_call)
    return turns


def check_turn(ids: Sequence[int], logprobs: Sequence[float]) -> None:
    """Raise `ValueError` unless each token has its log-probability."""
    if len(ids) != len(logprobs):
        raise ValueError(f"its answer holds {len(ids)} token ids and {len(logprobs)} log-probabilities")


def cut_at_stop(
    ids: tuple[int, ...], end: TurnEnd, stops: Sequence[str], tokenizer: Tokenizer, max_tokens: int
) -> tuple[tuple[int, ...], TurnEnd]:
    """Cut the ids after the first stop string, which some servers check only every few tokens, and return why they end.
    Raises `ValueError` for more ids than requested."""
    length = stopped_after(ids, stops, tokenizer)
    if length is not None:
        ids, end = ids[:length], TurnEnd.STOP
    if len(ids) > max_tokens:
        raise ValueError(f"it wrote {len(ids)} tokens, but at most {max_tokens} were requested")
    return ids, end


log = logging.getLogger(__name__)
_OWNERS = {"vllm": "vllm", "sglang": "sglang"}
"""Maps `owned_by` in a server's model list to its dialect."""


class RemoteModelSettings(ServerSettings):
    """Requests to a model behind HTTP."""

    dialect: Literal["auto", "vllm", "sglang", "completions", "chat", "tools"] = "auto"
    """The server's dialect; `auto` asks the server. `completions`, `chat` and `tools` are text only and not for
    training."""
    prices: Annotated[Prices, MayChange()] = Field(default=Prices())
    """The server's prices."""
    scaled_logprobs: bool = False
    """True for a vLLM started with `--logprobs-mode processed_logprobs`. Otherwise its log-probabilities are those at
    temperature 1, and samples at another temperature are not for training."""


_MAX_REPEATS = 2
_DECODED_SEGMENTS = 512
"""Segments of ids whose text is cached."""


@dataclass(slots=True)
class _RemoteRow(CalledRow):
    segments: list[RowSegment] = field(default_factory=list)
    sent: tuple[str, ...] = ()
    """Fields of the latest turn's request."""
    calls: tuple[ToolCallText, ...] = ()
    """Tool calls that the server removed from the latest turn's text."""
    repeats: int = 0
    """Consecutive turns with the same calls."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The dialect and model of a server."""

    dialect: str
    model: str
    paths: ServerPaths = field(default_factory=lambda: ServerPaths(""))
    owner: str = ""
    """`owned_by` in the server's list of models, which identifies the kind of server; "" if unknown."""

    @property
    def neutral(self) -> JsonObject:
        """Fields that reset the model's own generation settings, if the server accepts such fields."""
        return {} if dialect_of(self.dialect).EXACT else NEUTRAL.get(self.owner, {})


@dataclass
class RemoteModel(RowCalls[_RemoteRow, JsonObject]):
    """Implements `ServedModel`. Driven by one thread; calls run in the background."""

    failures = (HttpFailure, ValueError)

    calls: HttpClient
    served: ServerInfo
    tokenizer: Tokenizer
    stops: tuple[str, ...]
    temperature: float
    settings: RemoteModelSettings
    words_of: Callable[[ServerTurn], str] = field(default=lambda turn: turn.text)
    """Maps a reply of a text-only server to the text of the turn, with its reasoning and its tool calls in the format
    of the agent's protocol. Raises `ValueError` if the protocol has none."""
    lost_stop: Callable[[str], str] = field(default=lambda text: "")
    """Maps a text ended by a stop string to that string, which OpenAI's interface omits."""
    neutral: Callable[[str], str] = field(default=without_role_marks)
    """Neutralises role marks in the model's own turns where these are sent back as text."""
    tools: tuple[JsonObject, ...] = ()
    """Schemas of the tools for a server of the dialect `tools`."""
    text_stops: tuple[str, ...] | None = None
    """Stop strings sent to a text-only server, which cuts them off; the others are detected here."""
    ids_per_token: int = 1
    """Ids per token of the server: more than 1 if ids are bytes and its tokens are not."""
    usage: Usage = field(default_factory=Usage)
    done: "SimpleQueue[EndedCall[JsonObject] | None]" = field(default_factory=SimpleQueue)
    """Models of one pool share it."""
    version: int | None = None
    """The version of the server's weights; turns of another one are faults."""

    def __post_init__(self) -> None:
        super().__init__(_RemoteRow)
        self._dialect = dialect_of(self.served.dialect)
        self._reasoning_field = "reasoning_content"
        """The field in which the server returned reasoning last, and in which it is sent back."""
        self._decode = lru_cache(_DECODED_SEGMENTS)(self.tokenizer.decode)
        """Branches of one run begin with the same ids."""
        self.inexact = why_inexact(self.served.dialect, self.temperature, self.settings)
        """Why the turns cannot be trained on; empty if they can be."""

    @property
    def concurrency(self) -> int:
        """Rows that the server continues at once."""
        return self.calls.patience.concurrency

    def _call(self, row: _RemoteRow, request: Request) -> "Future[JsonObject]":
        row.segments += [self._segment(by_model, ids) for by_model, ids in _split_by_author(request)]
        turn_request = TurnRequest(
            model=self.served.model,
            segments=tuple(row.segments),
            max_tokens=self._server_tokens(request.max_tokens),
            stops=self.stops if self._dialect.EXACT or self.text_stops is None else self.text_stops,
            temperature=self.temperature,
            seed=request.seed,
            tools=self.tools,
            reasoning_field=self._reasoning_field,
        )
        row.version = self.version
        body = with_changes({**self.served.neutral, **self._dialect.body(turn_request)}, self.settings.send)
        row.sent = tuple(body)
        return self.calls.submit("POST", self.served.paths.path(self._dialect.PATH), body, request.rank)

    def _segment(self, by_model: bool, ids: tuple[int, ...]) -> RowSegment:
        """A segment as it is sent: its ids, or its text, in which a server would recognise marks."""
        text = self._decode(ids)
        return RowSegment(by_model, ids, self.neutral(text) if by_model and not self._dialect.EXACT else text)

    def _read(self, key: int, row: _RemoteRow, answer: JsonObject) -> Turn:
        tokens = read_usage(answer)
        self.usage.add(tokens)
        self._check_read(row, tokens)
        reply = self._dialect.read(answer)
        self._reasoning_field = reply.reasoning_field or self._reasoning_field
        turn = self._turn(key, row, reply)
        row.segments.append(self._segment(True, turn.ids))
        return replace(turn, cost_usd=self.settings.prices.of(tokens))

    def _server_tokens(self, ids: int) -> int:
        """The server's tokens for a budget of ids."""
        return max(1, ids // self.ids_per_token)

    def _describe_error(self, row: _RemoteRow, error: Exception) -> str:
        hint = refused_field(error, row.sent) if isinstance(error, HttpFailure) else ""
        return super()._describe_error(row, error) + hint

    def _check_read(self, row: _RemoteRow, tokens: tuple[int, int] | None) -> None:
        """Raise `ValueError` if the server read much less than was sent. Without its tokenizer, words are counted. The
        model's own turns count only where ids are sent: chat templates drop the reasoning of earlier ones."""
        if isinstance(self.tokenizer, ByteTokenizer):
            texts = (segment.text for segment in row.segments if not segment.by_model)
            check_read(tokens, sum(len(text.split()) for text in texts), words=True)
        else:
            sent = (segment.ids for segment in row.segments if self._dialect.EXACT or not segment.by_model)
            check_read(tokens, sum(map(len, sent)))

    def _turn(self, key: int, row: _RemoteRow, reply: ServerTurn) -> Turn:
        if not self._dialect.EXACT:
            if not self.tools:
                _check_repeats(row, reply)
            return self._turn_from_text(key, row.max_tokens, reply)
        ids, logprobs = reply.ids or (), reply.logprobs
        if None not in (reply.version, row.version) and reply.version != row.version:
            raise ValueError(f"it sampled with version {reply.version} of the weights, and not with {row.version}")
        check_turn(ids, logprobs)
        if not same_text(self.tokenizer.decode(ids), reply.text):
            raise ValueError("its tokens are not those of the tokenizer that was named; name the folder of its model")
        end = TurnEnd.LENGTH if reply.cut_off else TurnEnd.EOS
        ids, end = cut_at_stop(ids, end, self.stops, self.tokenizer, row.max_tokens)
        version = row.version if reply.version is None else reply.version
        return Turn(key, ids, logprobs[: len(ids)], end, exact=not self.inexact, version=version)

    def _words_within(self, reply: ServerTurn, max_tokens: int) -> str:
        """The turn's text. Separate reasoning is cut to the turn's budget, so that the turn keeps its action."""
        text = self.words_of(reply)
        if not reply.reasoning or len(self.tokenizer.encode_data(text)) <= max_tokens:
            return text
        bare = self.tokenizer.encode_data(self.words_of(replace(reply, reasoning="…")))
        budget = max(0, max_tokens - len(bare))
        reasoning = self.tokenizer.decode(self.tokenizer.encode_data(reply.reasoning)[:budget]).rstrip("\ufffd")
        return self.words_of(replace(reply, reasoning=reasoning))

    def _turn_from_text(self, key: int, max_tokens: int, reply: ServerTurn) -> Turn:
        """A turn from text. Its log-probabilities are unknown and set to 0."""
        if not reply.text.strip() and not reply.calls:
            way_out = "; raise the limit max_turn_tokens" if reply.cut_off else ""
            raise ValueError(why_wordless(reply, self._server_tokens(max_tokens)) + way_out)
        text, end = self._words_within(reply, max_tokens), TurnEnd.LENGTH if reply.cut_off else TurnEnd.EOS
        stop_ends = [text.find(stop) + len(stop) for stop in self.stops if stop in text]
        if stop_ends:
            text, end = text[: min(stop_ends)], TurnEnd.STOP
        elif not reply.cut_off and (lost_text := self.lost_stop(text)):
            text, end = text + lost_text, TurnEnd.STOP
        ids = tuple(self.tokenizer.encode_data(text))
        if len(ids) > max_tokens:
            ids, end = ids[:max_tokens], TurnEnd.LENGTH
        return Turn(key, ids, (0.0,) * len(ids), end, exact=False)


def _check_repeats(row: _RemoteRow, reply: ServerTurn) -> None:
    """Raise `ValueError` if a server keeps removing the same calls from the text: its model does not see their results,
    and each turn costs money."""
    row.repeats = row.repeats + 1 if reply.calls and reply.calls == row.calls else 0
    row.calls = reply.calls
    if row.repeats >= _MAX_REPEATS:
        raise ValueError(
            f"it returned the same call of the tool {row.calls[0].name!r} {row.repeats + 1} times in a row; take the "
            "protocol tools, or start the server without its tool parser (vLLM: without --enable-auto-tool-choice)"
        )


def _split_by_author(request: Request) -> list[tuple[bool, tuple[int, ...]]]:
    """Split a request's ids by author: (by the model, ids)."""
    spans: list[tuple[bool, tuple[int, ...]]] = []
    last_end = 0
    for start, end in request.written:
        spans += [(False, request.ids[last_end:start]), (True, request.ids[start:end])]
        last_end = end
    return [*spans, (False, request.ids[last_end:])]


def same_text(decoded: str, text: str) -> bool:
    """Whether two decodings of the same ids agree in their first halves, ignoring white space. Servers differ in
    leading spaces, partial characters and end of text. A tokenizer of another model decodes nonsense."""
    decoded, text = "".join(decoded.split()), "".join(text.split())
    half_length = min(len(decoded), len(text)) // 2
    return decoded[:half_length] == text[:half_length]


def why_inexact(dialect: str, temperature: float, settings: RemoteModelSettings) -> str:
    """Why a server's turns cannot be trained on; empty if they can be."""
    module = dialect_of(dialect)
    if not module.EXACT:
        return (
            f"the server is asked for text only ({dialect}), so the ids are not those that were sampled and have no "
            "log-probabilities; use a server that returns them: vLLM or SGLang"
        )
    if settings.send:
        return f"`send` changes the fields {', '.join(settings.send)} of the requests, on which the samples may depend"
    if temperature not in (0.0, 1.0) and not (module.SCALED or settings.scaled_logprobs):
        return (
            f"the server's log-probabilities are those at temperature 1, and rows were drawn at {temperature:g}; start "
            "vLLM with --logprobs-mode processed_logprobs, and set scaled_logprobs"
        )
    return ""


def detect_server(calls: HttpClient, paths: ServerPaths, dialect: str, model: str | None) -> ServerInfo:
    """Determine the server's dialect (if `auto`) and model (if not named), asking the server if needed. An unreachable
    server, an unknown model, or a choice between several is a `SettingError`."""
    if model is not None and dialect != "auto":
        owner = ""
        if not dialect_of(dialect).EXACT:
            with suppress(HttpFailure):  # some servers have no list
                owners = _list_models(calls, paths, attempts=1)
                owner = owners.get(_listed_name(owners, model), "")
    else:
        try:
            owners = _list_models(calls, paths)
        except HttpFailure as error:
            raise SettingError(f"{error}; check its address and key, or say which dialect and model it has") from None
        model = _pick_model(calls.base, [*owners], model)
        owner = owners.get(model, "")
        dialect = _OWNERS.get(owner, "chat") if dialect == "auto" else dialect
    if owner in FIXED and not dialect_of(dialect).EXACT:
        log.warning("%s", FIXED[owner])
    return ServerInfo(dialect, model, paths, owner)


def _pick_model(address: str, names: Sequence[str], model: str | None) -> str:
    """The named model, or the server's only one. Raises `SettingError` for an unknown model or a choice of several."""
    names_text = ", ".join(map(repr, names[:20]))
    model = model and _listed_name(names, model)
    if model is not None and names and model not in names:
        raise SettingError(
            f"{address} has no model {model!r}; it has {names_text} (its list is not asked for when a dialect is named)"
        )
    if model is None and len(names) != 1:
        choice = f"one of {names_text}" if names else "its name"
        raise SettingError(f"{address} lists {len(names)} models; say which one to ask with model: {choice}")
    return model or names[0]


def _listed_name(names: Collection[str], model: str) -> str:
    """The model's name in a server's list: Gemini's and Ollama's are longer than what users write."""
    return next((name for name in (model, f"models/{model}", f"{model}:latest") if name in names), model)


def _list_models(calls: HttpClient, paths: ServerPaths, attempts: int | None = None) -> dict[str, str]:
    """The name and owner of each model in a server's list."""
    data = calls.request("GET", paths.path("/v1/models"), attempts=attempts).get("data")
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    return {str(row["id"]): str(row.get("owned_by", "")) for row in rows if isinstance(row.get("id"), str)}


def open_remote(
    url: str,
    settings: RemoteModelSettings,
    tokenizer: Tokenizer,
    stops: Sequence[str],
    temperature: float = 0.0,
    *,
    text_only: bool = False,
    tools: Sequence[JsonObject] = (),
) -> RemoteModel:
    """Open the model at a URL. With `text_only`, a server that is detected as vLLM or SGLang gets chat messages instead
    of ids. A server that gets chat messages also gets the `tools`, if any."""
    calls, paths = open_client(url, settings)
    server = detect_server(calls, paths, settings.dialect, settings.model)
    if text_only and settings.dialect == "auto" and server.dialect in ("vllm", "sglang"):
        server = replace(server, dialect="chat")
    if tools and settings.dialect == "auto" and server.dialect == "chat":
        server = replace(server, dialect="tools")
    if server.dialect == ("chat" if tools else "tools"):
        calls_format = "native tool calls, such as tools" if not tools else "calls in plain text, such as react"
        raise SettingError(f"the dialect {server.dialect} needs a protocol with {calls_format}")
    tools = tools if server.dialect == "tools" else ()
    return RemoteModel(calls, server, tokenizer, tuple(stops), temperature, settings, tools=tuple(tools))
