"""chat: the OpenAI-compatible `/v1/chat/completions` of any server; text by the environment has the role user."""

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, choice_of, is_cut_off, item, text_of
from coseek.models.dialects.completions import sampling
from coseek.models.written import calls_in, content_of, reasoning_field, reasoning_in, refusal_in

PATH = "/v1/chat/completions"
EXACT = False
SCALED = False


def body(request: TurnRequest) -> JsonObject:
    messages: list[JsonObject] = [
        {"role": "assistant" if segment.by_model else "user", "content": segment.text} for segment in request.segments
    ]
    return {"messages": [*messages], **sampling(request)}


def read(answer: JsonObject) -> ServerTurn:
    """Parse text, reasoning and tool calls. Raises `ValueError` for a refusal, and for an error in place of a
    message."""
    choice = choice_of(answer)
    message = item(choice, "message")
    if not isinstance(message, dict):
        raise ValueError("its answer holds no message")
    text, _ = content_of(message.get("content"))
    reasoning, calls = reasoning_in(message), tuple(calls_in(message))
    if (refusal := refusal_in(message)) and not text.strip():
        raise ValueError(f"the model refused: {refusal[:200]}")
    cut_off = is_cut_off(choice.get("finish_reason"), text or reasoning, bool(calls))
    return ServerTurn(text_of(text), cut_off, text_of(reasoning), reasoning_field(message), calls)
