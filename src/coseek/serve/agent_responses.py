"""Agent responses: requests and answers of `/v1/responses` where an agent answers. Knows neither HTTP nor agents.

The fields and events are OpenAI's. A `reasoning` item holds what the agent wrote up to a search, a `web_search_call` a
search with its passages under `coseek`, and the message the answer. Nothing is stored.
"""

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from coseek.agents.sources import reply_in_words
from coseek.core.files import Json, JsonObject
from coseek.core.text import without_repetition
from coseek.data.trajectory import Author, Search, Trajectory
from coseek.serve.agent_chat import (
    AgentMessage,
    AgentRequest,
    QuestionInContext,
    checked,
    citations,
    details,
    finish_of,
    source,
    usage,
)
from coseek.serve.limits import RefusedRequest

_NOT_KEPT = ("previous_response_id", "conversation", "background")


class ResponsesRequest(AgentRequest):
    """A request to `/v1/responses`."""

    input: str | Annotated[list[dict[str, object]], Field(min_length=1, fail_fast=True)]
    """The question, or the items of the conversation; items that are no messages are passed over."""
    previous_response_id: object = None
    """Refused: no response is stored."""
    conversation_id: object = Field(default=None, alias="conversation")
    """Refused: no conversation is stored."""
    background: bool | None = None
    """Refused: no response is stored."""
    metadata: dict[str, str] | None = None
    """Returned as it is."""

    @property
    def conversation(self) -> QuestionInContext:
        """Raises `RefusedRequest` (400) for input without a question, and for what a stored response would need."""
        given = (self.previous_response_id, self.conversation_id, self.background or None)
        items = self.input if isinstance(self.input, list) else []
        kept = [name for name, value in zip(_NOT_KEPT, given, strict=True) if value is not None]
        kept += ["item_reference" for one in items if one.get("type") == "item_reference"]
        if kept:
            raise RefusedRequest(
                400, f"{kept[0]} is not offered, since no response is stored; send the whole conversation in `input`"
            )
        if isinstance(self.input, str):
            return QuestionInContext.of([AgentMessage(role="user", content=self.input)])
        said = [checked(AgentMessage, one) for one in items if one.get("type", "message") == "message"]
        if not said:
            raise RefusedRequest(400, "the last message is the question: one of the user's, with text")
        return QuestionInContext.of(said)


class ResponsesAnswer:
    """One answer of an agent, whole or as the events of a stream."""

    def __init__(self, model: str, request: ResponsesRequest) -> None:
        self._output: list[Json] = []
        """Finished items."""
        self._thoughts: list[str] = []
        """Texts of the reasoning item that is open, if there are any."""
        self._shown = 0
        """Searches that have an item."""
        self._sent = 0
        self._id, self._item = _new_id("resp"), ""
        self._body: JsonObject = {
            "id": self._id, "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "model": model, "output": [], "error": None, "incomplete_details": None, "instructions": None,
            "metadata": dict(request.metadata or {}), "parallel_tool_calls": False, "previous_response_id": None,
            "store": False, "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None, "usage": None,
        }  # fmt: skip

    def whole(self, run: Trajectory) -> JsonObject:
        """The response; made of the events that a stream would send."""
        self.show([search for search in run.searches if not search.turn])
        turns = [segment for segment in run.segments if segment.author is Author.AGENT]
        for number, segment in enumerate(turns, start=1):
            self.write(without_repetition(segment.text))
            self.show([search for search in run.searches if search.turn == number])
        self.end(run)
        return self._body

    def begin(self) -> bytes:
        response: JsonObject = {"response": dict(self._body)}
        return self._event("response.created", response) + self._event("response.in_progress", response)

    def write(self, text: str) -> bytes:
        events = b""
        if not self._thoughts:
            self._item = _new_id("rs")
            events += self._add(_reasoning(self._item, []))
            events += self._part("response.content_part.added", {"type": "reasoning_text", "text": ""})
        self._thoughts.append(text)
        return events + self._of_part("response.reasoning_text.delta", {"delta": text})

    def show(self, made: Sequence[Search]) -> bytes:
        events = self._end_reasoning() if made else b""
        for search in made:
            item = _search_item(search)
            self._item = str(item["id"])
            events += self._add({**item, "status": "in_progress"})
            if search.fault is None:
                events += self._of_item("response.web_search_call.completed", {})
            events += self._done(item)
        self._shown += len(made)
        return events

    def end(self, run: Trajectory) -> bytes:
        """The searches that no turn followed, the message, and the whole response."""
        events = self.show(run.searches[self._shown :]) + self._end_reasoning()
        cut = finish_of(run) == "length"
        status = "incomplete" if cut else "completed"
        events += self._message(run, status)
        self._body |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output,
            "usage": _usage(run),
            "coseek": details(run),
        }
        return events + self._event(f"response.{status}", {"response": self._body})

    def fail(self, status: int, sentence: str, kind: str) -> bytes:
        events = self._end_reasoning()
        self._body |= {
            "status": "failed",
            "output": self._output,
            "error": {"code": "server_error", "message": sentence, "type": kind},
        }
        return events + self._event("response.failed", {"response": self._body})

    def _end_reasoning(self) -> bytes:
        if not self._thoughts:
            return b""
        text = "".join(self._thoughts)
        self._thoughts = []
        events = self._of_part("response.reasoning_text.done", {"text": text})
        events += self._part("response.content_part.done", {"type": "reasoning_text", "text": text})
        return events + self._done({**_reasoning(self._item, [text]), "status": "completed"})

    def _message(self, run: Trajectory, status: str) -> bytes:
        self._item = _new_id("msg")
        text = reply_in_words(run)
        cited: list[Json] = [{"type": "url_citation", **one} for one in citations(run)]
        empty: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        part: JsonObject = {**empty, "text": text, "annotations": cited}
        item: JsonObject = {"type": "message", "id": self._item, "role": "assistant", "content": []}
        events = [self._add({**item, "status": "in_progress"}), self._part("response.content_part.added", empty)]
        if text:
            events.append(self._of_part("response.output_text.delta", {"delta": text, "logprobs": []}))
        for place, one in enumerate(cited):
            row: JsonObject = {"annotation_index": place, "annotation": one}
            events.append(self._of_part("response.output_text.annotation.added", row))
        events.append(self._of_part("response.output_text.done", {"text": text, "logprobs": []}))
        events.append(self._part("response.content_part.done", part))
        return b"".join(events) + self._done({**item, "content": [part], "status": status})

    # --- events

    def _add(self, item: JsonObject) -> bytes:
        return self._event("response.output_item.added", {"output_index": len(self._output), "item": item})

    def _done(self, item: JsonObject) -> bytes:
        self._output.append(item)
        return self._event("response.output_item.done", {"output_index": len(self._output) - 1, "item": item})

    def _part(self, kind: str, part: JsonObject) -> bytes:
        return self._of_part(kind, {"part": part})

    def _of_part(self, kind: str, row: JsonObject) -> bytes:
        return self._of_item(kind, {"content_index": 0, **row})

    def _of_item(self, kind: str, row: JsonObject) -> bytes:
        return self._event(kind, {"item_id": self._item, "output_index": len(self._output), **row})

    def _event(self, kind: str, row: JsonObject) -> bytes:
        row = {"type": kind, "sequence_number": self._sent, **row}
        self._sent += 1
        # ASCII: a text may end within a character.
        return f"event: {kind}\ndata: {json.dumps(row, allow_nan=False)}\n\n".encode()


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


def _reasoning(ident: str, texts: Iterable[str]) -> JsonObject:
    content: list[Json] = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": ident, "summary": [], "content": content, "status": "in_progress"}


def _search_item(search: Search) -> JsonObject:
    passages = [hit.passage for hit in search.hits]
    urls: list[Json] = [{"type": "url", "url": passage.url} for passage in passages if passage.url]
    return {
        "type": "web_search_call",
        "id": _new_id("ws"),
        "status": "completed" if search.fault is None else "failed",
        "action": {"type": "search", "query": search.query, "queries": [search.query], "sources": urls},
        "coseek": {"passages": [source(passage) for passage in passages]},
    }


def _usage(run: Trajectory) -> JsonObject:
    counts = usage(run)
    written = counts["completion_tokens"]
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": written},
        "total_tokens": counts["total_tokens"],
    }
