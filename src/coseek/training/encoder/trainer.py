"""The trainer: sentence-transformers' own, with our order of rows, our loss, our schedule and our files.

What is ours in it: an update's rows follow from the seed and its number (`rows.Order`), so a run that goes on skips
what was done; a checkpoint holds the weights as they are trained, adapters and all, where `metrics.jsonl` ended, and
what its next line is made of so far; it counts once `trainer_state.json`, which is written last, is whole.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from transformers import (
    PrinterCallback,
    ProgressCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from coseek.core.errors import CoseekError, DiskFault
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.progress import Progress
from coseek.training.encoder.collator import Collator
from coseek.training.encoder.evaluation import HeldOutEvaluator
from coseek.training.encoder.examples import ExampleOrder, TrainingExample
from coseek.training.encoder.loss import RetrieverObjective
from coseek.training.encoder.recipe import HeldOutSettings, RetrieverUpdates
from coseek.training.trainer.metrics import MetricsLog
from coseek.training.trainer.optimiser import rate_at

WEIGHTS = "weights.pt"
NOTES = "notes.json"
STATE = "trainer_state.json"


@dataclass(frozen=True)
class CheckpointNotes:
    """What a checkpoint knows besides weights and the library's own state."""

    metrics_bytes: int = 0
    """Where the log ended."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """What the log's next line is made of so far (`RetrieverObjective.sums`)."""

    @classmethod
    def of(cls, checkpoint: Path | None) -> "CheckpointNotes":
        """Those of a checkpoint; none yet for a run that begins."""
        if checkpoint is None:
            return cls()
        row = cast(JsonObject, read_json(checkpoint / NOTES))
        return cls(cast(int, row["metrics_bytes"]), cast(dict[str, float], row.get("sums", {})))

    def to_json(self) -> JsonObject:
        return {"metrics_bytes": self.metrics_bytes, "sums": dict(self.sums)}


class UpdateSampler(Sampler[list[int]]):
    """The numbers of the updates, each alone in its list: the data set knows which rows an update has."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[list[int]]:
        return iter([number] for number in range(self._steps))

    def __len__(self) -> int:
        return self._steps


class UpdateDataset(torch.utils.data.Dataset[list[TrainingExample]]):
    """The rows of every update."""

    def __init__(self, order: ExampleOrder, steps: int) -> None:
        self._order, self._steps = order, steps

    def __getitem__(self, step: int) -> list[TrainingExample]:
        return self._order.batch(step)

    def __len__(self) -> int:
        return self._steps


class RetrieverTrainer(SentenceTransformerTrainer):
    """Trains an encoder on rows; `train(resume_from_checkpoint=…)` does it."""

    def __init__(
        self,
        model: SentenceTransformer,
        args: SentenceTransformerTrainingArguments,
        objective: RetrieverObjective,
        updates: UpdateDataset,
        collator: Collator,
        optimiser: tuple[AdamW, LambdaLR],
        evaluator: HeldOutEvaluator | None,
        metrics: MetricsLog | None,
        progress: Progress,
    ) -> None:
        self._updates, self._collator, self._objective, self.metrics = updates, collator, objective, metrics
        super().__init__(model=model, args=args, loss=objective, evaluator=evaluator, optimizers=optimiser)
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(_Teller(objective, metrics, progress))

    def add_model_card_callback(self, default_args_dict: dict[str, object]) -> None:
        """No model card: our encoders describe themselves in `coseek.yaml`."""

    def get_train_dataloader(self) -> "DataLoader[list[TrainingExample]]":
        """One update after the other; every worker builds the whole batch and encodes its share of it."""
        collator = self._collator

        def collate(batches: list[list[TrainingExample]]) -> object:
            return collator(batches[0])

        return DataLoader(self._updates, batch_sampler=UpdateSampler(len(self._updates)), collate_fn=collate)

    def _save(self, output_dir: str | None = None, state_dict: object = None) -> None:
        """A checkpoint's weights and notes."""
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            torch.save(self.model.state_dict(), folder / WEIGHTS)
            if self.metrics is not None:
                self.metrics.sync()
                write_json(folder / NOTES, CheckpointNotes(self.metrics.position, self._objective.sums).to_json())
        except OSError as error:
            raise DiskFault(
                f"{folder} could not be written ({error.strerror or error}); make room there and go on with --resume"
            ) from None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.model.load_state_dict(
            torch.load(Path(resume_from_checkpoint) / WEIGHTS, map_location="cpu", weights_only=True)
        )


class _Teller(TrainerCallback):
    """Writes `metrics.jsonl`, and tells whoever watches."""

    def __init__(
        self,
        objective: RetrieverObjective,
        metrics: MetricsLog | None,
        progress: Progress,
    ) -> None:
        self._objective, self._metrics, self._progress = objective, metrics, progress
        self._began, self._note = time.monotonic(), ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._began = time.monotonic()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        """Every `log_every` updates; the library also logs when it ends, and what it evaluated."""
        logs = cast(dict[str, float], kwargs["logs"])
        if "loss" not in logs:
            return
        now, readings = time.monotonic(), self._objective.readings()
        seconds, self._began = now - self._began, now
        row = {
            "step": state.global_step,
            **readings,
            "tokens": int(readings["tokens"]),
            "gradient": logs["grad_norm"],
            "lr": logs["learning_rate"],
            "time/steps_s": seconds,
        }
        self._note = f"loss {readings.get('loss', float('nan')):.3f}"
        if self._metrics is not None:
            self._metrics.write(row)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """A look at what is held out."""
        metrics = cast(dict[str, float], kwargs["metrics"])
        found = {name.removeprefix("eval_"): value for name, value in metrics.items() if name.startswith("eval_held/")}
        if self._metrics is not None and found:
            self._metrics.write({"step": state.global_step, **found})
        if "held/mrr" in found:
            self._progress.say(f"after {state.global_step} updates: MRR {found['held/mrr']:.3f} on what is held out")

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._progress.advance(state.global_step, self._note)


def arguments(
    folder: Path, updates: RetrieverUpdates, held_out: HeldOutSettings, steps: int, seed: int, evaluates: bool
) -> SentenceTransformerTrainingArguments:
    """The library's arguments for our settings."""
    keeps_best = evaluates and held_out.keep == "best"
    every = held_out.every or steps
    return SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        num_train_epochs=1,
        per_device_train_batch_size=1,  # one update; `Order` says how many rows it has
        max_grad_norm=updates.optimiser.clip_norm,
        logging_steps=updates.log_every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every if keeps_best else updates.checkpoint_every,
        save_total_limit=2,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=every,
        load_best_model_at_end=keeps_best,
        metric_for_best_model="held/mrr" if keeps_best else None,
        greater_is_better=True if keeps_best else None,
        report_to=[],
        disable_tqdm=True,
        seed=seed,
        data_seed=seed,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        ddp_backend="gloo" if dist.is_initialized() and not torch.cuda.is_available() else None,
        ddp_broadcast_buffers=False,  # buffers are constants; sending them between two forward passes breaks the first
    )


def optimiser_of(model: SentenceTransformer, updates: RetrieverUpdates, steps: int) -> tuple[AdamW, LambdaLR]:
    """AdamW, decaying matrices only, and our schedule."""
    settings = updates.optimiser
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [one for one in trained if one.ndim < 2], "weight_decay": 0.0},
    ]
    adam = AdamW([group for group in groups if group["params"]], lr=settings.lr, betas=settings.betas, eps=settings.eps)
    return adam, LambdaLR(adam, lambda update: rate_at(settings, update, steps) / settings.lr)


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint: one whose state, written last, can be read."""
    found: list[tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*"):
        number = path.name.removeprefix("checkpoint-")
        if number.isdigit() and (path / STATE).is_file() and (path / WEIGHTS).is_file():
            try:
                read_json(path / STATE)
            except CoseekError:
                continue
            found.append((int(number), path))
    return max(found)[1] if found else None
