"""SGLang: `/generate`: ids in, ids and log-probabilities out."""

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
    version_of,
)

PATH = "/generate"
EXACT = True
ADAPTERS = False
SCALED = True
"""True unless the server was started with SGLANG_RETURN_ORIGINAL_LOGPROB."""


def body(request: TurnRequest) -> JsonObject:
    """The request. All sampling fields are explicit, since defaults come from the model's own settings."""
    sampling: JsonObject = {
        "max_new_tokens": request.max_tokens,
        "temperature": request.temperature,
        **FULL_SOFTMAX,
        "stop": [*request.stops],
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if request.temperature > 0:
        # Used by servers started with --enable-deterministic-inference.
        sampling["sampling_seed"] = request.turn_seed
    return {"input_ids": [*request.ids], "sampling_params": sampling, "return_logprob": True, "stream": False}


def read(answer: JsonObject) -> ServerTurn:
    """Parse ids and log-probabilities. `output_ids` is not used, since it may be trimmed."""
    pairs = item(answer, "meta_info", "output_token_logprobs")
    if not isinstance(pairs, list):
        raise ValueError("its answer holds no log-probabilities")
    text = text_of(item(answer, "text"))
    return ServerTurn(
        text=text,
        cut_off=_is_cut_off(answer, text),
        ids=ids_of(cast(Json, [item(pair, 1) for pair in pairs])),
        logprobs=logprobs_of(cast(Json, [item(pair, 0) for pair in pairs])),
        version=version_of(cast(JsonObject, item(answer, "meta_info")).get("weight_version")),
    )


def update_calls(update: WeightUpdate) -> list[ServerCall]:
    """One call, which empties the prefix cache, too. An adapter is merged in the folder."""
    body: JsonObject = {"model_path": update.folder, "weight_version": str(update.version), "flush_cache": True}
    return [ServerCall("/update_weights_from_disk", body)]


def prompt_body(request: PromptRequest) -> JsonObject:
    """The request. The token at `logprob_start_len` itself has no log-probability."""
    return {
        "input_ids": [*request.ids],
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0, **FULL_SOFTMAX},
        "return_logprob": True,
        "logprob_start_len": request.start - 1,
        "return_text_in_logprobs": True,
        "stream": False,
    }


def read_prompt(answer: JsonObject, request: PromptRequest) -> PromptScores:
    """Parse (log-probability, id, text) of the last tokens of the prompt."""
    pairs = item(answer, "meta_info", "input_token_logprobs")
    last_pairs = pairs[-len(request.scored) :] if isinstance(pairs, list) else []
    _is_cut_off(answer, "")
    if ids_of(cast(Json, [item(pair, 1) for pair in last_pairs])) != request.scored:
        raise ValueError("its answer holds log-probabilities of other tokens than those that were sent")
    logprobs = logprobs_of(cast(Json, [item(pair, 0) for pair in last_pairs]))
    return PromptScores(logprobs, "".join(text_of(item(pair, 2)) for pair in last_pairs))


def _is_cut_off(answer: JsonObject, text: str) -> bool:
    finish = item(answer, "meta_info", "finish_reason")
    return is_cut_off(finish.get("type") if isinstance(finish, dict) else finish, text)
