"""A model of one number per token, trained by plain gradient descent: every update can be worked out by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from coseek.models.model import Model, Tokenizer
from coseek.models.sampler import SamplerSettings
from coseek.training.learner.batch import Batch
from coseek.training.learner.learner import LearnerState, Loss
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.workers import ALONE, Workers


class TableLearner:
    """A `Trainable` whose outputs are its table, and its entropies a second one; both of shape BT."""

    def __init__(self, table: Sequence[Sequence[float]], lr: float = 1.0, entropy: float = 0.5) -> None:
        self.table_BT = torch.tensor(table).requires_grad_()
        self.entropy_BT = torch.full_like(self.table_BT, entropy).requires_grad_()
        self.learning_rate = lr
        self.updates_done = 0
        self.rows_seen: list[list[int]] = []
        """Rows of each `forward_backward`."""

    def forward(self, batch: Batch, target_mask_BT: Tensor) -> Tensor:
        """Read the table's first rows and columns, which `batch` is."""
        return torch.where(target_mask_BT, self.table_BT.detach()[: len(batch), : batch.ids_BT.shape[1]], 0.0)

    def forward_backward(self, batch: Batch, target_mask_BT: Tensor, loss: Loss, entropy: Entropy = "off") -> float:
        """Run each row as a micro-batch, cut to its length."""
        rows = target_mask_BT.any(dim=1).nonzero()[:, 0].tolist()
        self.rows_seen.append(rows)
        total = 0.0
        for row in rows:
            width = int(batch.lengths_B[row])
            target_mask_bt = target_mask_BT[[row], :width]
            outputs = torch.where(target_mask_bt, self.table_BT[[row], :width], 0.0)
            if entropy != "off":
                entropy_bt = self.entropy_BT if entropy == "with_grad" else self.entropy_BT.detach()
                outputs = torch.stack([outputs, torch.where(target_mask_bt, entropy_bt[[row], :width], 0.0)])
            value = loss(outputs, torch.tensor([row]))
            value.backward()
            total += float(value.detach())
        return total

    def optim_step(self) -> float:
        assert self.table_BT.grad is not None
        norm = float(self.table_BT.grad.norm())
        with torch.no_grad():
            for table_BT in (self.table_BT, self.entropy_BT):
                if table_BT.grad is not None:
                    table_BT -= self.learning_rate * table_BT.grad
                    table_BT.grad = None
        self.updates_done += 1
        return norm

    def rows(self) -> list[list[float]]:
        table: list[list[float]] = self.table_BT.tolist()
        return table

    def weights(self) -> dict[str, Tensor]:
        return {"table": self.table_BT.detach().clone()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.table_BT.data.copy_(weights["table"])

    def state(self) -> LearnerState:
        raise AssertionError("a table is in no checkpoint")

    def load_state(self, state: LearnerState) -> None:
        raise AssertionError("a table is in no checkpoint")


class TableBackend:
    """A `TrainingBackend` of tables."""

    def __init__(
        self,
        policy: TableLearner,
        critic: TableLearner | None = None,
        reference: TableLearner | None = None,
        workers: Workers = ALONE,
    ) -> None:
        self.policy, self.critic, self.reference, self.workers = policy, critic, reference, workers

    def sampler(
        self, tokenizer: Tokenizer, stops: Sequence[str], settings: SamplerSettings, *, on_policy: bool = True
    ) -> Model:
        raise AssertionError("a table writes nothing")

    def release(self) -> None:
        """A table keeps nothing for sampling."""

    def refresh(self) -> None:
        """A table has no samplers."""

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        raise AssertionError("a table is not saved")
