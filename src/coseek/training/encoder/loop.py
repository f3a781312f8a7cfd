"""Loop: updates of an encoder, in sentence-transformers' trainer with our data order, loss, schedule and files.

`RetrieverTrainer`, which runs it, is in `pipelines/trainers.py`.

The examples of an update depend on the seed and its number alone (`ExampleOrder`), so a resumed training skips the
updates that are done. A checkpoint holds the trained weights with their adapters, the length of `metrics.jsonl`, and
the sums of its next row. It is valid once `trainer_state.json`, which the library writes last, can be read.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.model import BaseModel
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, ProgressCallback, TrainerCallback, TrainerControl, TrainerState

from coseek.core.errors import CoseekError, DiskFault
from coseek.core.files import read_json, read_json_object, write_json
from coseek.core.progress import PendingStop, Progress
from coseek.core.record import OPTIONAL, Number, Record
from coseek.training.encoder.batch import UpdateCollator
from coseek.training.encoder.evaluation import EncoderEvaluator
from coseek.training.encoder.examples import ExampleOrder
from coseek.training.encoder.loss import RetrieverObjective
from coseek.training.encoder.recipe import RetrieverRecipe, RetrieverUpdates
from coseek.training.learner.checkpoint import KEEP_CHECKPOINTS, SaveClock, save_state
from coseek.training.learner.optimizer import adam_groups, rate_at
from coseek.training.learner.workers import Workers
from coseek.training.tracker import MetricsLog

WEIGHTS = "weights.pt"
NOTES = "notes.json"
STATE = "trainer_state.json"


@dataclass(frozen=True)
class CheckpointNotes(Record):
    """State of a checkpoint besides the weights and the library's own state."""

    metrics_bytes: int = 0
    """Length of `metrics.jsonl`."""
    sums: Annotated[Mapping[str, Number], OPTIONAL] = field(default_factory=dict)
    """Sums of the next row of metrics (`RetrieverObjective.sums`)."""

    @classmethod
    def of(cls, checkpoint: Path | None) -> "CheckpointNotes":
        """Read the notes of a checkpoint; empty for a new training."""
        return cls() if checkpoint is None else cls.from_json(read_json_object(checkpoint / NOTES))


class EncoderTrainer(SentenceTransformerTrainer):
    """Trains an encoder; start it with `train(resume_from_checkpoint=…)`."""

    def __init__(
        self,
        model: BaseModel,
        args: SentenceTransformerTrainingArguments,
        objective: RetrieverObjective,
        order: ExampleOrder,
        collator: UpdateCollator,
        optimizer: tuple[AdamW, LambdaLR],
        evaluator: EncoderEvaluator | None,
        metrics: MetricsLog | None,
        progress: Progress,
    ) -> None:
        self._order, self._collator, self._objective, self.metrics = order, collator, objective, metrics
        super().__init__(
            model=cast(SentenceTransformer, model), args=args, loss=objective, evaluator=evaluator, optimizers=optimizer
        )
        for callback in (PrinterCallback, ProgressCallback):
            self.remove_callback(callback)
        self.add_callback(_MetricsCallback(objective, metrics, progress))

    def add_model_card_callback(self, default_args_dict: dict[str, object]) -> None:
        """Add no model card: `coseek.yaml` describes our encoders."""

    def get_train_dataloader(self) -> "DataLoader[int]":
        """Load one update at a time. Every worker builds the whole batch and encodes its share of it."""
        order, collator = self._order, self._collator
        steps = cast("Dataset[int]", range(self.args.max_steps))
        return DataLoader(steps, batch_size=1, collate_fn=lambda numbers: collator(order.batch(numbers[0])))

    def _save(self, output_dir: str | None = None, state_dict: object = None) -> None:
        """Write a checkpoint's weights and notes. Raises `DiskFault` if they cannot be written."""
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            save_state(self.model.state_dict(), folder / WEIGHTS)
            if self.metrics is not None:
                self.metrics.sync()
                write_json(folder / NOTES, CheckpointNotes(self.metrics.position, self._objective.sums).to_json())
        except OSError as error:
            raise _write_fault(folder, error.strerror or str(error)) from None

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        try:
            super()._save_checkpoint(model, trial)
        except RuntimeError as error:
            if not any(sign in str(error) for sign in ("inline_container", "iostream")):
                raise
            # The error of torch's zip writer gives no other reason when the disk is full.
            raise _write_fault(Path(str(self.args.output_dir)), "the disk took only a part of it") from None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.model.load_state_dict(
            torch.load(Path(resume_from_checkpoint) / WEIGHTS, map_location="cpu", weights_only=True)
        )


def _write_fault(folder: Path, reason: str) -> DiskFault:
    return DiskFault(f"{folder} could not be written ({reason}); make room there and go on with --resume")


class _MetricsCallback(TrainerCallback):
    """Writes `metrics.jsonl` and reports progress."""

    def __init__(self, objective: RetrieverObjective, metrics: MetricsLog | None, progress: Progress) -> None:
        self._objective, self._metrics, self._progress = objective, metrics, progress
        self._started_s, self._note = time.monotonic(), ""

    def on_train_begin(self, *_: object, **__: object) -> None:
        self._started_s = time.monotonic()

    def on_log(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        """Write a row every `log_every` updates. The library also calls this at the end and after evaluations."""
        logs = cast(dict[str, float], kwargs["logs"])
        if "loss" not in logs:
            return
        now, metrics = time.monotonic(), self._objective.pop_metrics()
        seconds, self._started_s = now - self._started_s, now
        row = {
            "step": state.global_step,
            **metrics,
            "tokens": int(metrics["tokens"]),
            "grad_norm": logs["grad_norm"],
            "lr": logs["learning_rate"],
            "time/steps_s": seconds,
        }
        self._note = f"loss {metrics.get('loss', float('nan')):.3f}"
        if self._metrics is not None:
            self._metrics.write(row)

    def on_evaluate(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        """Write the metrics of an evaluation on held-out turns."""
        metrics = cast(dict[str, float], kwargs["metrics"]).items()
        scores = {name.removeprefix("eval_"): value for name, value in metrics if name.startswith("eval_held/")}
        if self._metrics is not None and scores:
            self._metrics.write({"step": state.global_step, **scores})
        if "held/mrr" in scores:
            self._progress.say(f"after {state.global_step} updates: MRR {scores['held/mrr']:.3f} on held-out turns")

    def on_step_end(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        self._progress.advance(state.global_step, self._note)


class SaveOnStop(TrainerCallback):
    """Saves a checkpoint and ends the training when a stop is pending; also saves when a checkpoint is due by time."""

    def __init__(self, stop: PendingStop, workers: Workers) -> None:
        self._stop, self._workers, self._clock = stop, workers, SaveClock()
        self._saving_since = time.monotonic()
        self.stopped = False
        """Whether the training ended early; `PendingStop.act` is then due."""

    def on_step_end(self, args: object, state: object, control: TrainerControl, **kwargs: object) -> None:
        self.stopped = any(self._workers.gather(self._stop.asked))
        if self.stopped or self._workers.broadcast(lambda: self._clock.is_due):
            control.should_save = True
        control.should_training_stop = control.should_training_stop or self.stopped
        self._saving_since = time.monotonic()

    def on_evaluate(self, *_: object, **__: object) -> None:
        """Exclude an evaluation, which runs between a step and its checkpoint, from the time of saving."""
        self._saving_since = time.monotonic()

    def on_save(self, *_: object, **__: object) -> None:
        self._clock.saved(self._saving_since)


def arguments(
    folder: Path, recipe: RetrieverRecipe, steps: int, evaluates: bool
) -> SentenceTransformerTrainingArguments:
    """Return the library's arguments for our settings: this process trains on the recipe's device alone."""
    updates, held_out, device = recipe.training, recipe.held_out, recipe.torch_device()
    keeps_best = evaluates and held_out.keep == "best"
    eval_steps = held_out.every or steps
    args = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        num_train_epochs=1,
        per_device_train_batch_size=1,  # one update; `ExampleOrder` gives its number of examples
        max_grad_norm=updates.optimizer.max_grad_norm,
        logging_steps=updates.log_every,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_total_limit=KEEP_CHECKPOINTS,
        save_steps=eval_steps if keeps_best else updates.checkpoint_every,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=eval_steps,
        load_best_model_at_end=keeps_best,
        metric_for_best_model="held/mrr" if keeps_best else None,
        greater_is_better=True if keeps_best else None,
        report_to=[],
        disable_tqdm=True,
        seed=recipe.seed,
        data_seed=recipe.seed,
        use_cpu=device.type == "cpu",
        dataloader_pin_memory=False,
        ddp_backend="gloo" if dist.is_initialized() and device.type == "cpu" else None,
        ddp_broadcast_buffers=False,  # buffers are constant, and a broadcast between two passes breaks the first
    )
    # With `load_best_model_at_end` the library refuses checkpoints between evaluations. They do no harm, and a killed
    # training loses less. The recipe refuses intervals that would leave an evaluation without a checkpoint.
    args.save_steps = min(args.save_steps, updates.checkpoint_every)
    # The library would use the first GPU, and split every batch over all visible ones (nn.DataParallel).
    args._n_gpu = min(args.n_gpu, 1)
    vars(args)["_setup_devices"] = device
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
    return args


def optimizer_of(model: nn.Module, updates: RetrieverUpdates, steps: int) -> tuple[AdamW, LambdaLR]:
    """Return AdamW, with weight decay on matrices (and vectors, if set), and our schedule."""
    settings = updates.optimizer
    groups = adam_groups((parameter for parameter in model.parameters() if parameter.requires_grad), settings)
    adam = AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    return adam, LambdaLR(adam, lambda update: rate_at(settings, update, steps) / (settings.lr or 1.0))


def last_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint: its state, written last, can be read. `None` if there is none."""
    complete: list[tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*"):
        if (path / WEIGHTS).is_file():
            with suppress(CoseekError):
                read_json(path / STATE)
                complete.append((int(path.name.removeprefix("checkpoint-")), path))
    return max(complete)[1] if complete else None
