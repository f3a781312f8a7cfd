"""Estimates of a recipe's memory and time from the shape of its model. Does not import torch.

Time is an order of magnitude. Memory is that of the first worker's device, with one worker on each device;
`tests/pipelines/test_estimate.py` compares it with counted bytes. Each formula names what it leaves out.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import cast

from coseek.agents.protocol import load_protocol
from coseek.core.errors import DataError, SettingError
from coseek.core.files import read_json
from coseek.core.settings import apply_overrides, dump_settings, make_settings
from coseek.core.text import counted
from coseek.models.model_folder import Shape, model_path, shape_of_config, shipped_models, way_out
from coseek.pipelines.agent_check import how_to_make, paths_of
from coseek.pipelines.agent_recipe import AgentRecipe, MachineSettings
from coseek.pipelines.stages import stages_of
from coseek.training.learner.settings import GIB, LearnerSettings, micro_batch_tokens, pass_bytes
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backend import trains_here

PROMPT_TOKENS = 200
"""Assumed tokens of a prompt with its question."""
SHAPES: dict[str, Shape] = {
    "Qwen2.5-0.5B": Shape(896, 24, 14, 2, 4864, 151_936, True, 64),
    "Qwen2.5-1.5B": Shape(1536, 28, 12, 2, 8960, 151_936, True, 128),
    "Qwen2.5-3B": Shape(2048, 36, 16, 2, 11_008, 151_936, True, 128),
    "Qwen2.5-7B": Shape(3584, 28, 28, 4, 18_944, 152_064, False, 128),
    "Qwen2.5-14B": Shape(5120, 48, 40, 8, 13_824, 152_064, False, 128),
    "Qwen2.5-32B": Shape(5120, 64, 40, 8, 27_648, 152_064, False, 128),
    "Qwen2.5-72B": Shape(8192, 80, 64, 8, 29_568, 152_064, False, 128),
    "SmolLM2-135M": Shape(576, 30, 9, 3, 1536, 49_152, True, 64, attention_bias=False),
    # Encoders. Three matrices stand for the two of BERT's feed-forward layer, which is half as wide again.
    "e5-base": Shape(768, 12, 12, 12, 2048, 30_522, True, 64),
    "bge-base": Shape(768, 12, 12, 12, 2048, 30_522, True, 64),
    "e5-large": Shape(1024, 24, 16, 16, 2731, 30_522, True, 64),
    "Qwen3-Embedding-4B": Shape(2560, 36, 32, 8, 9728, 151_665, True, 128, attention_bias=False),
    "Qwen3-Embedding-8B": Shape(4096, 36, 32, 8, 12_288, 151_665, True, 128, attention_bias=False),
}
_DISTILLED = ("1.5B", "7B", "14B", "32B")  # of R1; the smallest has an output layer of its own
SHAPES |= {f"R1-Distill-Qwen-{size}": replace(SHAPES[f"Qwen2.5-{size}"], tied=False) for size in _DISTILLED}
"""Published shapes, by a part of a model's name, for models that are not downloaded yet."""


def shown_gib(size: float) -> str:
    """Bytes in GiB, as text of at least three digits: `0.251`, `59.9`, `1,083`."""
    return f"{size / GIB:,.0f}" if size >= 1000 * GIB else f"{size / GIB:.3g}"


def shape_of(recipe: AgentRecipe) -> tuple[Shape, str]:
    """The policy's shape and its source. Raises `DataError` for an unknown shape."""
    if recipe.policy.folder is None:
        laptop = recipe.policy.laptop
        cached = sum(kind == "full_attention" for kind in laptop.layers)
        sizes = (laptop.hidden, len(laptop.layers), laptop.heads, laptop.kv_heads, laptop.feed_forward)
        shape = Shape(*sizes, laptop.vocabulary, True, laptop.hidden // laptop.heads, False, cached, lfm2=True)
        return shape, "policy.laptop"
    return shape_of_folder(model_path(recipe.policy.folder))


def shape_of_folder(folder: Path) -> tuple[Shape, str]:
    """The shape of a model folder, which may be missing, and its source. Raises `DataError` for an unknown shape."""
    path = folder / "config.json"
    if path.is_file():
        return shape_of_config(read_json(path, foreign=True), path), str(path)
    name = next((name for name in SHAPES if name.lower() in folder.name.lower()), None)
    if name is None:
        advice = way_out(str(folder), shipped_models()) + how_to_make(folder)
        raise DataError(f"there is no {path}, and its shape is known only of {', '.join(SHAPES)}; {advice}")
    return SHAPES[name], f"the published shape of {name}"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device. Rollouts and updates alternate, and some parts are held in one of these phases only."""

    weights: float
    """Policy weights and adapters: float32; bfloat16 for weights that are frozen below adapters."""
    adam: float
    """Moments of the policy."""
    critic: float
    """Weights and moments of the value model; PPO only."""
    reference: float
    """The reference policy of the KL term."""
    graders: float
    """Weights of local generators, judges and simulators, without their caches."""
    gradients: float
    """In updates: gradients of policy or critic, which take turns."""
    gathered: float
    """In updates with shards: whole weights of two layers and outside the layers, and gradients except one layer's."""
    activations: float
    """In updates: activations of one micro-batch for the backward pass, and its cast weights."""
    fetched: float
    """In updates, between passes: moments that are offloaded to the host's memory otherwise."""
    sampler: float
    """In rollouts: the samplers' copies of the weights."""
    cache: float
    """In rollouts: the key-value cache of all concurrent rows at full length."""

    @property
    def held(self) -> float:
        """Bytes that are held in both phases."""
        return self.weights + self.adam + self.critic + self.reference + self.graders

    @property
    def needed(self) -> float:
        """Peak bytes: the larger of the two phases."""
        update = self.gradients + max(self.gathered + self.activations, self.fetched)
        return self.held + max(update, self.sampler + self.cache)


def memory_of(recipe: AgentRecipe, shape: Shape) -> Memory:
    """The memory of the larger of warm start and learning. Retrievers are left out."""
    parts = [_supervised_memory(recipe, shape, recipe.warm_start.sft.learner)] if recipe.warm_start is not None else []
    if recipe.learn == "rl":
        parts.append(_rl_memory(recipe, shape))
    elif recipe.learn == "rejection":
        parts.append(_supervised_memory(recipe, shape, recipe.rejection.sft.learner))
    return max(parts, key=lambda memory: memory.needed)


def _rl_memory(recipe: AgentRecipe, shape: Shape) -> Memory:
    rl, devices, limits = recipe.rl, recipe.machine.devices, recipe.limits
    policy, *critics = learners = _rl_learners(recipe, shape)
    written_tokens = min(limits.max_tokens, (limits.max_turns + 1) * limits.max_turn_tokens)
    written_share = limits.max_turn_tokens / (limits.max_turn_tokens + PROMPT_TOKENS)
    runs = -(-rl.questions_per_step * rl.group_size // devices)
    return Memory(
        weights=policy.weights, adam=policy.adam, critic=sum(critic.weights + critic.adam for critic in critics),
        reference=0.0 if policy.offloads("reference") else _reference_bytes(recipe, policy) / policy.shards,
        graders=graders_of(recipe), gradients=max(learner.gradients for learner in learners),
        gathered=max(learner.gathered(shape) for learner in learners),
        activations=_activation_bytes(shape, policy, limits.max_tokens, written_tokens, written_share),
        fetched=max(learner.fetched for learner in learners),
        sampler=0.0 if recipe.rollout.servers else _sampler_bytes(recipe, shape, policy),
        cache=0.0 if recipe.rollout.servers else _cache_bytes(recipe, shape, max(runs, _evaluated_at_once(recipe))),
    )  # fmt: skip


def _supervised_memory(recipe: AgentRecipe, shape: Shape, settings: LearnerSettings) -> Memory:
    """Supervised training, with a loss at every token, and the evaluations and samples of the first worker."""
    policy, row = _learner(recipe, shape, settings), recipe.limits.max_tokens
    questions = recipe.concurrency if recipe.learn == "rejection" else _evaluated_at_once(recipe)
    return Memory(
        weights=policy.weights, adam=policy.adam, critic=0.0, reference=0.0, graders=graders_of(recipe),
        gradients=policy.gradients, gathered=policy.gathered(shape),
        activations=_activation_bytes(shape, policy, row, row, 1.0), fetched=policy.fetched,
        sampler=_sampler_bytes(recipe, shape, policy), cache=_cache_bytes(recipe, shape, questions),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Learner:
    """Bytes of one learner on one device: weights 4N, gradients 4T and moments 8T (float32), by N parameters of which T
    are trained, shared by all devices with `fsdp2`. Frozen weights in bfloat16 are 2 bytes each, offloaded ones 0."""

    parameters: int
    trained: int
    settings: LearnerSettings
    devices: int
    in_bfloat16: bool
    """Whether frozen weights are held in bfloat16."""

    @property
    def shards(self) -> int:
        return self.devices if self.settings.strategy == "fsdp2" else 1

    def offloads(self, held_part: str) -> bool:
        return self.shards > 1 and held_part in self.settings.offload

    @property
    def whole(self) -> float:
        """Bytes of the weights on all devices together."""
        return 4.0 * self.parameters - 2.0 * (self.parameters - self.trained if self.in_bfloat16 else 0)

    @property
    def weights(self) -> float:
        return 0.0 if self.offloads("weights") else self.whole / self.shards

    @property
    def gradients(self) -> float:
        return 0.0 if self.offloads("weights") else 4.0 * self.trained / self.shards

    @property
    def moments(self) -> float:
        """Bytes of the moments, wherever they are."""
        return 8.0 * self.trained / self.shards

    @property
    def adam(self) -> float:
        return 0.0 if self.offloads("weights") or self.offloads("moments") else self.moments

    @property
    def fetched(self) -> float:
        return self.moments if self.offloads("moments") and not self.offloads("weights") else 0.0

    def gathered(self, shape: Shape) -> float:
        if self.shards == 1:
            return 0.0
        if self.settings.lora is not None:
            return 4.0 * (shape.parameters - (shape.layers - 2) * shape.layer_parameters)
        return 4.0 * (2 * (self.parameters - shape.layers * shape.layer_parameters) + 3 * shape.layer_parameters)


def _learner(recipe: AgentRecipe, shape: Shape, settings: LearnerSettings) -> _Learner:
    adapters, parameters, devices = adapter_parameters(shape, settings), shape.parameters, recipe.machine.devices
    if settings.lora is None:
        return _Learner(parameters, parameters, settings, devices, False)
    # Below adapters, where trainer and sampler use it, and not in shards (`trainer.lora.learner_placement`).
    is_sharded = settings.strategy == "fsdp2" and devices > 1
    in_bfloat16 = settings.precision != "float32" and _itemsize(recipe) == 2 and not is_sharded
    return _Learner(parameters + adapters, adapters, settings, devices, in_bfloat16)


def _rl_learners(recipe: AgentRecipe, shape: Shape) -> list[_Learner]:
    """The policy, and the value model of an algorithm that trains one."""
    policy, value = _learner(recipe, shape, recipe.rl.policy), recipe.rl.critic
    if not open_algorithm(recipe.rl).needs_critic:
        return [policy]
    whole, adapters = shape.trunk_parameters + shape.hidden + 1, adapter_parameters(shape, value)
    trained = whole if value.lora is None else adapters + shape.hidden + 1
    in_bfloat16 = policy.in_bfloat16 and value.lora is not None
    return [policy, _Learner(whole + adapters, trained, value, recipe.machine.devices, in_bfloat16)]


def _reference_bytes(recipe: AgentRecipe, policy: _Learner) -> float:
    """Bytes of the reference on all devices together; 0 with adapters, whose frozen weights are the reference."""
    return policy.whole if recipe.rl.kl_coef > 0.0 and recipe.rl.policy.lora is None else 0.0


def adapter_parameters(shape: Shape, learner: LearnerSettings) -> int:
    """Parameters of LoRA: r·(i + o) for each i × o layer; assumed on all linear layers. 0 without LoRA."""
    if learner.lora is None:
        return 0
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    widths = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys) + 3 * (shape.hidden + shape.feed_forward)
    return int(shape.layers * learner.lora.rank * widths)


def _activation_bytes(shape: Shape, policy: _Learner, row: int, written_tokens: int, written_share: float) -> float:
    """Activations of a micro-batch, or of a longer row. Logits: at `written_tokens` of a row, or at a
    `written_share` of all tokens."""
    learner = policy.settings
    batch_tokens = micro_batch_tokens(shape, learner)
    size = pass_bytes(shape, learner, max(batch_tokens, row), max(written_tokens, written_share * batch_tokens))
    if learner.precision != "float32" and not policy.in_bfloat16:
        # Matrix products keep the weights that they cast; checkpointing frees them after each layer.
        layers = 1 if learner.gradient_checkpointing else shape.layers
        size += 2.0 * (shape.vocabulary * shape.hidden + layers * shape.layer_parameters)
    return size


def _sampler_bytes(recipe: AgentRecipe, shape: Shape, policy: _Learner) -> float:
    """A whole copy of the weights if they are sharded or of another precision; the laptop's engine always has joined
    copies. A sampler shares the weights below adapters if they have its precision."""
    size, same_precision = _itemsize(recipe), _itemsize(recipe) == (2 if policy.in_bfloat16 else 4)
    if policy.settings.lora is not None and policy.shards == 1 and same_precision:
        return 0.0
    copy = size * shape.parameters if policy.shards > 1 or not (same_precision or shape.lfm2) else 0.0
    return copy + (size * (shape.parameters + shape.vocabulary * shape.hidden) if shape.lfm2 else 0.0)


def _cache_bytes(recipe: AgentRecipe, shape: Shape, runs: int) -> float:
    row = recipe.limits.max_tokens * shape.cache_bytes(_itemsize(recipe))
    rows = min(recipe.concurrency, runs)
    if recipe.cache_gib is not None:
        rows = min(rows, max(1, int(recipe.cache_gib * GIB / row)))
    return float(rows * row)


def _evaluated_at_once(recipe: AgentRecipe) -> int:
    """Dev questions that are answered at once, at most."""
    return recipe.table.dev_questions or recipe.concurrency


def _itemsize(recipe: AgentRecipe) -> int:
    return 2 if recipe.precision == "bfloat16" else 4


def local_graders(recipe: AgentRecipe) -> dict[str, Path]:
    """Setting → folder of the local models that training queries, without servers."""
    grader_settings = ("graders.generator.model", "graders.judge.model", "data.training_retriever.model")
    entries = [entry for entry in paths_of(recipe) if entry.setting in grader_settings]
    return {entry.setting: entry.path for entry in entries if entry.path.suffix not in (".yaml", ".yml")}


def graders_of(recipe: AgentRecipe) -> float:
    """Bytes of `local_graders`. A model in two settings is opened twice."""
    size = 2 if recipe.graders.precision == "bfloat16" else 4
    return float(sum(size * shape_of_folder(path)[0].parameters for path in local_graders(recipe).values()))


def host_of(recipe: AgentRecipe, shape: Shape) -> float:
    """Bytes of a machine's own memory if its devices hold shards, else 0: every process loads the whole policy before
    it is sharded, and offloaded parts are in this memory afterwards."""
    policy, *_ = learners = _rl_learners(recipe, shape)
    if recipe.learn != "rl" or policy.shards == 1:
        return 0.0
    weights, offloaded = _reference_bytes(recipe, policy) if policy.offloads("reference") else 0.0, 0.0
    for model in learners:
        weights += model.whole if model.offloads("weights") else 0.0
        offloaded += policy.shards * (4.0 * model.trained / model.shards - model.gradients + model.moments - model.adam)
    return weights + max(policy.shards * policy.whole, offloaded)


@dataclass(frozen=True, slots=True)
class Work:
    """Upper bounds of one step: tokens, and seconds at the assumed speed."""

    runs: int
    written: int
    """Tokens that the agent writes."""
    read: int
    """Tokens of prompts and documents."""
    rollout_s: float
    update_s: float
    steps: int

    @property
    def total_s(self) -> float:
        return self.steps * (self.rollout_s + self.update_s)


def work_of(recipe: AgentRecipe, shape: Shape) -> Work:
    """The work of a step in which every run takes all turns or fills its token budget, or of a supervised update.

    2N operations a token forwards and 4N backwards, plus 4·L·q a token and token of context for attention. Graders,
    searches, evaluations and the runs of rejection sampling are left out.
    """
    rl, limits, machine = recipe.rl, recipe.limits, recipe.machine
    if recipe.learn != "rl":
        warm_start = recipe.warm_start
        sft = recipe.rejection.sft if recipe.learn == "rejection" or warm_start is None else warm_start.sft
        passes = 4.0 if sft.learner.gradient_checkpointing else 3.0
        seconds = passes * 2.0 * shape.parameters * sft.tokens_per_step / _flops(machine, machine.update_mfu)
        later_rounds = 0 if sft.gate is None else sft.rounds - 1
        later_steps = sft.steps if sft.later_steps is None else sft.later_steps
        steps = sft.repeat_steps + sft.varied_steps + sft.steps + later_rounds * later_steps
        return Work(0, 0, sft.tokens_per_step, 0.0, seconds, steps)
    turns = limits.max_turns + 1
    written_tokens = turns * limits.max_turn_tokens
    document_tokens = (limits.max_document_tokens or 0) * limits.passages_per_search
    observations = limits.max_turns + load_protocol(recipe.protocol).file.opens_with_search
    read_tokens = PROMPT_TOKENS + observations * max(document_tokens, limits.max_observation_tokens)
    scale = min(1.0, limits.max_tokens / (written_tokens + read_tokens))
    written_tokens, read_tokens = round(scale * written_tokens), round(scale * read_tokens)
    trained_runs, factor = rl.questions_per_step * rl.group_size, rl.dynamic_sampling_max_factor
    runs = int(factor * rl.questions_per_step) * rl.group_size if rl.dynamic_sampling else trained_runs
    context = (written_tokens + read_tokens) / 2
    forward = 2.0 * shape.parameters + 4.0 * shape.cached_layers * shape.heads * shape.head_size * context
    passes = 3.0 * rl.epochs + (1.0 if rl.kl_coef > 0.0 else 0.0) + (1.0 if rl.old_logprobs == "recompute" else 0.0)
    passes += 3.0 * rl.epochs + 1.0 if open_algorithm(rl).needs_critic else 0.0
    passes += rl.epochs if rl.policy.gradient_checkpointing else 0.0
    written_s = written_tokens / _flops(machine, machine.rollout_mfu)
    rollout = runs * forward * (written_s + read_tokens / _flops(machine, machine.update_mfu))
    update = trained_runs * (written_tokens + read_tokens) * forward * passes / _flops(machine, machine.update_mfu)
    return Work(runs, runs * written_tokens, runs * read_tokens, rollout, update, rl.steps)


def _flops(machine: MachineSettings, mfu: float) -> float:
    return machine.devices * machine.tflops * 1e12 * mfu


# Fitting: changes of settings with which a recipe fits its machine.

FULL = 0.9
"""Share of a device's memory that the estimate may reach: the rest is for what the estimate leaves out."""
SERVER = "http://127.0.0.1:8000"
MOST_DEVICES = 64


def share_of(recipe: AgentRecipe, shape: Shape) -> float:
    """The share of a device's memory that the recipe needs."""
    return memory_of(recipe, shape).needed / GIB / recipe.machine.memory_gib


def with_processes(recipe: AgentRecipe, processes: int) -> AgentRecipe:
    """The recipe with one device for each process."""
    return recipe.model_copy(update={"machine": recipe.machine.model_copy(update={"devices": processes})})


def started_with(processes: int) -> str:
    """Return the beginning of a command that starts `processes` processes."""
    return f"torchrun --standalone --nproc-per-node {processes} -m coseek train …"


def check_fits(recipe: AgentRecipe, processes: int, available_gib: float) -> None:
    """Refuse a training in this process whose estimate exceeds the available memory. Not checked if the shape of the
    model is unknown, or if another program trains it."""
    if not recipe.machine.check:
        return
    for stage in [stage.recipe for stage in stages_of(recipe, Path())] or [recipe]:
        if stage.learn == "rl" and not trains_here(stage.rl):
            continue
        with suppress(DataError):  # an unknown shape
            shape, _ = shape_of(stage)
            on_processes, devices = with_processes(stage, processes), stage.machine.devices
            needed = memory_of(on_processes, shape).needed
            if needed > available_gib * GIB:
                advice = ways_out(on_processes, shape) or "take a machine with more memory"
                if processes < devices and share_of(stage, shape) <= FULL < share_of(on_processes, shape):
                    advice = f"it fits with {devices} processes: {started_with(devices)}"
                raise SettingError(
                    f"with {counted(processes, 'process')} the training needs about {shown_gib(needed)} GiB on each "
                    f"device, and there are {available_gib:.3g}: {advice} (machine.check=false trains all the same)"
                )


def ways_out(recipe: AgentRecipe, shape: Shape) -> str:
    """A sentence with changes that make the recipe fit; empty if it fits already.

    Changes that suffice alone are alternatives. If none does, changes are combined.
    """
    if share_of(recipe, shape) <= FULL:
        return ""
    alternatives: dict[str, list[str]] = {}
    for kind, change in _changes(recipe, shape):
        if kind not in alternatives and share_of(changed(recipe, change), shape) <= FULL:
            alternatives[kind] = change
    if alternatives:
        return "it fits with " + ", or with ".join(" ".join(change) for change in alternatives.values())
    for excluded_kind in ("lora", "devices", ""):
        if combination := _combined_changes(recipe, shape, excluded_kind):
            return f"it fits with {' '.join(combination)}"
    return "no change that is known makes it fit; take a smaller model or devices with more memory"


def _combined_changes(recipe: AgentRecipe, shape: Shape, excluded_kind: str) -> list[str]:
    """Overrides that together make the recipe fit: changes are added as long as each helps, then those that are no
    longer needed are removed. Empty if all of them are not enough."""
    overrides: dict[str, str] = {}
    original_recipe = recipe
    # Twice, because settings depend on each other: the room for the cache follows from all others.
    for _ in range(2):
        for kind, change in [*_changes(recipe, shape)]:
            candidate = changed(recipe, change)
            if kind != excluded_kind and share_of(candidate, shape) < share_of(recipe, shape) - 1e-9:
                overrides |= {override.partition("=")[0]: override for override in change}
                recipe = candidate
            if share_of(recipe, shape) <= FULL:
                for setting in [*overrides]:
                    other_overrides = [override for name, override in overrides.items() if name != setting]
                    with suppress(SettingError):  # offloading needs shards
                        if share_of(changed(original_recipe, other_overrides), shape) <= FULL:
                            del overrides[setting]
                return [*overrides.values()]
    return []


def changed(recipe: AgentRecipe, overrides: Sequence[str]) -> AgentRecipe:
    return make_settings(AgentRecipe, apply_overrides(dump_settings(recipe), overrides, AgentRecipe))


def _changes(recipe: AgentRecipe, shape: Shape) -> Iterator[tuple[str, list[str]]]:
    """Kind and overrides of the changes to try; the smallest changes come first."""
    paths = _learners(recipe)
    learners = [cast(LearnerSettings, attrgetter(path)(recipe)) for path in paths]
    yield "servers", [f"{path}={SERVER}" for path in local_graders(recipe)]
    memory = memory_of(recipe, shape)
    room = FULL * recipe.machine.memory_gib - (memory.held + memory.sampler) / GIB
    if room >= 0.1:
        yield "cache", [f"cache_gib={int(10 * room) / 10:g}"]
    for divisor in (2, 4, 8):
        tokens = [max(1, learner.micro_batch_tokens // divisor) for learner in learners]
        yield "rows", [f"{path}.micro_batch_tokens={count}" for path, count in zip(paths, tokens, strict=True)]
    shared = [path for path, learner in zip(paths, learners, strict=True) if learner.share_prefixes]
    unshared = [f"{path}.share_prefixes=false" for path in shared]  # which keep the activations of their attention
    yield "checkpointing", [*(f"{path}.gradient_checkpointing=true" for path in paths), *unshared]
    if (devices := recipe.machine.devices) > 1:
        shards = [f"{path}.strategy=fsdp2" for path in paths]
        yield "shards", shards
        for parts in ("moments,reference", "weights,reference"):
            yield "offload", [*shards, *(f"{path}.offload=[{parts}]" for path in paths)]
    while devices < MOST_DEVICES:
        devices *= 2
        yield "devices", [f"machine.devices={devices}", *(f"{path}.strategy=fsdp2" for path in paths)]
    yield "lora", [f"{path}.lora={{rank: 16}}" for path in paths]


def _learners(recipe: AgentRecipe) -> list[str]:
    """Names of the settings of all learners."""
    paths = ["warm_start.sft.learner"] if recipe.warm_start is not None else []
    if recipe.learn == "rl":
        paths += ["rl.policy", *(["rl.critic"] if open_algorithm(recipe.rl).needs_critic else [])]
    return paths + (["rejection.sft.learner"] if recipe.learn == "rejection" else [])
