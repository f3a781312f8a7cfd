"""Dry run of an agent recipe: missing paths, estimated memory and time (`estimate.py`), and one small step.

The small step is one real training step of every stage, in a tiny laptop world, with a small untrained model of the
same architecture. Algorithm, reward, protocol and stages are the recipe's; sizes and budgets are reduced.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from coseek.agents.protocol import Protocol
from coseek.core.errors import DataError, ErrorList, MissingExtra
from coseek.core.files import Json, JsonObject, read_jsonl, temp_folder
from coseek.core.plugins import is_plugin_path
from coseek.core.progress import NoProgress
from coseek.core.settings import dump_settings, make_settings, merge_settings
from coseek.data.dataset import EVERY
from coseek.data.maker import WorldGroup, world_maker
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import ORACLE
from coseek.graders.scoring import TrajectoryScorer
from coseek.hardware.device import processes_here
from coseek.hardware.placement import Placement
from coseek.measure.table import Table
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model_folder import Shape, library_reads, model_path
from coseek.models.pretrained import check_weights, save_model
from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import RecipePath, check_settings, paths_of, problem_of
from coseek.pipelines.agent_recipe import STAGED, AgentRecipe
from coseek.pipelines.data_folder import make_data
from coseek.pipelines.demonstrations import policy_warnings, texts_in
from coseek.pipelines.estimate import (
    FULL,
    host_of,
    memory_of,
    shape_of,
    shown_gib,
    started_with,
    ways_out,
    with_processes,
    work_of,
)
from coseek.pipelines.run_record import resolve_recipe
from coseek.pipelines.stages import stages_of
from coseek.retrieval.vectors.encoder import encoder_folder, load_encoder
from coseek.rewards.reward import Reward, RewardFault, make_reward
from coseek.training.learner.workers import ALONE
from coseek.training.rl.backend import trains_here

WORLD = WorldGroup(size="tiny", train=12, dev=4, test=4)
"""The world of the small step."""
LAYERS, HEADS, HEAD_SIZE = 2, 2, 8
"""The small model's shape; grouped heads stay grouped."""
VOCABULARY = 1200
BUDGETS = {
    "max_turns": 2, "passages_per_search": 2, "opening_passages": 2, "max_turn_tokens": 16,
    "max_observation_tokens": 96, "max_tokens": 2048,
}  # fmt: skip
"""Upper bounds of the recipe's own limits."""
LANGUAGE_MODELS = ("policy.folder", "graders.generator.model", "graders.judge.model")
"""Settings that name language models."""
HOST = "every process loads the policy whole before it is sharded, and offloaded parts lie there"
REPORTED = ("trajectories", "faults", "searches", "tokens", "loss", "logprob_gap", "grad_norm", "updates")
"""Metrics of the small step that are reported."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The findings of a dry run: of an agent's training, a retriever's, or a co-training."""

    tables: tuple[Table, ...]
    values: JsonObject
    """The findings for programs, in bytes and seconds."""
    missing: str = ""
    """What is missing and how to get it; empty if the training can begin."""

    def refuse(self) -> None:
        """Raise `DataError` when something is missing."""
        if self.missing:
            raise DataError(self.missing)


COLUMNS = ("part", "what", "detail")
"""Columns of the table of findings."""


def duration(seconds: float) -> str:
    """A duration in h, min or s."""
    units = (("h", 3600.0), ("min", 60.0), ("s", 1.0))
    name, size = next(((name, size) for name, size in units if seconds >= 2.0 * size), units[-1])
    return f"{seconds / size:.3g} {name}"


def dry_run(recipe: AgentRecipe, folder: Path | None = None) -> DryRun:
    """Make a dry run. Missing paths are reported, not raised: see `DryRun.refuse`. The small step is made in `folder`,
    by default in a temporary folder."""
    recipe = on_processes_here(resolve_recipe(recipe))
    check_settings(recipe)  # before the small step replaces the data
    shape, source = shape_of(recipe)
    paths = [(entry, problem_of(entry) or _lacking_weights(entry)) for entry in paths_of(recipe)]
    with temp_folder(Path(tempfile.gettempdir()) / "coseek-dry-run") as scratch:
        if recipe.data.folder is not None and not any(problem for _, problem in paths):
            mistakes = ErrorList()  # the training prepares its data in the same way
            mistakes.collect(make_data, recipe.data, scratch / "data", lambda _: None)
            entry = RecipePath("data.folder", Path(recipe.data.folder), "corpus")
            paths.append((entry, " | ".join(mistakes.sentences)))
        steps = rehearse(recipe, shape, folder or scratch)
    warnings, machine = policy_warnings(recipe), recipe.machine
    rows = [("path", entry.setting, problem or f"{entry.path}: there") for entry, problem in paths]
    size = shape.parameters
    count = f"{size / 1e9:.3g} billion" if size >= 1e8 else f"{size / 1e6:.3g} million"
    rows.append(("model", f"{count} weights", source))
    rows += [("warning", "policy.folder", warning) for warning in warnings]
    if machine.devices > 1:
        rows.append(("machine", f"{machine.devices} devices", f"start it with {started_with(machine.devices)}"))
    stage_values: list[Json] = []
    stages = [(stage.name, stage.recipe) for stage in stages_of(recipe, Path())] or [("", recipe)]
    for (name, stage), step in zip(stages, steps, strict=True):
        result = _stage(name, stage, shape, step)
        rows += result[0]
        stage_values.append(result[1])
    note = (
        f"Time assumes {machine.tflops:g} TFLOP/s a device, of which updates reach {machine.update_mfu:.0%} and "
        f"writing {machine.rollout_mfu:.0%} (setting machine). Left out are frozen parts, searches, evaluations and a "
        "warm start."
    )
    missing: dict[str, Json] = {}
    for entry, problem in paths:
        if problem:
            missing[entry.setting] = "; ".join(filter(None, (str(missing.get(entry.setting, "")), problem)))
    problems = "; ".join(f"{problem} ({setting})" for setting, problem in missing.items())
    refusal = f"the recipe cannot be trained yet: {problems}. Put it there, or name another: SETTING=PATH"
    values: JsonObject = {"shape": asdict(shape), "source": source, "parameters": size, "missing": missing}
    values |= {"stages": stage_values, "warnings": [*warnings]}
    return DryRun((Table(COLUMNS, tuple(rows), (note,)),), values, refusal if missing else "")


def on_processes_here(recipe: AgentRecipe) -> AgentRecipe:
    """The recipe on one device for each process that was started, if there are several."""
    return with_processes(recipe, processes_here()) if processes_here() > 1 else recipe


def _stage(
    name: str, recipe: AgentRecipe, shape: Shape, step: Mapping[str, float]
) -> tuple[list[tuple[str, str, str]], JsonObject]:
    """Rows of the table and values of one stage. `step` holds the metrics of its small step."""
    memory, work, way_out = memory_of(recipe, shape), work_of(recipe, shape), ways_out(recipe, shape)
    host, label = host_of(recipe, shape), f" {name}" if name else ""
    remote = recipe.learn == "rl" and not trains_here(recipe.rl)
    reward = "" if recipe.learn == "demonstrations" else str(make_reward(recipe.reward))  # with a preset's terms
    parts = ", ".join(f"{part} {shown_gib(value)}" for part, value in asdict(memory).items() if value)
    figures = ", ".join(f"{metric} {value:.3g}" for metric, value in step.items())
    time = f"{work.steps} updates of {work.read} tokens, {work.update_s:.3g} s each"
    if work.runs:
        time = (
            f"{work.steps} steps of {work.runs} runs, {work.written} tokens written and {work.read} read at most; "
            f"rollouts {work.rollout_s:.3g} s, update {work.update_s:.3g} s"
        )
    rows = [
        (f"memory{label}", f"{shown_gib(memory.needed)} GiB a device, of {recipe.machine.memory_gib:g}", parts),
        *([("", f"more than {FULL:.0%} of it", way_out)] if way_out else []),
        *([("", f"{shown_gib(host)} GiB of the host", HOST)] if host else []),
        (f"time{label}", f"{duration(work.total_s)} at most", time),
        *([(f"reward{label}", reward, "")] if reward else []),
        (f"step in small{label}", "went through" + ", with rl.backend=local" * remote, figures),
    ]
    values: JsonObject = {"name": name, "memory": asdict(memory), "work": asdict(work), "step": {**step}}
    values |= {"way_out": way_out, "host": host, "reward": reward, "needed": memory.needed, "total_s": work.total_s}
    return rows, values


def _lacking_weights(entry: RecipePath) -> str:
    """Which weights of a language model or an encoder are missing; empty if none."""
    try:
        if entry.kind == "encoder":
            load_encoder(encoder_folder(str(entry.path)), Placement(device="cpu"), "float32")
        elif entry.setting in LANGUAGE_MODELS and (entry.path / "config.json").is_file():
            check_weights(entry.path)
    except (DataError, MissingExtra) as error:
        return str(error)
    return ""


# --- one step in small


class UnequalScorer(TrajectoryScorer):
    """Adds 1 to every second reward: an untrained model earns nothing, and the small step needs a gradient."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Reward | RewardFault]:
        rewards = super().__call__(trajectories)
        return [
            replace(reward, value=reward.value + number % 2) if isinstance(reward, Reward) else reward
            for number, reward in enumerate(rewards)
        ]


class Rehearsal(AgentTraining):
    """A training whose rewards are unequal."""

    def scoring(self, recipe: AgentRecipe) -> TrajectoryScorer:
        scorer = super().scoring(recipe)
        return UnequalScorer(scorer.reward, scorer.generator, scorer.judge, scorer.baselines)


def rehearse(recipe: AgentRecipe, shape: Shape, folder: Path) -> list[dict[str, float]]:
    """Train one small step of every stage. Returns the last metrics of each."""
    protocol = recipe.load_protocol()
    small_model(recipe, shape, protocol, folder / "model")
    small = small_recipe(recipe, str(folder / "model"))
    training = Rehearsal(small, folder / "run", NoProgress(), workers=ALONE)
    training.begin(resume=False)
    training.train()
    metrics: list[dict[str, float]] = []
    for stage_folder in [stage.folder for stage in training.stages] or [folder / "run" / "warm-start"]:
        *_, (_, row) = read_jsonl(min(stage_folder.glob("**/metrics.jsonl")))
        values = {name: row[name] for name in REPORTED if isinstance(row.get(name), int | float)}
        metrics.append({name: float(cast(float, value)) for name, value in values.items()})
    return metrics


def small_model(recipe: AgentRecipe, shape: Shape, protocol: Protocol, folder: Path) -> None:
    """Make an untrained model of the policy's architecture, with a tokenizer trained on the tiny world."""
    world = world_maker().make(WORLD)
    texts = [protocol.template.file.prompt, *texts_in(world.corpus, world.questions["train"])]
    if recipe.policy.folder is None:
        laptop = LaptopSettings(
            hidden=HEADS * HEAD_SIZE, layers=recipe.policy.laptop.layers[:LAYERS], heads=HEADS, kv_heads=1,
            feed_forward=4 * HEAD_SIZE, vocabulary=VOCABULARY,
        )  # fmt: skip
        make_policy(laptop, texts, protocol.grammar.special_tokens, folder, recipe.seed)
        return
    tokenizer = HfTokenizer(train_tokenizer(texts, (), VOCABULARY))
    source = model_path(recipe.policy.folder)
    if (source / "config.json").is_file():
        with library_reads(source, "configuration"):
            config = AutoConfig.from_pretrained(source, local_files_only=True)
    else:
        config_values = shape.config()
        config = AutoConfig.for_model(str(config_values.pop("model_type")), **config_values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = AutoModelForCausalLM.from_config(_small_config(config, shape, tokenizer))
    save_model(model, tokenizer, folder)


def _small_config(config: PretrainedConfig, shape: Shape, tokenizer: HfTokenizer) -> PretrainedConfig:
    """A configuration with small sizes; everything else is kept."""
    values = config.to_dict()
    layer_types = values.get("layer_types")
    values |= {
        "hidden_size": HEADS * HEAD_SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1 if shape.kv_heads < shape.heads else HEADS,
        "intermediate_size": 4 * HEAD_SIZE,
        "num_hidden_layers": min(shape.layers, LAYERS),
        "vocab_size": tokenizer.size,
        "pad_token_id": tokenizer.fast.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        **({"head_dim": HEAD_SIZE} if values.get("head_dim") else {}),
        **({"layer_types": layer_types[:LAYERS]} if layer_types else {}),
    }
    kind = str(values.pop("model_type"))
    return AutoConfig.for_model(kind, **values)


def small_recipe(recipe: AgentRecipe, model: str) -> AgentRecipe:
    """The recipe with one small step a stage, in a tiny world, with the small model in place of every model. Settings
    that have no part in the step are left out: data, servers, trackers, and all of the table but its dev questions."""
    engine = dict(recipe.data.training_retriever or {})
    kind = str(engine.get("retriever"))
    if kind in ("noisy", "gold"):
        engine = {name: value for name, value in engine.items() if name not in ("over", "data")}
    elif kind == "simulated":
        engine = {**engine, "model": model, "questions": None}
    elif not is_plugin_path(kind):  # its models and servers are not asked
        engine = {}
    is_local = all(trains_here(stage.recipe.rl) for stage in stages_of(recipe, Path()))
    rows: JsonObject = {"micro_batch_tokens": 4096}
    reader: JsonObject = {"model": model, "prompt": "generator", "max_answer_tokens": 8, "counted_by": None}
    budgets = [(name, maximum, cast("int | None", getattr(recipe.limits, name))) for name, maximum in BUDGETS.items()]
    sft: JsonObject = {
        "steps": 1, "tokens_per_step": 512, "repeat_steps": 0, "varied_steps": 0, "rounds": 1, "gate": None,
    }  # fmt: skip
    small: JsonObject = {
        "data": {"world": dump_settings(WORLD), "training_retriever": cast(Json, engine) or None},
        "limits": {name: value if value is None else min(maximum, value) for name, maximum, value in budgets},
        "policy": {"folder": model},
        "rl": {
            "steps": 1, "questions_per_step": 2, "group_size": min(2, recipe.rl.group_size), "evaluate_every": 0,
            "tree_roots": recipe.rl.tree_roots and 1, "policy": rows, "critic": rows,
            **({} if is_local else {"backend": "local", "backend_settings": {}}),
        },
        "rejection": {"samples": 1, "at_least": -1e9, "sft": sft},
        "select": {**dump_settings(EVERY), "most": 4},
        "graders": {
            **({"generator": reader} if recipe.graders.generator else {}),
            **({"judge": {"model": ORACLE}} if recipe.graders.judge else {}),
            "baseline": {"folder": None},
        },
        "concurrency": 8,
        "table": {"dev_questions": 2, "rag_passages": recipe.table.rag_passages},
    }  # fmt: skip
    if recipe.warm_start is not None:
        few = dump_settings(WORLD.model_copy(update={"train": 8, "dev": 0, "test": 0}))
        stored = recipe.warm_start.demonstrator == "runs"
        scripted: JsonObject = {"demonstrator": "rules", "runs": []} if stored else {}
        small["warm_start"] = {  # a tiny world's questions can neither be renamed nor are they enough to make others
            **scripted, "worlds": min(1, recipe.warm_start.worlds), "world": few, "sft": sft, "renamed": 0, "made": None
        }  # fmt: skip
    of_stage: JsonObject = {group: small[group] for group in STAGED if group in small}
    small["stages"] = dict.fromkeys(recipe.stages, of_stage)
    left_out = ("data", "chat_template", "rollout", "track", "table")  # the small tokenizer has no chat template
    kept = {name: value for name, value in dump_settings(recipe).items() if name not in left_out}
    return make_settings(AgentRecipe, merge_settings(AgentRecipe, kept, small))
