"""The script that times matrix products for `speed.py`, in its own process, on one thread and in processor time.

In its own process, since the thread count and library state of a training process decide the last bits of its sums. On
one thread, since wall time on a busy machine does not measure arithmetic.

    python benchmark.py linear/256/384/1536 scan/384/float32     prints {NAME: [float32_s, other_s], …}

`linear`: a layer over R rows, in float32 and in bfloat16. `scan`: a block of vectors against 64 queries, stored in
float32 or float16 and multiplied in float32, and in int8.
"""

import json
import sys
import time
from collections.abc import Callable

BUDGET_S = 0.25
"""Seconds for a pair of products, of at least three turns each."""
MOST = 100
"""Turns, at most."""
NUMBERS = 16_384 * 384
"""Numbers in a scanned block."""
GROUP, QUERIES = 32, 64
"""Rows of a block come in multiples of `GROUP`."""
# Processor time in ticks of milliseconds (Windows) is too coarse.
seconds_now = time.process_time if time.get_clock_info("process_time").resolution < 1e-5 else time.perf_counter


def best(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of each; they alternate, so that other load affects both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for work in (one, other):
        work()
    began = seconds_now()
    for turn in range(MOST):
        if turn >= 3 and seconds_now() - began > BUDGET_S:
            break
        for work, times in zip((one, other), seconds, strict=True):
            start = seconds_now()
            work()
            times.append(seconds_now() - start)
    return min(seconds[0]), min(seconds[1])


def linear(rows: int, inner: int, outer: int) -> tuple[float, float]:
    """A layer over `rows` rows: float32, bfloat16."""
    import torch

    def layer(dtype: "torch.dtype") -> Callable[[], object]:
        rows_RI, weight_OI = (torch.full((count, inner), 0.5, dtype=dtype) for count in (rows, outer))
        return lambda: torch.nn.functional.linear(rows_RI, weight_OI)

    with torch.inference_mode():
        return best(layer(torch.float32), layer(torch.bfloat16))


def scan(dim: int, dtype: str) -> tuple[float, float]:
    """A block of vectors with the maxima of its products: as stored, and in int8."""
    import torch

    rows, wide = max(GROUP, NUMBERS // dim // GROUP * GROUP), -(-dim // 16) * 16
    kept_BD = torch.full((rows, dim), 0.5, dtype=getattr(torch, dtype))
    queries_DQ, scores_BQ = torch.full((dim, QUERIES), 0.5), torch.zeros((rows, QUERIES))
    codes_BD, asked_DQ = (torch.full((count, wide), 64, dtype=torch.int8) for count in (rows, QUERIES))
    sums_BQ = torch.zeros((rows, QUERIES), dtype=torch.int32)

    def floats() -> object:
        return torch.mm(kept_BD.float(), queries_DQ, out=scores_BQ).view(-1, 16, QUERIES).amax(dim=1)

    def integers() -> object:
        return torch._int_mm(codes_BD, asked_DQ.t(), out=sums_BQ).view(-1, 16, QUERIES).amax(dim=1)

    return best(floats, integers)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[1:]:
        kind, *sizes = name.split("/")
        found[name] = linear(*map(int, sizes)) if kind == "linear" else scan(int(sizes[0]), sizes[1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
