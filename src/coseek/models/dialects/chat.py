"""chat: the OpenAI-compatible `/v1/chat/completions` of any server: what the environment writes is the user's."""

from coseek.data.files import JsonObject
from coseek.models.dialect import Ask, Written, item, text_of
from coseek.models.dialects.completions import sampling

PATH = "/v1/chat/completions"
EXACT = False
SCALED = False


def body(ask: Ask) -> JsonObject:
    messages: list[JsonObject] = [
        {"role": "assistant" if part.by_model else "user", "content": part.text} for part in ask.parts
    ]
    return {"messages": [*messages], **sampling(ask)}


def read(answer: JsonObject) -> Written:
    choice = item(answer, "choices", 0)
    return Written(text_of(item(choice, "message", "content")), cut_off=item(choice, "finish_reason") == "length")
