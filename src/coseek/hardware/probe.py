"""Probe: times products in bfloat16 and int8 against float32. `placement.py` starts it as a process.

A process of its own leaves the thread count and library state of the caller alone, which affect the last bits of its
sums. One thread and processor time are used, since wall time on a busy machine does not measure arithmetic.

    python probe.py     prints {"many_rows": 2.4, "few_rows": 1.1, "int8_search": 3.0}
"""

import json
import time
from collections.abc import Callable

BUDGET_S = 0.25
"""Seconds per pair of products."""
FEWEST, MOST = 3, 100
"""Limits of the repetitions per pair."""
# Processor time in ticks of milliseconds (Windows) is too coarse.
clock_s = time.process_time if time.get_clock_info("process_time").resolution < 1e-5 else time.perf_counter


def speedup(float32: Callable[[], object], other: Callable[[], object]) -> float:
    """How many times as fast `other` is, by the shortest time of each. They alternate, so that other load hits both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    float32(), other()
    end = clock_s() + BUDGET_S
    while len(seconds[0]) < FEWEST or (clock_s() < end and len(seconds[0]) < MOST):
        for function, times in zip((float32, other), seconds, strict=True):
            start = clock_s()
            function()
            times.append(clock_s() - start)
    return min(seconds[0]) / min(seconds[1])


def layer(rows: int, inner: int, outer: int) -> float:
    """Speed-up of a layer in bfloat16."""
    import torch

    def product(dtype: torch.dtype) -> Callable[[], object]:
        rows_RI, weight_OI = (torch.full((count, inner), 0.5, dtype=dtype) for count in (rows, outer))
        return lambda: torch.nn.functional.linear(rows_RI, weight_OI)

    return speedup(product(torch.float32), product(torch.bfloat16))


def scan(rows: int, dim: int, queries: int) -> float:
    """Speed-up of a search in int8: products of all rows with all queries, and the maxima of blocks of 16 rows."""
    import torch

    rows_RD, queries_DQ, scores_RQ = (
        torch.full((rows, dim), 0.5),
        torch.full((dim, queries), 0.5),
        torch.zeros((rows, queries)),
    )
    codes_RD, codes_QD = (torch.full((count, dim), 64, dtype=torch.int8) for count in (rows, queries))
    sums_RQ = torch.zeros((rows, queries), dtype=torch.int32)
    return speedup(
        lambda: torch.mm(rows_RD, queries_DQ, out=scores_RQ).view(-1, 16, queries).amax(dim=1),
        lambda: torch._int_mm(codes_RD, codes_QD.t(), out=sums_RQ).view(-1, 16, queries).amax(dim=1),
    )


def main() -> None:
    import torch

    torch.set_num_threads(1)
    with torch.inference_mode():
        speedups = {
            "many_rows": layer(256, 384, 1536),
            "few_rows": layer(64, 512, 1536),
            "int8_search": scan(16_384, 384, 64),
        }
    print(json.dumps(speedups))


if __name__ == "__main__":
    main()
