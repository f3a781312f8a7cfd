"""completions: the OpenAI-compatible `/v1/completions` of any server: text in, text out."""

from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.models.dialect import (
    PromptRequest,
    PromptScores,
    ServerTurn,
    TurnRequest,
    choice_of,
    is_cut_off,
    item,
    logprobs_of,
    text_of,
)

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


def prompt_body(ask: PromptRequest) -> JsonObject:
    """The request: `echo` repeats the prompt in front of one sampled token, with the log-probabilities of both."""
    asked: JsonObject = {"model": ask.model, "prompt": [*ask.ids], "max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
    return {**asked, "echo": True, "logprobs": 1}


def read_prompt(answer: JsonObject, ask: PromptRequest) -> PromptScores:
    """Parse the parallel lists of tokens and log-probabilities. The answer has no ids, so only tokens are counted."""
    said = item(answer, "choices", 0, "logprobs")
    texts, logprobs = item(said, "tokens"), item(said, "token_logprobs")
    whole = len(ask.ids)
    if not isinstance(texts, list) or not isinstance(logprobs, list) or len(texts) != len(logprobs):
        raise ValueError("its answer holds no log-probabilities")
    if not whole <= len(texts) <= whole + 1:
        raise ValueError(f"its answer holds {len(texts)} tokens, and the prompt has {whole} and its continuation one")
    text = "".join(text_of(token) for token in texts[ask.start : whole])
    return PromptScores(logprobs_of(cast(Json, logprobs[ask.start : whole])), text)
