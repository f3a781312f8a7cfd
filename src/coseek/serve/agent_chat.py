"""Agent chat: requests and answers of `/v1/chat/completions` where an agent answers. Knows neither HTTP nor agents.

The fields are OpenAI's. `content` is the answer as people write it, or a sentence where there is none;
`reasoning_content` holds all that the agent wrote, loops shortened; `coseek` what no field of the API has: the searches
with their passages, the evidence with the sentences used, and why the run ended.
"""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coseek.agents.replies import reply_in_words
from coseek.agents.served_context import served_context
from coseek.agents.sources import MOST, cited_answer, sources_of, used_sentences
from coseek.core.files import Json, JsonObject
from coseek.core.repetition import without_repetition
from coseek.core.spelling import as_written
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.serve.app import openai_error
from coseek.serve.conversation import AgentRequest, LenientSettings, Messages, QuestionInContext

_CUT = (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT)


class StreamOptions(LenientSettings):
    """Options of a stream."""

    include_usage: bool = False
    """Send the token counts last."""


class ChatRequest(AgentRequest):
    """A request to `/v1/chat/completions`."""

    messages: Messages
    """The conversation; its last message is the question."""
    stream_options: StreamOptions | None = None
    """What else to send."""

    @property
    def conversation(self) -> QuestionInContext:
        return QuestionInContext.of(self.messages)


@dataclass(frozen=True)
class ChatAnswer:
    """One answer of an agent, whole or as the events of a stream."""

    model: str
    ident: str
    created: int
    with_usage: bool

    @classmethod
    def new(cls, model: str, request: ChatRequest) -> "ChatAnswer":
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return cls(model, f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), with_usage)

    def whole(self, run: Trajectory) -> JsonObject:
        message: JsonObject = {
            "role": "assistant",
            "content": reply_in_words(run),
            "reasoning_content": reasoning(run),
            "annotations": _annotations(run),
        }
        choice: JsonObject = {"index": 0, "message": message, "finish_reason": finish_of(run), "logprobs": None}
        body = self._body("chat.completion", [choice])
        return {**body, "usage": usage(run), "coseek": details(run)}

    def begin(self) -> bytes:
        return _event(self._chunk({"role": "assistant", "content": ""}))

    def write(self, text: str) -> bytes:
        return _event(self._chunk({"reasoning_content": text}))

    def show(self, made: Sequence[Search]) -> bytes:
        return _event({**self._chunk({}), "coseek": {"searches": searches(made)}})

    def end(self, run: Trajectory) -> bytes:
        """The answer with its sources, why the run ended, and the counts where they are wanted."""
        answered = self._chunk({"content": reply_in_words(run), "annotations": _annotations(run)})
        rows = [answered, {**self._chunk({}, finish_of(run)), "coseek": details(run)}]
        rows += [{**self._body("chat.completion.chunk", []), "usage": usage(run)}] if self.with_usage else []
        return b"".join(map(_event, rows)) + _DONE

    def fail(self, status: int, sentence: str, kind: str) -> bytes:
        return _event(openai_error(status, sentence, kind)) + _DONE

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[Json]) -> JsonObject:
        return {"id": self.ident, "object": kind, "created": self.created, "model": self.model, "choices": choices}


_DONE = b"data: [DONE]\n\n"


def _event(row: JsonObject) -> bytes:
    # ASCII: a text may end within a character.
    return b"data: " + json.dumps(row, allow_nan=False).encode() + b"\n\n"


def _annotations(run: Trajectory) -> list[Json]:
    return [{"type": "url_citation", "url_citation": one} for one in citations(run)]


def finish_of(run: Trajectory) -> str:
    return "length" if run.stop in _CUT else "stop"


def reasoning(run: Trajectory) -> str:
    """All that the agent wrote, its answer last, with loops shortened turn by turn."""
    return "".join(without_repetition(part.text) for part in run.segments if part.author is Author.AGENT)


def usage(run: Trajectory) -> JsonObject:
    """Tokens that the agent wrote, and all others of its context."""
    written = sum(len(segment.ids) for segment in run.segments if segment.author is Author.AGENT)
    shown = sum(len(segment.ids) for segment in run.segments) - written
    return {"prompt_tokens": shown, "completion_tokens": written, "total_tokens": shown + written}


def citations(run: Trajectory) -> list[JsonObject]:
    """The sources that have an address, each for the whole answer."""
    end = len(reply_in_words(run))
    return [
        {"url": passage.url, "title": passage.title.strip(), "start_index": 0, "end_index": end}
        for passage in sources_of(run)
        if passage.url
    ]


def details(run: Trajectory) -> JsonObject:
    """Why the run ended, what it searched, its sources, and all its evidence with the sentences that it used."""
    sources: list[Json] = [source(passage) for passage in sources_of(run)]
    found: JsonObject = {"stop": str(run.stop), "valid": run.valid, "seed": run.seed, "sources": sources}
    if (cited := cited_answer(run)) is not None:
        found["citations"] = {"given": len(cited.passages), "dropped": cited.dropped}
    return {**found, "evidence": _evidence(run), "searches": searches(run.searches)}


def _evidence(run: Trajectory) -> list[Json]:
    """The sources first, then what else the agent was served; each with the sentence that it used, or ""."""
    named = sources_of(run)
    passages = [*named, *(one for one in served_context(run) if one not in named)][: 2 * MOST]
    shown = [replace(one, text=as_written(one.text).strip()) for one in passages]  # a sentence is found in it again
    sentences = used_sentences(run, shown)
    return [{**source(one), "used": used} for one, used in zip(passages, sentences, strict=True)]


def searches(made: Sequence[Search]) -> list[Json]:
    return [{"query": as_written(one.query), "passages": [source(hit.passage) for hit in one.hits]} for one in made]


def source(passage: Passage) -> JsonObject:
    """A passage as people write it; its id and place are exact."""
    return {
        "id": passage.id, "title": as_written(passage.title).strip(), "url": passage.url, "place": passage.place,
        "text": as_written(passage.text).strip(),
    }  # fmt: skip
