"""Repeats: random sequences written twice. Predicting the second half is copying, the skill that reading stands on.

A small model learns it here in a few hundred short steps; from demonstrations alone it may take it thousands. First
every sequence comes back at one distance, which a network learns within seconds, by position alone. Then lengths and
distances spread, little by little and in every other step, until only what was written can tell where to copy from.
Varied from the start, or all at once, it is not learnt in that time (bench/results/log-0.1-0.2.md).
"""

import torch

from coseek.training.trainer.batch import Batch

LENGTHS = (6, 40)
"""Shortest and longest sequence of a batch that is varied in full."""
LONGEST_GAP = 100
"""Most tokens between a sequence and its repetition, there."""


def repeat_batch(vocabulary: int, rows: int, length: int, generator: torch.Generator, gap: int = 0) -> Batch:
    """`rows` rows "x g x": x of `length` tokens and g of `gap`, drawn uniformly from the vocabulary.

    The second x is the agent's; behind a gap its first token is not, since nothing says where the gap ends.
    """
    first = torch.randint(vocabulary, (rows, length), generator=generator)
    between = torch.randint(vocabulary, (rows, gap), generator=generator)
    ids_BT = torch.cat([first, between, first], dim=1)
    agent_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    agent_BT[:, length + gap + (gap > 0) :] = True
    return Batch(ids_BT, agent_BT, torch.zeros(ids_BT.shape), torch.full((rows,), 2 * length + gap))


def varied_batch(vocabulary: int, tokens: int, length: int, spread: float, generator: torch.Generator) -> Batch:
    """About `tokens` tokens of rows that share a length and a gap, drawn from ranges that open as `spread` goes 0 → 1.

    At 0 the length is `length` and the gap 0; at 1 they are anything in `LENGTHS` and up to `LONGEST_GAP`.
    """

    def draw(low: float, high: float) -> int:
        return int(torch.randint(round(low), round(high) + 1, (), generator=generator))

    shortest, longest = LENGTHS
    size = draw(length + spread * (shortest - length), length + spread * (longest - length))
    gap = draw(
        0, spread**2 * LONGEST_GAP
    )  # squared: a gap too wide too soon, and copying by position is unlearnt first
    return repeat_batch(vocabulary, max(1, tokens // (2 * size + gap)), size, generator, gap)
