"""completions: the OpenAI-compatible `/v1/completions` of any server: text in, text out."""

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, choice_of, is_cut_off, item, text_of

PATH = "/v1/completions"
EXACT = False
SCALED = False
MOST_STOPS = 4
"""OpenAI's maximum; the client detects the other stop strings in the text."""


def body(request: TurnRequest) -> JsonObject:
    return {"prompt": "".join(segment.text for segment in request.segments), **sampling(request)}


def sampling(request: TurnRequest) -> JsonObject:
    """Sampling fields of every OpenAI-compatible server. The temperature is always sent, since its default is 1."""
    fields: JsonObject = {
        "model": request.model,
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.turn_seed,
    }
    if request.temperature > 0:
        fields["top_p"] = 1.0
    if request.stops:
        fields["stop"] = [*request.stops[:MOST_STOPS]]
    return fields


def read(answer: JsonObject) -> ServerTurn:
    choice = choice_of(answer)
    text = text_of(item(choice, "text"))
    return ServerTurn(text, is_cut_off(choice.get("finish_reason"), text))
