"""Tinker policy: a LoRA adapter that a Tinker server trains.

The protocol's losses have no KL, importance weights or normalisers. So a loss is computed here, from the server's
log-probabilities, and its gradient by each of them is sent as the token's advantage: the server's `importance_sampling`
loss at ratio 1 has the same gradient. This costs one more forward pass, and is exact for any loss of log-probabilities.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coseek.core.errors import RunError
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.remote import CalledRow, RowCalls, check_turn, cut_at_stop
from coseek.training.learner.batch import Batch
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.learner import LearnerState, Loss
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.optimizer import rate_at
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.backends.tinker import Reduction, TinkerClient

if TYPE_CHECKING:
    from tinker import SamplingClient, TrainingClient
    from tinker.types import Datum, ModelInput, SampleResponse


class ServerWeights:
    """The methods of `ForwardModel` for weights, which the server holds."""

    def weights(self) -> dict[str, Tensor]:
        """Return no weights: the server holds them."""
        return {}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Do nothing: the server holds the weights."""


class TinkerPolicy(ServerWeights):
    """Implements `Trainable`. The weights are the server's; a checkpoint holds the path of its saved state."""

    def __init__(
        self, client: TinkerClient, settings: LearnerSettings, total_updates: int, reduction: Reduction
    ) -> None:
        assert settings.lora is not None
        self.client = client
        self.settings = settings
        self.lora = settings.lora
        self.total_updates = total_updates
        self.reduction = reduction
        self.updates_done = 0
        self._adapter: TrainingClient | None = None
        self._path: str | None = ""
        """Path of the current state at the server; empty for a new adapter, `None` if it is not saved."""
        self._pending: list[tuple[list[int], Tensor, Tensor]] = []
        """Ids, log-probabilities and advantages of the rows of the next update."""

    @property
    def learning_rate(self) -> float:
        return rate_at(self.settings.optimizer, self.updates_done, self.total_updates)

    @property
    def adapter(self) -> "TrainingClient":
        """The adapter, created at first use: some servers only load a state into a new adapter."""
        if self._adapter is None:
            adapter, path = self.client.new_adapter(self.lora), self._path
            if path:
                self.client.wait(lambda: adapter.load_state_with_optimizer(path))
            self._adapter = adapter
        return self._adapter

    def forward(self, batch: Batch, target_mask_BT: Tensor) -> Tensor:
        rows_N, outputs_BT = target_mask_BT.any(dim=1).nonzero()[:, 0], torch.zeros(batch.ids_BT.shape)
        if len(rows_N):
            data = [_datum(_row_ids(batch, int(row))) for row in rows_N]
            response = self.client.wait(lambda: self.adapter.forward(data, "cross_entropy"))
            for row, outputs in zip(rows_N, response.loss_fn_outputs, strict=True):
                outputs_BT[row, 1 : batch.lengths_B[row]] = outputs["logprobs"].to_torch()
        return torch.where(target_mask_BT, outputs_BT, 0.0)

    def forward_backward(self, batch: Batch, target_mask_BT: Tensor, loss: Loss, entropy: Entropy = "off") -> float:
        """Add the gradient of `loss`, which is sent with the next update. A server returns no entropies."""
        logprobs_BT = self.forward(batch, target_mask_BT).requires_grad_()
        rows_N = target_mask_BT.any(dim=1).nonzero()[:, 0]
        value = loss(logprobs_BT[rows_N], rows_N)
        value.backward()
        gradient_BT = logprobs_BT.grad
        assert gradient_BT is not None
        for row in rows_N:
            ids = _row_ids(batch, int(row))
            self._pending.append((ids, logprobs_BT[row, 1 : len(ids)].detach(), -gradient_BT[row, 1 : len(ids)]))
        return float(value.detach())

    def optim_step(self) -> float:
        """Make one update. Returns the norm of the gradient; NaN if the server does not report it."""
        from tinker.types import AdamParams

        adam, rows = self.settings.optimizer, self._pending
        params = AdamParams(
            learning_rate=self.learning_rate,
            beta1=adam.betas[0],
            beta2=adam.betas[1],
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        scales = [len(rows) * len(logprobs) if self.reduction == "mean" else 1 for _, logprobs, _ in rows]
        data = [_datum(*row[:2], row[2] * scale) for row, scale in zip(rows, scales, strict=True)]
        with self.client.errors():
            gradient = self.adapter.forward_backward(data, "importance_sampling")
            step = self.adapter.optim_step(params)
            gradient.result()
            metrics = step.result().metrics or {}
        self._pending, self._path = [], None
        norm = next((value for name, value in metrics.items() if name.endswith("grad_norm")), None)
        if norm is not None and not torch.isfinite(torch.tensor(norm)):
            raise RunError(
                f"the gradient of update {self.updates_done} is {norm}; go on from the last checkpoint with a learning "
                f"rate below {self.learning_rate}"
            )
        self.updates_done += 1
        return float("nan") if norm is None else norm

    def state(self) -> LearnerState:
        """Return the path of the state at the server, which saves it if needed."""
        if self._path is None:
            name = f"update-{self.updates_done:06}"
            self._path = str(self.client.wait(lambda: self.adapter.save_state(name)).path)
        return {"module": {}, "optimizer": {"adam": {"path": self._path}, "update": self.updates_done}}

    def load_state(self, state: LearnerState) -> None:
        self._adapter, self._pending = None, []
        self._path, self.updates_done = str(state["optimizer"]["adam"]["path"]), state["optimizer"]["update"]


class TinkerReference(ServerWeights):
    """Implements `ForwardModel`: the base model of a server."""

    def __init__(self, client: TinkerClient) -> None:
        self.client = client
        self._base = client.base_sampler()

    def forward(self, batch: Batch, target_mask_BT: Tensor) -> Tensor:
        rows_N, outputs_BT = target_mask_BT.any(dim=1).nonzero()[:, 0], torch.zeros(batch.ids_BT.shape)
        with self.client.errors():
            futures = [self._base.compute_logprobs(_model_input(_row_ids(batch, int(row)))) for row in rows_N]
            for row, future in zip(rows_N, futures, strict=True):
                length = int(batch.lengths_B[row])
                outputs_BT[row, 1:length] = torch.tensor(future.result()[1 - length :])
        return torch.where(target_mask_BT, outputs_BT, 0.0)


def _row_ids(batch: Batch, row: int) -> list[int]:
    return [int(token) for token in batch.ids_BT[row, : batch.lengths_B[row]]]


def _model_input(ids: list[int]) -> "ModelInput":
    from tinker.types import ModelInput

    return ModelInput.from_ints(ids)


def _datum(ids: list[int], logprobs_T: Tensor | None = None, advantages_T: Tensor | None = None) -> "Datum":
    """A row: each token but the first is predicted from those before it."""
    from tinker.types import Datum

    inputs = {"target_tokens": torch.tensor(ids[1:])}
    if logprobs_T is not None and advantages_T is not None:
        inputs |= {"logprobs": logprobs_T, "advantages": advantages_T}
    return Datum(model_input=_model_input(ids[:-1]), loss_fn_inputs=inputs)


# Tinker sampler: samples rows on a Tinker server, with the exact ids and log-probabilities that it returns.
#
# Each request contains the whole row; no state is kept at the server.


@dataclass(slots=True)
class _TinkerRow(CalledRow):
    ids: list[int] = field(default_factory=list)


class TinkerSampler(RowCalls[_TinkerRow, "SampleResponse"]):
    """Implements `ServedModel`. Driven by one thread; calls run in the background."""

    failures = (Exception,)  # the client's errors have no class in common

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], temperature: float, concurrency: int) -> None:
        super().__init__(_TinkerRow)
        self.tokenizer = tokenizer
        self.concurrency = concurrency
        self.done = SimpleQueue()
        self._stops = tuple(stops)
        self._temperature = temperature
        self._weights: SamplingClient | None = None
        self._version = 0

    def use(self, weights: "SamplingClient", version: int) -> None:
        """Sample with these weights from now on."""
        self._weights, self._version = weights, version

    def _call(self, row: _TinkerRow, request: Request) -> "Future[SampleResponse]":
        from tinker.types import ModelInput, SamplingParams

        assert self._weights is not None, "`use` gives the weights"
        row.ids += request.ids
        row.version = self._version
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=self._temperature,
            seed=derive_seed(request.seed, len(row.ids)) >> 32,  # 31 bits
            stop=[*self._stops],
        )
        call: Future[SampleResponse] = self._weights.sample(ModelInput.from_ints(row.ids), 1, params)
        return call

    def _read(self, key: int, row: _TinkerRow, answer: "SampleResponse") -> Turn:
        sequence = answer.sequences[0]
        ids, logprobs = tuple(sequence.tokens), tuple(sequence.logprobs or ())
        check_turn(ids, logprobs)
        end = TurnEnd.LENGTH if sequence.stop_reason == "length" else TurnEnd.EOS
        if self.tokenizer.eos_id in ids:  # some servers go on after it
            ids, end = ids[: ids.index(self.tokenizer.eos_id) + 1], TurnEnd.EOS
        ids, end = cut_at_stop(ids, end, self._stops, self.tokenizer, row.max_tokens)
        row.ids += ids
        return Turn(key, ids, logprobs[: len(ids)], end, version=row.version)
