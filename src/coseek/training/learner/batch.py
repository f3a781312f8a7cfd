"""Batch: the token ids of trajectories as padded tensors. It holds no text.

Shapes: B rows · T tokens, padded on the right · N tokens in a loss · D hidden size · V vocabulary.

Convention: a `_BT` tensor is indexed by the token that it describes. `logprobs_BT[b, t]` is the log-probability *of*
token t (output of the model at position t-1); a value at t is that of the state *before* token t.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coseek.core.errors import DataError
from coseek.data.trajectory import Author, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of token ids with their authors. Positions from `lengths_B` on are padding."""

    ids_BT: Tensor
    agent_BT: Tensor
    """True where the agent wrote the token."""
    logprobs_BT: Tensor
    """The sampler's log-probability of each agent token; 0 elsewhere, where it is never read."""
    lengths_B: Tensor

    def __len__(self) -> int:
        return int(self.ids_BT.shape[0])

    @property
    def real_BT(self) -> Tensor:
        """True inside a row, False in its padding."""
        return torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device)[None, :] < self.lengths_B[:, None]

    @property
    def predicted_BT(self) -> Tensor:
        """True at tokens that a model predicts: all of a row but the first."""
        predicted_BT = self.real_BT
        predicted_BT[:, 0] = False
        return predicted_BT

    def select(self, rows_B: Tensor) -> "Batch":
        """Select rows, cut to the longest of them."""
        width = int(self.lengths_B[rows_B].max())
        ids_bt, agent_bt, logprobs_bt = (
            whole_BT[rows_B, :width] for whole_BT in (self.ids_BT, self.agent_BT, self.logprobs_BT)
        )
        return Batch(ids_bt, agent_bt, logprobs_bt, self.lengths_B[rows_B])

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.ids_BT.to(device), self.agent_BT.to(device), self.logprobs_BT.to(device), self.lengths_B.to(device)
        )


def make_batch(trajectories: Sequence[Trajectory]) -> Batch:
    """Make a batch of the ids of trajectories, one row each. Raises `DataError` for those without exact ids."""
    for trajectory in trajectories:
        segments, question = trajectory.segments, trajectory.question.id
        if not trajectory.exact:
            raise DataError(
                f"the run of question {question!r} cannot be trained on: its server or log has not stored the sampled "
                "ids and their log-probabilities; run the agent from its folder, or on a server that returns both "
                "(vLLM, SGLang)"
            )
        if not segments or not segments[0].ids or segments[0].author is Author.AGENT:
            raise DataError(f"the trajectory of question {question!r} begins without a prompt")
    logprobs = (
        [value for segment in trajectory.segments for value in segment.logprobs or [0.0] * len(segment.ids)]
        for trajectory in trajectories
    )
    return Batch(
        ids_BT=padded(trajectory.ids for trajectory in trajectories),
        agent_BT=padded(trajectory.agent_mask for trajectory in trajectories),
        logprobs_BT=padded(logprobs),
        lengths_B=torch.tensor([len(trajectory.ids) for trajectory in trajectories]),
    )


def padded(rows: Iterable[Sequence[float]]) -> Tensor:
    """Return rows as a tensor, padded on the right with 0; shape BT. Lengths mark the padding, never the 0."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def before(target_mask_BT: Tensor) -> Tensor:
    """Return the positions whose outputs predict a target token: one to the left of it."""
    before_BT = torch.zeros_like(target_mask_BT)
    before_BT[:, :-1] = target_mask_BT[:, 1:]
    return before_BT


def micro_batches(lengths_B: Tensor, max_tokens: int) -> list[Tensor]:
    """Split rows into groups of similar length with at most `max_tokens` tokens, padding included.

    The longest come first, so a lack of memory shows at once. A row longer than the limit is a group of its own. Ties
    keep the rows' order, so equal lengths always give the same groups.
    """
    order = sorted(range(len(lengths_B)), key=lambda row: -int(lengths_B[row]))
    groups: list[Tensor] = []
    start = 0
    while start < len(order):
        count = max(1, max_tokens // max(1, int(lengths_B[order[start]])))
        groups.append(torch.tensor(order[start : start + count], dtype=torch.long))
        start += count
    return groups
