"""completions: the OpenAI-compatible `/v1/completions` of any server: text in, text out."""

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, choice_of, is_cut_off, item, text_of

PATH = "/v1/completions"
EXACT = False
SCALED = False
MOST_STOPS = 4
"""OpenAI's maximum; the client detects the other stop strings in the text."""


def body(ask: TurnRequest) -> JsonObject:
    return {"prompt": "".join(part.text for part in ask.parts), **sampling(ask)}


def sampling(ask: TurnRequest) -> JsonObject:
    """Sampling fields of every OpenAI-compatible server. The temperature is always sent, since its default is 1."""
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
    choice = choice_of(answer)
    text = text_of(item(choice, "text"))
    return ServerTurn(text, is_cut_off(choice.get("finish_reason"), text))
