"""Repeats: random sequences written twice. Predicting the second half is copying, the skill that reading stands on.

A small model learns it here in a hundred short steps; from demonstrations alone it may take it thousands.
"""

import torch

from coseek.training.batch import Batch


def repeat_batch(vocabulary: int, rows: int, length: int, generator: torch.Generator) -> Batch:
    """`rows` rows "x x" of `2 · length` tokens drawn uniformly from the vocabulary; the second x is the agent's."""
    half = torch.randint(vocabulary, (rows, length), generator=generator)
    ids_BT = torch.cat([half, half], dim=1)
    agent_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    agent_BT[:, length:] = True
    return Batch(ids_BT, agent_BT, torch.zeros(ids_BT.shape), torch.full((rows,), 2 * length))
