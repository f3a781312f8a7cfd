"""Copy task: random sequences written twice. To predict the second copy, a model must copy the first.

A small model learns to copy in a few hundred short steps of this task; from demonstrations alone it may need thousands.
At first every sequence repeats at one distance, which a network learns within seconds, by position. Then lengths and
distances vary, gradually and in every other step, until only the content shows where to copy from. With variation from
the start, or without the gradual increase, the task is not learnt in that time (bench/results/log.md).
"""

import torch

from coseek.training.trainer.batch import Batch

LENGTHS = (6, 40)
"""Shortest and longest sequence at full variation, in tokens."""
LONGEST_GAP = 100
"""Longest gap between a sequence and its copy at full variation, in tokens."""


def repeat_batch(vocabulary: int, rows: int, length: int, generator: torch.Generator, gap: int = 0) -> Batch:
    """Make `rows` rows "x g x": x has `length` tokens and g has `gap`, drawn uniformly from the vocabulary.

    The second x is marked as the agent's. After a gap its first token is not, because the end of a gap is not
    predictable.
    """
    first = torch.randint(vocabulary, (rows, length), generator=generator)
    between = torch.randint(vocabulary, (rows, gap), generator=generator)
    ids_BT = torch.cat([first, between, first], dim=1)
    agent_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    agent_BT[:, length + gap + (gap > 0) :] = True
    return Batch(ids_BT, agent_BT, torch.zeros(ids_BT.shape), torch.full((rows,), 2 * length + gap))


def varied_batch(vocabulary: int, tokens: int, length: int, spread: float, generator: torch.Generator) -> Batch:
    """Make about `tokens` tokens of rows with one random length and gap, from ranges that widen as `spread` goes 0 → 1.

    At 0 the length is `length` and the gap 0. At 1 they are drawn from `LENGTHS` and from 0 to `LONGEST_GAP`.
    """

    def draw(low: float, high: float) -> int:
        return int(torch.randint(round(low), round(high) + 1, (), generator=generator))

    shortest, longest = LENGTHS
    size = draw(length + spread * (shortest - length), length + spread * (longest - length))
    gap = draw(0, spread**2 * LONGEST_GAP)  # squared: wide gaps too early make the model unlearn copying by position
    return repeat_batch(vocabulary, max(1, tokens // (2 * size + gap)), size, generator, gap)
