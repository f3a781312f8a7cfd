"""Dry run of a retriever's training: its rows and updates, memory and minutes, and one real update.

Labels are read, or made, as the training does; synthetic ones of two worlds stand for all. The update is made with the
recipe's own batch in a folder that is deleted, which shows its memory and its seconds on this machine.
"""

import resource
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch

from coseek.core.connections import is_url
from coseek.core.errors import DataError, UserError
from coseek.core.files import JsonObject, read_json, read_jsonl
from coseek.core.progress import Progress
from coseek.core.settings import dump_settings, make_settings, merge_settings
from coseek.core.temp_files import temp_folder
from coseek.core.text import counted
from coseek.graders.judge import is_world
from coseek.hardware.device import accelerators
from coseek.labels.resources import GOLD, ORACLE
from coseek.measure.table import Table
from coseek.models.model_folder import Shape, model_path, shape_of_config
from coseek.pipelines.agent_check import check_retriever_recipe
from coseek.pipelines.dry_run import DryRun, as_object, dry_run, duration
from coseek.pipelines.encoder import EncoderData, RetrieverTraining
from coseek.pipelines.estimate import FULL, SERVER, adapter_parameters, shape_of_folder, shown_gib
from coseek.pipelines.reranker import training_of
from coseek.pipelines.together_recipe import TogetherRecipe, check_labels, method_settings, requirements_of
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.examples import ExampleOrder
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.settings import GIB, LearnerSettings, pass_bytes
from coseek.training.learner.workers import ALONE

WORLDS = 2
"""Synthetic worlds that are made."""
FULL_TEXT = 512
"""Assumed tokens of a text where neither recipe nor encoder limits it."""
LARGEST = 400_000_000
"""Parameters of an encoder from which no update is made without an accelerator."""


@dataclass(frozen=True, slots=True)
class RetrieverDryRun:
    """The findings of a dry run."""

    recipe: RetrieverRecipe
    encoder: str
    parameters: int
    rows: int | None
    """Label sets to train on; `None` where something is missing."""
    held_out: int
    """Turns that each evaluation searches."""
    steps: int
    memory: dict[str, float]
    """Estimated bytes, with every text at its full length."""
    update_s: float | None = None
    """Seconds of one update on this machine; `None` if none was made."""
    peak: float | None = None
    """Peak bytes of this process, or of its accelerator, after that update."""
    missing: str = ""
    """What is missing, such as labels that are still to be made. Memory alone is estimated without it."""

    @property
    def searches(self) -> int:
        """Searches of all evaluations: before the first and after the last update, and those between them."""
        between = (self.steps - 1) // self.recipe.held_out.every if self.recipe.held_out.every else 0
        return self.held_out * (2 + between)

    def refuse(self) -> None:
        """Raise `DataError` when something is missing."""
        if self.missing:
            raise DataError(self.missing)

    def to_json(self) -> JsonObject:
        """The findings in bytes and seconds."""
        return {**as_object(self), "searches": self.searches, "needed": sum(self.memory.values())}

    def tables(self) -> list[Table]:
        """The findings as rows of part, value and detail."""
        training, whole = self.recipe.training, shown_gib(sum(self.memory.values()))
        parts = ", ".join(f"{name} {shown_gib(value)}" for name, value in self.memory.items())
        rows = [
            ("model", f"{self.parameters / 1e6:,.1f} million weights", self.encoder),
            ("memory", f"{whole} GiB at most", f"{parts}, with every text at its full length"),
        ]
        if self.rows is None:
            return [Table(("part", "what", "detail"), tuple(rows))]
        detail = f"{counted(self.steps, 'update')} of {training.batch_size} rows"
        rows.insert(1, ("labels", f"{self.rows:,} rows", detail))
        if self.update_s is None or self.peak is None:
            rows.append(("update", "not made", "the encoder is large, and there is no accelerator"))
        else:
            rows += [
                ("update", f"{self.update_s:.3g} s", f"{shown_gib(self.peak)} GiB at its peak, measured"),
                ("time", f"{duration(self.steps * self.update_s)} for the updates", "at the speed of that update"),
            ]
        rows.append(("evaluation", f"{self.searches:,} searches", f"{self.held_out:,} held-out turns each time"))
        return [Table(("part", "what", "detail"), tuple(rows), ("Nothing asks a scorer. Nothing was written.",))]


def retriever_dry_run(recipe: RetrieverRecipe, progress: Progress) -> RetrieverDryRun:
    """Make a dry run. Raises `UserError` for what the training would refuse. Where labels or encoder are missing,
    memory alone is estimated, if the shape of the encoder is known: see `RetrieverDryRun.refuse`."""
    try:
        check_retriever_recipe(recipe)
    except UserError as error:
        with suppress(DataError):
            shape = _shape_of_encoder(recipe.encoder or "")
            memory, steps = _memory_by_shape(recipe, shape), recipe.training.steps or 0
            return RetrieverDryRun(
                recipe, str(recipe.encoder), shape.parameters, rows=None, held_out=0, steps=steps, memory=memory,
                missing=str(error),
            )  # fmt: skip
        raise
    with temp_folder(Path(tempfile.gettempdir()) / "coseek-dry-run") as folder:
        reduced = _with(recipe, {"synthetic": {"worlds": WORLDS}}) if recipe.synthetic is not None else recipe
        training = training_of(reduced)(reduced, folder, progress, workers=ALONE)
        training.check()
        rows = training.rows()
        count = len(rows)
        if recipe.synthetic is not None:
            count = round(count * recipe.synthetic.worlds / WORLDS)
        updates = recipe.training
        order = ExampleOrder(rows, updates.batch_size, recipe.loss.negatives, recipe.seed)
        steps = updates.steps or max(1, round(order.steps(updates.epochs) * count / len(rows)))
        model = training.open(training.start_folder)
        parameters = sum(weight.numel() for weight in model.parameters())
        del model
        held_out, card, start = training.material.held_out, training.card, training.start_folder
        turns = 0 if held_out is None else len(held_out.labels)
        shape = shape_of_config(read_json(start / "config.json", foreign=True))
        memory = encoder_memory(recipe, shape, parameters, card.query_tokens, card.passage_tokens)
        findings = RetrieverDryRun(recipe, str(start), parameters, count, turns, steps, memory)
        if parameters > LARGEST and accelerators()[0] is None:
            return findings
        seconds, peak = one_update(training, folder / "update")
        return replace(findings, update_s=seconds, peak=peak)


def encoder_memory(
    recipe: RetrieverRecipe, shape: Shape, parameters: int, query_tokens: int, passage_tokens: int
) -> dict[str, float]:
    """Bytes of a retriever's training: weights, gradients and moments in float32, and the activations that are kept at
    once, those of a micro-batch or, with `cached: false`, of a whole batch, every text at its full length."""
    updates, passages = recipe.training, 1 + recipe.loss.negatives
    at_once = max(updates.micro_batch_tokens, query_tokens, passage_tokens)
    if not updates.cached:
        at_once = updates.batch_size * (query_tokens + passages * passage_tokens)
    learner = LearnerSettings(
        precision=updates.precision, gradient_checkpointing=updates.gradient_checkpointing, lora=updates.lora
    )
    trained = parameters if updates.lora is None else adapter_parameters(shape, learner)
    return {
        "weights": 4.0 * parameters,
        "gradients": 4.0 * trained,
        "adam": 8.0 * trained,
        "activations": pass_bytes(shape, learner, at_once, at_once if recipe.kind == "sparse" else 0.0),
    }


def _shape_of_encoder(name: str) -> Shape:
    """The shape of an encoder, which may be missing. Raises `DataError` for an unknown one."""
    try:
        folder = encoder_folder(name)
    except DataError:
        folder = Path(name)
    return shape_of_folder(folder)[0]


def _memory_by_shape(recipe: RetrieverRecipe, shape: Shape) -> dict[str, float]:
    # An encoder of the BERT kind has two matrices in its feed-forward part, where `Shape` counts three.
    read = recipe.query_tokens or FULL_TEXT, recipe.passage_tokens or FULL_TEXT
    return encoder_memory(recipe, shape, shape.parameters, *read)


def one_update(training: RetrieverTraining, folder: Path) -> tuple[float, float]:
    """Seconds of the second of two updates with the recipe's batch, and the peak bytes after it."""
    short: JsonObject = {
        "training": {"steps": 2, "log_every": 1},
        "held_out": {"every": 0, "keep": "last"},
        "track": [],
    }
    small = type(training)(_with(training.recipe, short), folder, workers=ALONE)
    small.data, small.start_folder = training.data, training.start_folder
    small.material = EncoderData(training.material.train, None)
    small.train()
    timed = [row["time/steps_s"] for _, row in read_jsonl(folder / "metrics.jsonl") if "time/steps_s" in row]
    seconds = float(cast(float, timed[-1]))
    if accelerators()[0] == "cuda":
        return seconds, float(torch.cuda.max_memory_allocated())
    return seconds, 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _with(recipe: RetrieverRecipe, changes: JsonObject) -> RetrieverRecipe:
    return make_settings(RetrieverRecipe, merge_settings(RetrieverRecipe, dump_settings(recipe), changes))


# Dry run of a co-training: that of its agent, and what the labels, the retriever and the index of a round take.
#
# Counts are upper bounds: every run makes all its searches, and every search is labelled. A label method that asks only
# where an answer can change a label asks less.


@dataclass(frozen=True, slots=True)
class RoundWork:
    """Upper bounds of what one round asks for its labels."""

    runs: int
    searches: int
    """Searches of these runs, each a label set at most."""
    candidates: int
    scorer_calls: int
    continuations: int
    """Runs that the agent continues from a candidate."""


@dataclass(frozen=True, slots=True)
class TogetherDryRun:
    """The findings of a dry run."""

    recipe: TogetherRecipe
    agent: DryRun
    work: RoundWork
    scorer: float | None
    """Bytes of a local scorer in each process; 0 for a server or an oracle, and without a scorer; `None` for a model of
    unknown shape."""
    encoder: dict[str, float]
    """Bytes of the retriever's training; empty where its encoder is not there."""
    vectors: float = 0.0
    """Bytes of the vectors of a million passages; 0 where that is not known."""
    problems: tuple[str, ...] = ()
    """What is missing of retriever 0 and of the labels' models."""
    way_out: str = ""
    """What would let the labels' scorer fit; empty if it does."""

    @property
    def runs_s(self) -> float:
        """Seconds of a round's runs, stored and continued, at the speed that the agent's rollouts are assumed to have;
        0 where they are not estimated."""
        rollouts = self.agent.stages[-1].work
        return (self.work.runs + self.work.continuations) * rollouts.rollout_s / max(1, rollouts.runs)

    def refuse(self) -> None:
        """Raise `DataError` when something is missing."""
        missing = [f"{problem} (agent.{path.setting})" for path, problem in self.agent.missing]
        if listed := [*missing, *self.problems, *filter(None, [self.way_out])]:
            raise DataError(f"the recipe cannot be trained yet: {'; '.join(listed)}")

    def tables(self) -> Iterator[Table]:
        """The agent's findings, then those of a round."""
        yield from self.agent.tables()
        recipe, work = self.recipe, self.work
        scorer = "no model in the workers' processes"
        if recipe.labels.serve is not None:
            scorer = f"one server for all workers, by {recipe.labels.serve}"
        if self.scorer is None:
            scorer = "a local model of unknown size"
        elif self.scorer:
            scorer = f"{shown_gib(self.scorer)} GiB in each process that labels"
        parts = ", ".join(f"{name} {shown_gib(value)}" for name, value in self.encoder.items())
        spread = recipe.index.settings.get("devices", "one device")
        encoded = f"{recipe.index.retriever}, encoded on {spread}; in every process that searches its vectors"
        needed = f"{shown_gib(sum(self.encoder.values()))} GiB at most" if self.encoder else "unknown"
        rows = (
            ("runs to label", f"{work.runs:,} a round", f"{recipe.labels.questions:,} questions, at most"),
            ("searches", f"{work.searches:,} a round", f"{work.candidates} candidates each"),
            ("scorer calls", f"{work.scorer_calls:,} a round", f"{recipe.labels.scorer or 'no scorer'}: {scorer}"),
            ("continued runs", f"{work.continuations:,} a round", "of the agent, from single candidates"),
            ("time of these runs", f"{duration(self.runs_s)} a round at most", "as fast as the agent's rollouts"),
            ("retriever", needed, parts or "its encoder is not there, or is made by the training"),
            ("index", f"{self.vectors / 1e9:.3g} GB a million passages" if self.vectors else "unknown", encoded),
            ("rounds", f"{recipe.rounds}", f"labels by {recipe.labels.method}; each trains agent and retriever"),
        )
        note = "Upper bounds. The time of the scorer and of the index is left out."
        yield Table(("a round", "what", "detail"), rows, (note,))

    def to_json(self) -> JsonObject:
        """The findings in bytes and seconds."""
        rounds = {"rounds": self.recipe.rounds, "runs_s": self.runs_s}
        return {**as_object(self, "agent"), "agent": self.agent.to_json(), **rounds}


def together_dry_run(recipe: TogetherRecipe) -> TogetherDryRun:
    """Make a dry run. What is missing is reported, not raised: see `TogetherDryRun.refuse`."""
    agent = dry_run(recipe.agent)
    encoder: dict[str, float] = {}
    vectors = 0.0
    problems: list[str] = []
    with suppress(DataError):  # an unknown shape
        encoder, vectors = _encoder_memory(recipe)
    for check in (_check_encoder, check_labels):
        try:
            check(recipe)
        except UserError as error:
            problems.append(str(error))
    scorer, machine, way_out = _scorer_bytes(recipe), agent.recipe.machine, ""
    if scorer is not None and scorer > FULL * machine.memory_gib * GIB:
        way_out = (
            f"each of {counted(machine.devices, 'process')} would load labels.scorer={recipe.labels.scorer}, "
            f"{shown_gib(scorer)} GiB, and a device has {machine.memory_gib:g}; serve it once for all: "
            f"labels.scorer={SERVER} 'labels.serve=vllm serve {recipe.labels.scorer} --port 8000'"
        )
    return TogetherDryRun(recipe, agent, work_of(recipe), scorer, encoder, vectors, tuple(problems), way_out)


def work_of(recipe: TogetherRecipe) -> RoundWork:
    """Upper bounds of one round's labels."""
    labels, method, terms = recipe.labels, method_settings(recipe.labels).model_dump(), requirements_of(recipe.labels)
    opens = recipe.agent.load_protocol(run_files=False).file.opens_with_search
    runs = labels.questions * labels.samples
    searches = runs * (recipe.agent.limits.max_turns + opens)
    candidates = int(method.get("candidates") or method.get("depth") or recipe.agent.limits.passages_per_search)
    windows = -(-candidates // int(method.get("window") or candidates))
    scored = terms.scorer and labels.scorer is not None
    continued = candidates if method.get("gac") else 0
    return RoundWork(runs, searches, candidates, searches * windows if scored else 0, searches * continued)


def _scorer_bytes(recipe: TogetherRecipe) -> float | None:
    """Bytes of a local scorer's weights; `None` for a model of unknown shape."""
    name = recipe.labels.scorer
    if (
        name is None
        or is_url(name)
        or name in (ORACLE, GOLD)
        or is_world(Path(name))
        or name.endswith((".yaml", ".yml"))
    ):
        return 0.0
    try:
        return 2.0 * shape_of_folder(model_path(name))[0].parameters
    except DataError:
        return None


def _check_encoder(recipe: TogetherRecipe) -> None:
    """Raise `DataError` where the encoder of retriever 0 is missing."""
    if recipe.start.encoder is not None:
        encoder_folder(recipe.start.encoder)


def _encoder_memory(recipe: TogetherRecipe) -> tuple[dict[str, float], float]:
    """Bytes of the retriever's training, and of the vectors of a million passages, from the shape of its encoder, which
    may be missing. Empty and 0 for an encoder that the training makes; 0 where a passage has not one vector. Raises
    `DataError` for an unknown shape."""
    if recipe.start.encoder is None:
        return {}, 0.0
    shape = _shape_of_encoder(recipe.start.encoder)
    size = 2.0 if recipe.index.settings.get("dtype") == "float16" else 4.0
    vectors = size * 1e6 * shape.hidden if recipe.index.retriever not in ("late-interaction", "sparse") else 0.0
    return _memory_by_shape(recipe.retriever, shape), vectors
