"""Repeats: random sequences written twice. Predicting the second half is copying, the skill that reading stands on.

A small model learns it here in two hundred short steps; from demonstrations alone it may take it thousands. First every
sequence comes back at one distance, which a network learns within seconds and by position alone. Then lengths and
distances vary: what it can already copy by position it soon finds by content. Varied from the start, nothing is learnt
in that time (docs/LOG.md).
"""

import torch

from coseek.training.learning.batch import Batch

LENGTHS = (6, 40)
"""Shortest and longest sequence of a varied batch."""
GAPS = (0, 40)
"""Fewest and most tokens between a varied sequence and its repetition."""


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


def varied_batch(vocabulary: int, tokens: int, generator: torch.Generator) -> Batch:
    """About `tokens` tokens of rows that share one length and one gap, both drawn from their ranges."""
    length, gap = (int(torch.randint(low, high + 1, (), generator=generator)) for low, high in (LENGTHS, GAPS))
    return repeat_batch(vocabulary, max(1, tokens // (2 * length + gap)), length, generator, gap)
