"""vLLM: `/v1/completions` with vLLM's extra fields: ids in, ids and log-probabilities out."""

from coseek.core.files import JsonObject
from coseek.models.dialect import FULL_SOFTMAX, ServerTurn, TurnRequest, ids_of, item, logprobs_of, text_of

PATH = "/v1/completions"
EXACT = True
SCALED = False
"""False because vLLM's default, `--logprobs-mode raw_logprobs`, ignores the temperature."""


def body(ask: TurnRequest) -> JsonObject:
    """The request. All sampling fields are explicit, since defaults come from the model's own settings."""
    return {
        "model": ask.model,
        "prompt": [*ask.ids],
        "max_tokens": ask.max_tokens,
        "temperature": ask.temperature,
        **FULL_SOFTMAX,
        "seed": ask.turn_seed,
        "stop": [*ask.stops],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "add_special_tokens": False,
        "logprobs": 1,
        "return_token_ids": True,
    }


def read(answer: JsonObject) -> ServerTurn:
    choice = item(answer, "choices", 0)
    return ServerTurn(
        text=text_of(item(choice, "text")),
        cut_off=item(choice, "finish_reason") == "length",
        ids=ids_of(item(choice, "token_ids")),
        logprobs=logprobs_of(item(choice, "logprobs", "token_logprobs")),
    )
