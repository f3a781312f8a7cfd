"""Stand-ins for servers that frame tool calls themselves, as strict as the real ones: unknown fields, a result without
its call, a call without its result and reasoning in another field than theirs are errors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tests.models.http_site import Asked, Said

from coseek.core.files import Json, JsonObject

VLLM = ("top_k", "min_p", "repetition_penalty")
FIELDS = {"model", "messages", "tools", "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens"}


@dataclass(frozen=True)
class ToolServer:
    """One kind of server, whose model searches for Ada and Eve at once, reads page 1 of p1, and says 1815."""

    name: str
    owner: str
    reasoning: tuple[str, ...] = ()
    """Fields in which it returns reasoning, and takes it back."""
    refuses: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """Fields that only this kind takes."""
    words: Json = None
    """The content beside calls."""


SERVERS = {
    server.name: server
    for server in (
        ToolServer("vllm-gpt-oss", "vllm", ("reasoning", "reasoning_content"), fields=VLLM),
        ToolServer("vllm-glm", "vllm", ("reasoning_content",), fields=VLLM, words="\n"),
        ToolServer("vllm-qwen3", "vllm", fields=VLLM, words="<think>\nWho?\n</think>\n\n"),
        ToolServer("gpt-5", "openai", refuses=("max_tokens", "temperature", "seed", "stop", "top_p")),
    )
}  # fmt: skip
THOUGHTS = ("I need Ada and Eve.", "Page 1 says it.", "So 1815.")


def answers(server: ToolServer) -> Callable[[Asked], Said]:
    def answer(request: Asked) -> Said:
        if request.method == "GET":
            return Said({"object": "list", "data": [{"id": "m", "object": "model", "owned_by": server.owner}]})
        wrong = fault_in(server, request.body)
        return Said({"error": {"message": wrong}}, 400) if wrong else Said(_turn(server, _turns_in(request.body)))

    return answer


def fault_in(server: ToolServer, body: JsonObject) -> str:
    """What the server refuses, as it would say it."""
    for name in body:
        if name in server.refuses or name not in {*FIELDS, *server.fields}:
            return f"Unsupported parameter: '{name}' is not supported with this model."
    if [tool["function"]["name"] for tool in cast(list[dict[str, dict[str, str]]], body.get("tools", []))] != [
        "search",
        "visit",
    ]:
        return "no tools"
    waiting: list[Json] = []
    for message in cast(list[JsonObject], body["messages"]):
        role = message["role"]
        if waiting and (role != "tool" or message["tool_call_id"] != waiting.pop(0)):
            return "each tool_call_id must be followed by its result"
        known = {"role", "content", "tool_calls", *server.reasoning} if role == "assistant" else {"role", "content"}
        if odd := set(message) - known - ({"tool_call_id"} if role == "tool" else set()):
            return f"Unknown parameter: 'messages.{sorted(odd)[0]}'."
        for call in cast(list[JsonObject], message.get("tool_calls", [])):
            json.loads(cast(dict[str, str], call["function"])["arguments"])
            waiting.append(call["id"])
    return "a call has no result" if waiting else ""


def _turns_in(body: JsonObject) -> int:
    return sum(message["role"] == "assistant" for message in cast(list[JsonObject], body["messages"]))


def _turn(server: ToolServer, number: int) -> JsonObject:
    both: list[tuple[str, JsonObject]] = [("search", {"query": "Ada"}), ("search", {"query": "Eve"})]
    made = (both, [("visit", {"id": "p1", "page": 1})], [])[number]
    message: JsonObject = {"role": "assistant", "content": server.words if made else "1815", "refusal": None}
    message |= dict.fromkeys(server.reasoning, THOUGHTS[number])
    if made:
        message["tool_calls"] = [
            {"id": f"x{number}{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for at, (name, arguments) in enumerate(made)
        ]
    finish = "tool_calls" if made else "stop"
    usage: JsonObject = {"prompt_tokens": 900, "completion_tokens": 30}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}
