"""Dry runs of a retriever's training and of a co-training.

That of a retriever counts rows and updates, estimates memory, and makes one real update with the recipe's batch in a
temporary folder, to measure its memory and seconds on this machine. Labels are read or made as the training does;
of synthetic worlds, two are made and the rest is extrapolated.
"""

import resource
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch

from coseek.core.connections import is_url
from coseek.core.errors import DataError, ErrorList, UserError
from coseek.core.files import JsonObject, read_json, read_jsonl, temp_folder
from coseek.core.progress import Progress
from coseek.core.settings import dump_settings, make_settings, merge_settings
from coseek.core.text import counted
from coseek.graders.judge import is_world
from coseek.hardware.device import accelerators
from coseek.labels.resources import GOLD, ORACLE
from coseek.measure.table import Table
from coseek.models.model_folder import Shape, model_path, shape_of_config
from coseek.pipelines.agent_check import check_retriever_recipe
from coseek.pipelines.dry_run import COLUMNS, DryRun, dry_run, duration, on_processes_here
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
"""Synthetic worlds of a dry run."""
FULL_TEXT = 512
"""Assumed tokens of a text if neither recipe nor encoder limits it."""
LARGEST = 400_000_000
"""Parameters; without an accelerator no update of a larger encoder is made."""


def retriever_dry_run(recipe: RetrieverRecipe, progress: Progress) -> DryRun:
    """Make a dry run. Raises `UserError` for what the training would refuse. If labels or encoder are missing, only
    memory is estimated, provided the encoder's shape is known: see `DryRun.refuse`."""
    try:
        check_retriever_recipe(recipe)
    except UserError as error:
        with suppress(DataError):
            shape = _shape_of_encoder(recipe.encoder or "")
            rows, values = _findings(str(recipe.encoder), shape.parameters, _memory_by_shape(recipe, shape))
            values |= {"rows": None, "held_out": 0, "searches": 0, "steps": recipe.training.steps or 0}
            values |= {"update_s": None, "peak": None, "missing": str(error)}
            return DryRun((Table(COLUMNS, rows),), values, str(error))
        raise
    with temp_folder(Path(tempfile.gettempdir()) / "coseek-dry-run") as folder:
        reduced = _with_changes(recipe, {"synthetic": {"worlds": WORLDS}}) if recipe.synthetic is not None else recipe
        training = training_of(reduced)(reduced, folder, progress, workers=ALONE)
        examples, updates, start = training.rows(), recipe.training, training.start_folder
        count = round(len(examples) * (recipe.synthetic.worlds / WORLDS if recipe.synthetic is not None else 1))
        order = ExampleOrder(examples, updates.batch_size, recipe.loss.negatives, recipe.seed)
        steps = updates.steps or max(1, round(order.steps(updates.epochs) * count / len(examples)))
        parameters = sum(weight.numel() for weight in training.open(start).parameters())
        held_out, card = training.material.held_out, training.card
        turns = 0 if held_out is None else len(held_out.labels)
        shape = shape_of_config(read_json(start / "config.json", foreign=True))
        memory = encoder_memory(recipe, shape, parameters, card.query_tokens, card.passage_tokens)
        too_large = parameters > LARGEST and accelerators()[0] is None
        update_s, peak = (None, None) if too_large else one_update(training, folder / "update")
    # Before the first and after the last update, and between them.
    evaluations = 2 + ((steps - 1) // recipe.held_out.every if recipe.held_out.every else 0)
    searches = turns * evaluations
    (model, memory_row), values = _findings(str(start), parameters, memory)
    values |= {"rows": count, "held_out": turns, "searches": searches, "steps": steps}
    values |= {"update_s": update_s, "peak": peak, "missing": ""}
    update = [("update", "not made", "the encoder is large, and there is no accelerator")]
    if update_s is not None and peak is not None:
        extent = "measured" if accelerators()[0] == "cuda" else "measured: the whole process, with its libraries"
        update = [
            ("update", f"{update_s:.3g} s", f"{shown_gib(peak)} GiB at its peak, {extent}"),
            ("time", f"{duration(steps * update_s)} for the updates", "at the speed of that update"),
        ]
    labels = ("labels", f"{count:,} rows", f"{counted(steps, 'update')} of {updates.batch_size} rows")
    evaluation = ("evaluation", f"{searches:,} searches", f"{turns:,} held-out turns each time")
    table = Table(
        COLUMNS, (model, labels, memory_row, *update, evaluation), ("Nothing asks a scorer. Nothing was written.",)
    )
    return DryRun((table,), values)


def _findings(
    encoder: str, parameters: int, memory: dict[str, float]
) -> tuple[tuple[tuple[str, str, str], tuple[str, str, str]], JsonObject]:
    """Rows of the table and values: the encoder, and its memory with every text at its full length."""
    needed_bytes = sum(memory.values())
    parts = ", ".join(f"{name} {shown_gib(value)}" for name, value in memory.items())
    model = ("model", f"{parameters / 1e6:,.1f} million weights", encoder)
    row = ("memory", f"{shown_gib(needed_bytes)} GiB at most", f"{parts}, with every text at its full length")
    values: JsonObject = {"encoder": encoder, "parameters": parameters, "memory": {**memory}, "needed": needed_bytes}
    return (model, row), values


def encoder_memory(
    recipe: RetrieverRecipe, shape: Shape, parameters: int, query_tokens: int, passage_tokens: int
) -> dict[str, float]:
    """Bytes of a retriever's training: weights, gradients and moments in float32, and the activations of a micro-batch
    or, with `cached: false`, of a whole batch, with every text at its full length."""
    updates, passages = recipe.training, 1 + recipe.loss.negatives
    at_once = max(updates.micro_batch_tokens, query_tokens, passage_tokens)
    if not updates.cached:
        at_once = updates.batch_size * (query_tokens + passages * passage_tokens)
    learner = LearnerSettings(
        precision=updates.precision, gradient_checkpointing=updates.gradient_checkpointing, lora=updates.lora
    )
    trained_parameters = parameters if updates.lora is None else adapter_parameters(shape, learner)
    return {
        "weights": 4.0 * parameters,
        "gradients": 4.0 * trained_parameters,
        "adam": 8.0 * trained_parameters,
        "activations": pass_bytes(shape, learner, at_once, at_once if recipe.kind == "sparse" else 0.0),
    }


def _shape_of_encoder(name: str) -> Shape:
    """The shape of an encoder, whose folder may be missing. Raises `DataError` for an unknown shape."""
    folder = Path(name)
    with suppress(DataError):
        folder = encoder_folder(name)
    return shape_of_folder(folder)[0]


def _memory_by_shape(recipe: RetrieverRecipe, shape: Shape) -> dict[str, float]:
    # BERT encoders have two matrices in the feed-forward layer; `Shape` counts three.
    token_limits = recipe.query_tokens or FULL_TEXT, recipe.passage_tokens or FULL_TEXT
    return encoder_memory(recipe, shape, shape.parameters, *token_limits)


def one_update(training: RetrieverTraining, folder: Path) -> tuple[float, float]:
    """Seconds of the second of two updates with the recipe's batch, and the peak bytes of device or process."""
    overrides: JsonObject = {
        "training": {"steps": 2, "log_every": 1},
        "held_out": {"every": 0, "keep": "last"},
        "track": [],
    }
    small = type(training)(_with_changes(training.recipe, overrides), folder, workers=ALONE)
    small.data, small.start_folder = training.data, training.start_folder
    small.material = EncoderData(training.material.train, None)
    small.train()
    seconds_taken = [row["time/steps_s"] for _, row in read_jsonl(folder / "metrics.jsonl") if "time/steps_s" in row]
    seconds = float(cast(float, seconds_taken[-1]))
    if accelerators()[0] == "cuda":
        return seconds, float(torch.cuda.max_memory_allocated())
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def _with_changes(recipe: RetrieverRecipe, changes: JsonObject) -> RetrieverRecipe:
    return make_settings(RetrieverRecipe, merge_settings(RetrieverRecipe, dump_settings(recipe), changes))


# Dry run of a co-training: that of its agent, and the cost of a round's labels, retriever and index.
#
# Counts are upper bounds: every run makes all its searches, and every search is labelled. A label method that skips
# scores which cannot change a label makes fewer calls.


@dataclass(frozen=True, slots=True)
class RoundWork:
    """Upper bounds of the work for the labels of one round."""

    runs: int
    searches: int
    """Searches of these runs, each a label set at most."""
    candidates: int
    scorer_calls: int
    continuations: int
    """Runs that the agent continues from a candidate."""


def together_dry_run(recipe: TogetherRecipe) -> DryRun:
    """Make a dry run: the agent's findings, then those of a round. Missing parts are reported, not raised: see
    `DryRun.refuse`."""
    agent, mistakes, machine = dry_run(recipe.agent), ErrorList(), on_processes_here(recipe.agent).machine
    encoder, vectors = _encoder_memory(recipe)
    if recipe.start.encoder is not None:
        mistakes.collect(encoder_folder, recipe.start.encoder)
    mistakes.collect(check_labels, recipe)
    problems = [str(error) for error in mistakes.errors]
    scorer, way_out = _scorer_bytes(recipe), ""
    if scorer is not None and scorer > FULL * machine.memory_gib * GIB:
        way_out = (
            f"each of {counted(machine.devices, 'process')} would load labels.scorer={recipe.labels.scorer}, "
            f"{shown_gib(scorer)} GiB, and a device has {machine.memory_gib:g}; serve it once for all: "
            f"labels.scorer={SERVER} 'labels.serve=vllm serve {recipe.labels.scorer} --port 8000'"
        )
    work, rollouts = work_of(recipe), cast(list[dict[str, dict[str, float]]], agent.values["stages"])[-1]["work"]
    # At the assumed speed of the agent's rollouts; 0 if those are not estimated.
    runs_s = (work.runs + work.continuations) * rollouts["rollout_s"] / max(1, rollouts["runs"])
    values: JsonObject = {"work": asdict(work), "scorer": scorer, "encoder": {**encoder}, "vectors": vectors}
    values |= {"problems": [*problems], "way_out": way_out, "rounds": recipe.rounds, "runs_s": runs_s}
    values["agent"] = agent.values
    missing = cast(dict[str, str], agent.values["missing"])
    all_problems = [*(f"{problem} (agent.{setting})" for setting, problem in missing.items()), *problems]
    refusal = f"the recipe cannot be trained yet: {'; '.join([*all_problems, *filter(None, [way_out])])}"
    table = _round_table(recipe, work, runs_s, scorer, encoder, vectors)
    return DryRun((*agent.tables, table), values, refusal if all_problems or way_out else "")


def _round_table(
    recipe: TogetherRecipe,
    work: RoundWork,
    runs_s: float,
    scorer: float | None,
    encoder: Mapping[str, float],
    vectors: float,
) -> Table:
    """The findings about a round: see `together_dry_run`."""
    scored_by = "no model in the workers' processes"
    if recipe.labels.serve is not None:
        scored_by = f"one server for all workers, by {recipe.labels.serve}"
    if scorer is None:
        scored_by = "a local model of unknown size"
    elif scorer:
        scored_by = f"{shown_gib(scorer)} GiB in each process that labels"
    parts = ", ".join(f"{name} {shown_gib(value)}" for name, value in encoder.items())
    spread = recipe.index.settings.get("devices", "one device")
    encoded = f"{recipe.index.retriever}, encoded on {spread}; in every process that searches its vectors"
    memory = f"{shown_gib(sum(encoder.values()))} GiB at most" if encoder else "unknown"
    rows = (
        ("runs to label", f"{work.runs:,} a round", f"{recipe.labels.questions:,} questions, at most"),
        ("searches", f"{work.searches:,} a round", f"{work.candidates} candidates each"),
        ("scorer calls", f"{work.scorer_calls:,} a round", f"{recipe.labels.scorer or 'no scorer'}: {scored_by}"),
        ("continued runs", f"{work.continuations:,} a round", "of the agent, from single candidates"),
        ("time of these runs", f"{duration(runs_s)} a round at most", "as fast as the agent's rollouts"),
        ("retriever", memory, parts or "its encoder is not there, or is made by the training"),
        ("index", f"{vectors / 1e9:.3g} GB a million passages" if vectors else "unknown", encoded),
        ("rounds", f"{recipe.rounds}", f"labels by {recipe.labels.method}; each trains agent and retriever"),
    )
    note = "Upper bounds. The time of the scorer and of the index is left out."
    return Table(("a round", "what", "detail"), rows, (note,))


def work_of(recipe: TogetherRecipe) -> RoundWork:
    """Upper bounds of one round's labels."""
    labels, method, terms = recipe.labels, method_settings(recipe.labels).model_dump(), requirements_of(recipe.labels)
    opens_with_search = recipe.agent.load_protocol(run_files=False).file.opens_with_search
    runs = labels.questions * labels.samples
    searches = runs * (recipe.agent.limits.max_turns + opens_with_search)
    candidates = int(method.get("candidates") or method.get("depth") or recipe.agent.limits.passages_per_search)
    windows = -(-candidates // int(method.get("window") or candidates))
    is_scored = terms.scorer and labels.scorer is not None
    continued = candidates if method.get("gac") else 0
    return RoundWork(runs, searches, candidates, searches * windows if is_scored else 0, searches * continued)


def _scorer_bytes(recipe: TogetherRecipe) -> float | None:
    """Bytes of a local scorer's weights; `None` for a model of unknown shape."""
    name = recipe.labels.scorer
    if name in (None, ORACLE, GOLD) or is_url(name) or is_world(Path(name)) or name.endswith((".yaml", ".yml")):
        return 0.0
    try:
        return 2.0 * shape_of_folder(model_path(name))[0].parameters
    except DataError:
        return None


def _encoder_memory(recipe: TogetherRecipe) -> tuple[dict[str, float], float]:
    """Bytes of the retriever's training, and of the vectors of a million passages. Empty and 0 if the training makes
    the encoder or its shape is unknown; 0 if a passage does not have exactly one vector."""
    if recipe.start.encoder is None:
        return {}, 0.0
    try:
        shape = _shape_of_encoder(recipe.start.encoder)
    except DataError:
        return {}, 0.0
    size = 2.0 if recipe.index.settings.get("dtype") == "float16" else 4.0
    vectors = size * 1e6 * shape.hidden if recipe.index.retriever not in ("late-interaction", "sparse") else 0.0
    return _memory_by_shape(recipe.retriever, shape), vectors
