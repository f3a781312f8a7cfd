"""Updates in bfloat16 on a CPU: with padding to few shapes and attention in float32, against neither, and float32.

    python -m bench.shapes
    python -m bench.shapes --threads 1 --steps 30 --turns 2

First a product of a shape that is new and of one that is known, and attention with its gradient in both precisions.
Then updates. The network has the shape of the shipped base model, and rows are as long as demonstrations, so hardly
two batches have the same shape. Each side has batches of its own, since what one compiled would serve the others; the
padded ones share their few shapes, as more updates of one run would. The sides take turns in one process; a turn is
`--steps` updates of 2,000 tokens. Exits 1 when both together are less than `--bar` times as fast as bfloat16 without
them. Where bfloat16 is slow (`coseek doctor`) it shows nothing.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from unittest import mock

import torch
import torch.nn.functional as F

from coseek.hardware.host import Host
from coseek.hardware.placement import Placement
from coseek.hardware.precision import TrainingPrecision
from coseek.models.pretrained import load_model
from coseek.models.shipped import model_path
from coseek.training.sft.loop import token_weights, weighted_loss
from coseek.training.trainer import autocast
from coseek.training.trainer.batch import Batch, micro_batches
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings

TOKENS = 2000
"""Tokens of an update."""
LONGEST, AGENT = 500, 0.3
"""Tokens of the longest row, and the share that the agent wrote: as in the quickstart's demonstrations."""


class Side:
    """A policy that is updated, in one of the ways that are compared."""

    def __init__(self, name: str, precision: TrainingPrecision, *, padded: bool, in_float32: bool) -> None:
        self.name, self.padded, self.in_float32 = name, padded, in_float32
        self.rng = random.Random(name)
        settings = LearnerSettings(precision=precision, micro_batch_tokens=TOKENS)
        self.policy = Policy(load_model(model_path("base"), Placement(device="cpu", precision="float32")), settings, 1)

    def turn(self, steps: int) -> float:
        """Make updates; return tokens a second."""
        with ExitStack() as stack:
            if not self.padded:
                stack.enter_context(mock.patch.multiple(autocast, LENGTHS=1, POSITIONS=1))
            if not self.in_float32:
                stack.enter_context(mock.patch.object(autocast, "ReplacedAttention", return_value=nullcontext()))
            batches = [self.batch() for _ in range(steps)]
            began = time.perf_counter()
            for batch in batches:
                weights_BT = token_weights(batch, 0.0)
                self.policy.forward_backward(batch, weights_BT != 0.0, weighted_loss(weights_BT))
                self.policy.optim_step()
            return sum(int(batch.lengths_B.sum()) for batch in batches) / (time.perf_counter() - began)

    def batch(self) -> Batch:
        """Rows of similar length, as a step of supervised training has them."""
        lengths_B = torch.tensor([self.rng.randint(40, LONGEST) for _ in range(64)])
        shape = (len(lengths_B), LONGEST)
        generator = torch.Generator().manual_seed(self.rng.randrange(2**31))
        ids_BT = torch.randint(0, self.policy.model.config.vocab_size, shape, generator=generator)
        agent_BT = torch.rand(shape, generator=generator) < AGENT
        drawn = Batch(ids_BT, agent_BT, torch.zeros(shape), lengths_B)
        return drawn.select(self.rng.choice(micro_batches(lengths_B, TOKENS)))


def show_parts() -> None:
    """Milliseconds of the two parts: means of products over 100 shapes, the median of attention over 20 turns."""
    weight_OI = torch.randn(320, 128).bfloat16()
    first, again = (
        _ms(lambda: [torch.ones(1600 + row, 128, dtype=torch.bfloat16) @ weight_OI.T for row in range(100)]) / 100
        for _ in range(2)
    )
    print(
        f"a bfloat16 product of 1,600 to 1,700 rows, 128 to 320: {first:.2f} ms a new shape, {again:.2f} ms a known one"
    )
    for dtype in (torch.bfloat16, torch.float32):
        taken = [_ms(partial(_attend, dtype)) for _ in range(20)]
        print(f"attention and its gradient, 7 rows of 252 tokens, {dtype}: {statistics.median(taken):.1f} ms")


def _attend(dtype: torch.dtype) -> None:
    queries, keys, values = (torch.randn(7, 4, 252, 32, dtype=dtype, requires_grad=True) for _ in range(3))
    F.scaled_dot_product_attention(queries, keys, values, is_causal=True).sum().backward()


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="updates in a turn")
    parser.add_argument("--turns", type=int, default=4, help="turns that count, after one to warm up")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bar", type=float, default=1.2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    show_parts()
    bare = Side("bfloat16, neither", "bfloat16", padded=False, in_float32=False)
    both = Side("bfloat16, both", "bfloat16", padded=True, in_float32=True)
    sides = [
        bare,
        Side("bfloat16, few shapes", "bfloat16", padded=True, in_float32=False),
        Side("bfloat16, attention in float32", "bfloat16", padded=False, in_float32=True),
        both,
        Side("float32", "float32", padded=True, in_float32=True),
    ]
    rates: dict[str, list[float]] = {side.name: [] for side in sides}
    for turn in range(options.turns + 1):
        for side in sides:
            rate = side.turn(options.steps)
            if turn:
                rates[side.name].append(rate)
    print(
        f"{options.threads} threads, instructions: {Host.here().instructions}; tokens/s, and times as fast as neither"
    )
    factors: dict[str, float] = {}
    for name, found in rates.items():
        by_turn = sorted(one / other for one, other in zip(found, rates[bare.name], strict=True))
        factors[name] = statistics.median(by_turn)
        pace = f"{statistics.median(found):6.0f} ({min(found):.0f} to {max(found):.0f})"
        print(f"  {name:32} {pace}  {factors[name]:.2f} ({by_turn[0]:.2f} to {by_turn[-1]:.2f})")
    return 0 if factors[both.name] >= options.bar else 1


if __name__ == "__main__":
    sys.exit(main())
