"""coseek: `coseek serve model`. vLLM's fields, and the row's own seed: draws depend on seed and position alone."""

from coseek.data.files import JsonObject
from coseek.models.dialect import Ask
from coseek.models.dialects import vllm

PATH = vllm.PATH
EXACT = True
SCALED = True
read = vllm.read


def body(ask: Ask) -> JsonObject:
    return {**vllm.body(ask), "seed": ask.seed}
