"""chat: the OpenAI-compatible `/v1/chat/completions` of any server; text by the environment has the role user."""

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, is_cut_off, item, text_of
from coseek.models.dialects.completions import sampling

PATH = "/v1/chat/completions"
EXACT = False
SCALED = False


def body(ask: TurnRequest) -> JsonObject:
    messages: list[JsonObject] = [
        {"role": "assistant" if part.by_model else "user", "content": part.text} for part in ask.parts
    ]
    return {"messages": [*messages], **sampling(ask)}


def read(answer: JsonObject) -> ServerTurn:
    choice = item(answer, "choices", 0)
    text = text_of(item(choice, "message", "content"))
    return ServerTurn(text, is_cut_off(item(choice, "finish_reason"), text))
