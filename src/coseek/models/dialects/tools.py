"""tools: `/v1/chat/completions` with OpenAI's `tools`: the server frames calls, results and reasoning itself.

A row is text in our own spelling (`models/written.py`). It is sent as messages: a turn's calls beside its words,
each result as a `tool` message, and reasoning in the field in which the server returned it.
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


def body(ask: TurnRequest) -> JsonObject:
    messages: list[Json] = []
    waiting: list[str] = []
    for number, part in enumerate(ask.parts):
        if part.by_model:
            message, waiting = _turn(read_turn(part.text, tools=ask.tools), number, ask.reasoning_field)
            messages.append(message)
        elif waiting:
            results = zip(waiting, _RESULT.findall(part.text), strict=False)
            messages += [{"role": "tool", "tool_call_id": ident, "content": text} for ident, text in results]
        else:
            messages.append({"role": "user", "content": part.text.strip()})
    return {"messages": messages, "tools": [*ask.tools], **sampling(ask)}


def _turn(said: JsonObject, number: int, reasoning_field: str) -> tuple[JsonObject, list[str]]:
    """A turn as a message, and the ids of its calls."""
    content, reasoning = str(said.get("content", "")), said.get("reasoning_content")
    if reasoning and reasoning_field == "content":
        content = f"<think>\n{reasoning}\n</think>\n\n{content}"
    message: JsonObject = {"role": "assistant", "content": content}
    if reasoning and reasoning_field != "content":
        message[reasoning_field] = reasoning
    calls: list[Json] = []
    idents = [f"call_{number}_{place}" for place, _ in enumerate(calls_in(said))]
    for ident, call in zip(idents, calls_in(said), strict=True):
        function: JsonObject = {
            "name": call.name or "unknown",
            "arguments": json.dumps(call.object, ensure_ascii=False),
        }
        calls.append({"id": ident, "type": "function", "function": function})
    return {**message, **({"tool_calls": calls} if calls else {})}, idents
