"""Batch: the token ledgers of many trajectories as padded tensors. There is no text in here.

Shapes: B rows · T tokens, padded on the right · N tokens that a loss looks at · D hidden size · V vocabulary.

One convention everywhere: a `_BT` tensor is indexed by the token it speaks of. `logprobs_BT[b, t]` is the
log-probability *of* token t (the model gave it at position t-1); a value at t is that of the state *before* token t.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coseek.core.errors import DataError
from coseek.data.trajectory import Author, Trajectory

FILLER_ID = 0
"""What stands behind a row's end. Any id would do: lengths say what is real, never the id."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of token ids with who wrote them; everything behind `lengths_B` is filler."""

    ids_BT: Tensor
    agent_BT: Tensor
    """True where the agent wrote the token."""
    logprobs_BT: Tensor
    """What the sampler said of each agent token; 0 elsewhere, and never read there."""
    lengths_B: Tensor

    def __len__(self) -> int:
        return int(self.ids_BT.shape[0])

    @property
    def real_BT(self) -> Tensor:
        """True inside a row, False in its padding."""
        return torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device)[None, :] < self.lengths_B[:, None]

    @property
    def predicted_BT(self) -> Tensor:
        """True where a model can say something of the token: every real one but the first."""
        predicted_BT = self.real_BT
        predicted_BT[:, 0] = False
        return predicted_BT

    def select(self, rows_B: Tensor) -> "Batch":
        """These rows alone, cut to the longest of them."""
        width = int(self.lengths_B[rows_B].max())
        return Batch(
            ids_BT=self.ids_BT[rows_B, :width],
            agent_BT=self.agent_BT[rows_B, :width],
            logprobs_BT=self.logprobs_BT[rows_B, :width],
            lengths_B=self.lengths_B[rows_B],
        )

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.ids_BT.to(device), self.agent_BT.to(device), self.logprobs_BT.to(device), self.lengths_B.to(device)
        )


def make_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """The ledgers of these trajectories, one row each, straight from their ids."""
    if not trajectories:
        raise DataError("a batch needs at least one trajectory")
    lengths_B = torch.tensor([sum(len(segment.ids) for segment in run.segments) for run in trajectories])
    shape = (len(trajectories), int(lengths_B.max()))
    ids_BT = torch.full(shape, FILLER_ID, dtype=torch.long)
    agent_BT = torch.zeros(shape, dtype=torch.bool)
    logprobs_BT = torch.zeros(shape, dtype=torch.float32)
    for row, run in enumerate(trajectories):
        if not run.segments or not run.segments[0].ids or run.segments[0].author is Author.AGENT:
            raise DataError(f"the trajectory of question {run.question.id!r} begins without a prompt to go on from")
        if not run.exact:
            raise DataError(
                f"the run of question {run.question.id!r} cannot be trained on: its server did not say which ids "
                "it sampled and how likely they were; run the agent from its folder, or on a server that returns "
                "both (vLLM, SGLang, `coseek serve model`)"
            )
        start = 0
        for segment in run.segments:
            end = start + len(segment.ids)
            ids_BT[row, start:end] = torch.tensor(segment.ids, dtype=torch.long)
            if segment.author is Author.AGENT:
                agent_BT[row, start:end] = True
                logprobs_BT[row, start:end] = torch.tensor(segment.logprobs, dtype=torch.float32)
            start = end
    return Batch(ids_BT, agent_BT, logprobs_BT, lengths_B)


def before(wanted_BT: Tensor) -> Tensor:
    """True at the positions that say something of a wanted token: one to the left of it."""
    before_BT = torch.zeros_like(wanted_BT)
    before_BT[:, :-1] = wanted_BT[:, 1:]
    return before_BT


def micro_batches(lengths_B: Tensor, max_tokens: int) -> list[Tensor]:
    """Cut rows into groups of like length holding at most `max_tokens` with their padding.

    Longest first, so a machine that lacks the memory says so at once. A row longer than the budget goes alone.
    Ties keep the rows' order, so the same lengths always give the same cut.
    """
    order = sorted(range(len(lengths_B)), key=lambda row: -int(lengths_B[row]))
    cut: list[Tensor] = []
    at = 0
    while at < len(order):
        rows = max(1, max_tokens // max(1, int(lengths_B[order[at]])))
        cut.append(torch.tensor(order[at : at + rows], dtype=torch.long))
        at += rows
    return cut
