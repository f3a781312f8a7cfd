"""Attention on a processor at SmolLM2's shape, with random weights: few rows at once beside all of a batch.

python -m bench.attention

The first lines time a decoding step of one layer, the others the reading of prompts and of observations by a network.
"""

import random
import time
from collections.abc import Callable

import torch
from bench.gpu import SHAPES, make_model

from coseek.models.engine import TokenBlock
from coseek.models.engines.fused import ROWS_TOGETHER, FusedEngine, _attend_one

ROWS, COLUMNS, RESERVED, HEADS, DIM, TURNS = 92, 1285, 1536, 3, 64, 8
BLOCKS = {"prompts": (6, 650, 0), "observations": (16, 260, 600)}
"""Rows, most new tokens of a row, and tokens that it has at least."""


class AllAtOnce(FusedEngine):
    """Attends for all rows of a batch at once, as on a GPU."""

    def _few_at_once(self) -> bool:
        return False


def timed(work: Callable[[], None], turns: int = TURNS) -> str:
    """The shortest and the longest of some turns."""
    times = []
    for _ in range(turns):
        start = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - start))
    return f"{min(times):,.1f} to {max(times):,.1f} ms"


def step(dtype: torch.dtype, count: int) -> str:
    keys, values = (torch.randn(ROWS, HEADS, RESERVED, DIM).to(dtype)[:, :, :COLUMNS] for _ in range(2))
    queries, bias = torch.randn(ROWS, HEADS, HEADS, DIM).to(dtype), torch.zeros(ROWS, 1, 1, COLUMNS, dtype=dtype)
    blocks = [slice(first, first + count) for first in range(0, ROWS, count)]

    def attend() -> None:
        for rows in blocks:
            _attend_one(queries[rows], keys[rows], values[rows], bias[rows])

    return timed(attend)


def reading(engine: FusedEngine, rows: int, width: int, start: int) -> str:
    rng = random.Random(0)
    starts = [start + rng.randrange(400) if start else 0 for _ in range(rows)]
    lengths = [width, *(rng.randint(width * 7 // 10, width) for _ in range(rows - 1))]
    ids = torch.randint(10, 40_000, (rows, width))
    block = TokenBlock(ids, torch.arange(rows), torch.tensor(starts), lengths, max(starts) + width)
    engine.reserve(rows, RESERVED)
    return timed(lambda: engine.read(block), 4)


def main() -> None:
    torch.set_num_threads(1)
    for dtype in (torch.bfloat16, torch.float32):
        for count in (ROWS, ROWS_TOGETHER):
            print(f"{dtype}, a layer's step, {count} rows at once: {step(dtype, count)}")
        model = make_model(SHAPES["smollm2"], torch.device("cpu"))
        engines = {
            "all rows at once": AllAtOnce(model, dtype),
            "a few tokens of a row at once": FusedEngine(model, dtype),
        }
        for name, (rows, width, start) in BLOCKS.items():
            for how, engine in engines.items():
                print(f"{dtype}, {rows} {name}, {how}: {reading(engine, rows, width, start)}")


if __name__ == "__main__":
    main()
