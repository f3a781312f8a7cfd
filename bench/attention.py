"""Attention of one token a row over a cache with gaps, at SmolLM2's shape: all rows at once, and few at a time.

python -m bench.attention
"""

import time

import torch

from coseek.models.engines.fused import ROWS_TOGETHER, _attend_one

ROWS, COLUMNS, RESERVED, HEADS, DIM, TURNS = 92, 1285, 1536, 3, 64, 8


def main() -> None:
    torch.set_num_threads(1)
    for dtype in (torch.bfloat16, torch.float32):
        keys, values = (torch.randn(ROWS, HEADS, RESERVED, DIM).to(dtype)[:, :, :COLUMNS] for _ in range(2))
        queries, bias = torch.randn(ROWS, HEADS, HEADS, DIM).to(dtype), torch.zeros(ROWS, 1, 1, COLUMNS, dtype=dtype)
        for count in (ROWS, ROWS_TOGETHER):
            blocks = [slice(first, first + count) for first in range(0, ROWS, count)]
            times = []
            for _ in range(TURNS):
                start = time.perf_counter()
                for rows in blocks:
                    _attend_one(queries[rows], keys[rows], values[rows], bias[rows])
                times.append(1e3 * (time.perf_counter() - start))
            print(f"{dtype}, {count} rows at a time: {min(times):.1f} to {max(times):.1f} ms")


if __name__ == "__main__":
    main()
