"""completions: the OpenAI-compatible `/v1/completions` of any server: text in, text out."""

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, item, text_of

PATH = "/v1/completions"
EXACT = False
SCALED = False
MOST_STOPS = 4
"""OpenAI takes no more; whoever asks looks for the others in what was written."""


def body(ask: TurnRequest) -> JsonObject:
    return {"prompt": "".join(part.text for part in ask.parts), **sampling(ask)}


def sampling(ask: TurnRequest) -> JsonObject:
    """Fields that every such server knows. Greedy unless asked otherwise: left out, the temperature would be 1."""
    said: JsonObject = {
        "model": ask.model,
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        "seed": ask.turn_seed,
    }
    if ask.temperature > 0:
        said["top_p"] = 1.0
    if ask.stops:
        said["stop"] = [*ask.stops[:MOST_STOPS]]
    return said


def read(answer: JsonObject) -> ServerTurn:
    choice = item(answer, "choices", 0)
    return ServerTurn(text_of(item(choice, "text")), cut_off=item(choice, "finish_reason") == "length")
