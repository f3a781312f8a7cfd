"""tools: `/v1/chat/completions` with OpenAI's `tools`: the server frames calls, results and reasoning itself.

A row is text in coseek's own format (`models/written.py`). It is sent as messages: a turn's words and calls, each
result as a `tool` message, and reasoning in the field in which the server returned it.
"""

import json
import re

from coseek.core.files import Json, JsonObject
from coseek.models.dialect import TurnRequest
from coseek.models.dialects import chat
from coseek.models.dialects.completions import sampling
from coseek.models.written import RESPONSE, calls_in, read_turn

PATH = chat.PATH
EXACT = False
SCALED = False
read = chat.read
_RESULT = re.compile(f"{RESPONSE[0]}(.*?){RESPONSE[1]}", re.DOTALL)


def body(request: TurnRequest) -> JsonObject:
    messages: list[Json] = []
    pending_ids: list[str] = []
    for number, segment in enumerate(request.segments):
        if segment.by_model:
            message, pending_ids = _turn(read_turn(segment.text, tools=request.tools), number, request.reasoning_field)
            messages.append(message)
        elif pending_ids:
            results = zip(pending_ids, _RESULT.findall(segment.text), strict=False)
            messages += [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in results]
        else:
            messages.append({"role": "user", "content": segment.text.strip()})
    return {"messages": messages, "tools": [*request.tools], **sampling(request)}


def _turn(turn: JsonObject, number: int, reasoning_field: str) -> tuple[JsonObject, list[str]]:
    """A turn as a message, and the ids of its calls."""
    content, reasoning = str(turn.get("content", "")), turn.get("reasoning_content")
    if reasoning and reasoning_field == "content":
        content = f"<think>\n{reasoning}\n</think>\n\n{content}"
    message: JsonObject = {"role": "assistant", "content": content}
    if reasoning and reasoning_field != "content":
        message[reasoning_field] = reasoning
    calls: list[Json] = []
    call_ids: list[str] = []
    for index, call in enumerate(calls_in(turn)):
        call_ids.append(f"call_{number}_{index}")
        arguments = json.dumps(call.object, ensure_ascii=False)
        function: JsonObject = {"name": call.name or "unknown", "arguments": arguments}
        calls.append({"id": call_ids[-1], "type": "function", "function": function})
    return {**message, **({"tool_calls": calls} if calls else {})}, call_ids
