"""Stand-ins for common model servers: refused fields, the place of reasoning and tool calls, the shape of an answer.

The text of the model is a function of the messages."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from tests.models.http_site import Asked, Said

from coseek.core.files import Json, JsonObject

Writes = Callable[[Sequence[JsonObject]], str]
"""Chat messages → what the model writes: its reasoning in `<think>`, calls in `<tool_call>`."""
THOUGHT_TOKENS = 40
"""Tokens of reasoning; with a lower limit there is no answer."""


@dataclass(frozen=True)
class Kind:
    """One kind of server."""

    name: str
    owner: str
    refuses: tuple[str, ...] = ()
    """Fields that it answers with an error."""
    refusal: Callable[[str], Said] = lambda name: Said({}, 400)
    reasoning: str = "hidden"
    """Where it returns reasoning: `hidden`, `parts` of the content, or the name of a field."""
    takes_calls: bool = False
    """Whether it takes tool calls out of the text."""
    finish: str = "stop"


def _openai(name: str) -> Said:
    new = {"max_tokens": " Use 'max_completion_tokens' instead."}.get(name, "")
    message = f"Unsupported parameter: '{name}' is not supported with this model.{new}"
    return Said({"error": {"message": message, "type": "invalid_request_error", "param": name}}, 400)


def _mistral(name: str) -> Said:
    detail: Json = [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}]
    return Said({"object": "error", "message": {"detail": detail}, "type": "invalid_request_error"}, 422)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("gpt-5", "openai", ("max_tokens", "temperature", "stop", "seed", "top_k"), refusal=_openai),
        Kind("mistral", "mistralai", ("seed", "top_k", "repetition_penalty"), refusal=_mistral, reasoning="parts"),
        Kind("ollama", "library", reasoning="reasoning"),
        Kind("lm-studio", "organization_owner", reasoning="reasoning_content", finish=""),
        Kind("vllm", "vllm", reasoning="reasoning_content", takes_calls=True),
    )
}


def answers(kind: Kind, writes: Writes) -> Callable[[Asked], Said]:
    """How a server of a kind answers."""

    def answer(request: Asked) -> Said:
        if request.method == "GET":
            return Said({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": kind.owner}]})
        for name in kind.refuses:
            if name in request.body:
                return kind.refusal(name)
        most = request.body.get("max_tokens", request.body.get("max_completion_tokens", 10**6))
        return _shaped(kind, writes(cast(list[JsonObject], request.body["messages"])), cast(int, most))

    return answer


def _shaped(kind: Kind, written: str, most: int) -> Said:
    """What the model wrote as the server returns it."""
    match = re.match(r"<think>(.*?)</think>(.*)", written, re.DOTALL)
    thought, text = (match[1], match[2]) if match else ("", written)
    cut = bool(thought) and most < THOUGHT_TOKENS
    text = "" if cut else text.strip()
    message: JsonObject = {"role": "assistant", "content": text}
    finish = "length" if cut else kind.finish
    if kind.takes_calls and (call := re.search(r"<tool_call>(.*)</tool_call>", text, re.DOTALL)):
        row = json.loads(call[1])
        function: JsonObject = {"name": row["name"], "arguments": json.dumps(row["arguments"])}
        finish = "tool_calls"
        message |= {"content": None, "tool_calls": [{"id": "call_1", "type": "function", "function": function}]}
    if kind.reasoning == "parts":
        thinking: Json = {"type": "thinking", "thinking": [{"type": "text", "text": thought}]}
        message["content"] = [thinking, *([{"type": "text", "text": text}] if text else [])] if thought else text
    elif kind.reasoning != "hidden":
        message[kind.reasoning] = thought
    usage: JsonObject = {"prompt_tokens": 900, "completion_tokens": 9}
    return Said({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage})
