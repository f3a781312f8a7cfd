"""vLLM: `/v1/completions` with vLLM's extra fields: ids in, ids and log-probabilities out."""

from typing import cast

from coseek.core.files import Json, JsonObject
from coseek.models.dialect import (
    FULL_SOFTMAX,
    PromptRequest,
    PromptScores,
    ServerCall,
    ServerTurn,
    TurnRequest,
    WeightUpdate,
    ids_of,
    is_cut_off,
    item,
    logprobs_of,
    text_of,
)

PATH = "/v1/completions"
EXACT = True
ADAPTERS = True
SCALED = False
"""False because vLLM's default, `--logprobs-mode raw_logprobs`, ignores the temperature."""
_NO_CHANCE = -9999.0
"""Written by vLLM for −∞, which JSON cannot hold."""


def body(request: TurnRequest) -> JsonObject:
    """The request. All sampling fields are explicit, since defaults come from the model's own settings."""
    return {
        "model": request.model,
        "prompt": [*request.ids],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        **FULL_SOFTMAX,
        "seed": request.turn_seed,
        "stop": [*request.stops],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "add_special_tokens": False,
        "logprobs": 1,
        "return_token_ids": True,
    }


def read(answer: JsonObject) -> ServerTurn:
    choice = item(answer, "choices", 0)
    text = text_of(item(choice, "text"))
    return ServerTurn(
        text=text,
        cut_off=is_cut_off(item(choice, "finish_reason"), text),
        ids=ids_of(item(choice, "token_ids")),
        logprobs=logprobs_of(item(choice, "logprobs", "token_logprobs")),
    )


def update_calls(update: WeightUpdate) -> list[ServerCall]:
    """Whole weights need VLLM_SERVER_DEV_MODE=1. An adapter, whose untrained first version goes as whole weights, also
    needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, `--enable-lora` and a sufficient `--max-lora-rank`."""
    if update.adapter is not None:
        return [ServerCall("/v1/load_lora_adapter", {"lora_name": update.name, "lora_path": update.adapter})]
    reload: JsonObject = {"method": "reload_weights", "kwargs": {"weights_path": update.folder}}
    return [ServerCall("/collective_rpc", reload), ServerCall("/reset_prefix_cache", {})]


def prompt_body(request: PromptRequest) -> JsonObject:
    """The request. One token is sampled, since a completion has at least one; it is not read."""
    return {
        "model": request.model,
        "prompt": [*request.ids],
        "max_tokens": 1,
        "temperature": 1.0,
        **FULL_SOFTMAX,
        "add_special_tokens": False,
        "prompt_logprobs": 1,
    }


def read_prompt(answer: JsonObject, request: PromptRequest) -> PromptScores:
    """Parse a list of {id: {logprob, decoded_token}}, one for each token of the prompt."""
    rows = item(answer, "choices", 0, "prompt_logprobs")
    if not isinstance(rows, list) or len(rows) != len(request.ids):
        raise ValueError(f"its answer holds no log-probabilities of the {len(request.ids)} tokens of the prompt")
    scores = [item(row, str(ident)) for row, ident in zip(rows[request.start :], request.scored, strict=True)]
    logprobs = logprobs_of(cast(Json, [item(score, "logprob") for score in scores]))
    if min(logprobs) <= _NO_CHANCE:
        raise ValueError("its answer holds a token of probability 0")
    return PromptScores(logprobs, "".join(text_of(item(score, "decoded_token")) for score in scores))
