"""coseek: `coseek serve model`. vLLM's fields with the row's own seed: samples depend on seed and position only."""

from coseek.core.files import JsonObject
from coseek.models.dialect import TurnRequest
from coseek.models.dialects import vllm

PATH = vllm.PATH
EXACT = True
SCALED = True
read = vllm.read


def body(ask: TurnRequest) -> JsonObject:
    return {**vllm.body(ask), "seed": ask.seed}
