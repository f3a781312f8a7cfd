"""Trial: the script that times products for `speed.py`, in a process of its own and on one thread.

In a process of its own, because whoever asks may be training: the number of threads and what libraries keep for
themselves decide the last bits of its sums. On one thread and in processor time, because threads wait for each other
on a busy machine, and a long product is interrupted where a short one is not: the clock then tells nothing of the
arithmetic.

    python benchmark.py linear/256/384/1536 scan/384/float32     prints {NAME: [float32_s, other_s], …}

`linear` is a layer over R rows, in float32 and in bfloat16. `scan` is a block of vectors against 64 queries, kept in
float32 or float16 and multiplied in float32, and kept and multiplied in int8.
"""

import json
import sys
import time
from collections.abc import Callable

BUDGET_S = 0.25
"""Seconds that a pair of products is repeated for; at least three turns each."""
MOST = 100
"""Turns at most."""
NUMBERS = 16_384 * 384
"""Numbers in the block of a scan."""
GROUP, QUERIES = 32, 64
"""A block has a multiple of so many rows; and how many queries it is compared with."""
# Where processor time comes in ticks of milliseconds (Windows) it is too coarse for a product.
seconds_now = time.process_time if time.get_clock_info("process_time").resolution < 1e-5 else time.perf_counter


def best(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """The least seconds of each; they take turns, so that what else the machine does hits both."""
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
    """A block of vectors and the peaks of its products: as they are kept, and in int8."""
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


def trial(name: str) -> tuple[float, float]:
    """The trial of this name."""
    kind, *sizes = name.split("/")
    return linear(*map(int, sizes)) if kind == "linear" else scan(int(sizes[0]), sizes[1])


def main() -> None:
    import torch

    torch.set_num_threads(1)
    print(json.dumps({name: trial(name) for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
