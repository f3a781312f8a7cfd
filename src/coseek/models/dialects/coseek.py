"""coseek: `coseek serve model`. vLLM's fields with the row's own seed: samples depend on seed and position only."""

from dataclasses import replace

from coseek.core.files import JsonObject
from coseek.models.dialect import ServerTurn, TurnRequest, version_of
from coseek.models.dialects import sglang, vllm

PATH = vllm.PATH
EXACT = True
SCALED = True
ADAPTERS = False
update_calls = sglang.update_calls


def read(answer: JsonObject) -> ServerTurn:
    return replace(vllm.read(answer), version=version_of(answer.get("weight_version")))


def body(ask: TurnRequest) -> JsonObject:
    return {**vllm.body(ask), "seed": ask.seed}
