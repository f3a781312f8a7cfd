"""A server with a real small network that returns log-probabilities of prompts, in the formats of two servers."""

from collections.abc import Callable
from typing import cast

import torch
from tests.models.http_site import Asked, Said
from tests.models.networks import logits_of
from transformers import PreTrainedModel

from coseek.core.files import Json, JsonObject
from coseek.models.tokenizer import HfTokenizer

DIALECTS = ("vllm", "sglang")


def serving(model: PreTrainedModel, tokenizer: HfTokenizer) -> Callable[[Asked], Said]:
    """Answers requests for the log-probabilities of a prompt, and the list of models."""

    def answer(request: Asked) -> Said:
        body = request.body
        if request.path == "/v1/models":
            return Said({"data": [{"id": tokenizer.source, "owned_by": "vllm"}]})
        ids = ids_of(request)
        logprobs = torch.log_softmax(logits_of(model, ids).double(), -1)
        nats = [None, *(float(logprobs[at, ident]) for at, ident in enumerate(ids[1:]))]
        best = [int(row.argmax()) for row in logprobs]
        texts = [tokenizer.decode([ident]) for ident in ids]
        if request.path == "/generate":
            start = cast(int, body["logprob_start_len"])
            pairs: list[Json] = [[nats[at], ids[at], texts[at]] for at in range(start, len(ids))]
            pairs[0] = [None, ids[start], texts[start]]
            finish: JsonObject = {"type": "length", "length": 0}
            return Said({"text": "", "meta_info": {"input_token_logprobs": pairs, "finish_reason": finish}})
        if "prompt_logprobs" in body:
            rows: list[Json] = [None]
            for at in range(1, len(ids)):
                likeliest = float(logprobs[at - 1, best[at - 1]])
                row: JsonObject = {str(best[at - 1]): {"logprob": likeliest, "decoded_token": "likeliest"}}
                rows.append(row | {str(ids[at]): {"logprob": nats[at], "decoded_token": texts[at]}})
            return Said({"choices": [{"text": "!", "finish_reason": "length", "prompt_logprobs": rows}]})
        return Said({"choices": [{"text": "!", "finish_reason": "length", "logprobs": None}]})

    return answer


def ids_of(request: Asked) -> list[int]:
    """The ids of a request's prompt."""
    return cast(list[int], request.body["input_ids" if request.path == "/generate" else "prompt"])
