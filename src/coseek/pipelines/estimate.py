"""Estimates of a recipe's memory and time from the shape of its model. Does not import torch.

Orders of magnitude, not measurements; each formula names what it leaves out. Memory is that of one device, with one
worker on each.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_json
from coseek.core.hub import way_out
from coseek.pipelines.agent_recipe import AgentRecipe, MachineSettings
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.trainer.settings import LearnerSettings

GIB = 2.0**30
PROMPT_TOKENS = 200
"""Assumed tokens of a prompt with its question."""
_QWEN_SIZE = re.compile(r"qwen2\.5-(\d+(?:\.\d)?b)")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder-only transformer with gated feed-forward layers and grouped-query attention."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    tied: bool
    head_size: int
    attention_bias: bool = True
    """Biases of q, k and v (Qwen2 has them)."""
    attention_layers: int | None = None
    """Layers with a key-value cache; all layers when not given."""

    @property
    def cached_layers(self) -> int:
        return self.layers if self.attention_layers is None else self.attention_layers

    @property
    def parameters(self) -> int:
        """Number of weights: exact for Llama and Qwen2; other layers are counted as attention layers."""
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys if self.attention_bias else 0)
        layer = attention + 3 * self.hidden * self.feed_forward + 2 * self.hidden
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * layer + self.hidden

    def config(self) -> JsonObject:
        """The shape as a Qwen2 `config.json`."""
        return {
            "model_type": "qwen2", "hidden_size": self.hidden, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "intermediate_size": self.feed_forward, "vocab_size": self.vocabulary, "tie_word_embeddings": self.tied,
        }  # fmt: skip


QWEN25: Mapping[str, Shape] = {
    "0.5b": Shape(896, 24, 14, 2, 4864, 151_936, True, 64),
    "1.5b": Shape(1536, 28, 12, 2, 8960, 151_936, True, 128),
    "3b": Shape(2048, 36, 16, 2, 11_008, 151_936, True, 128),
    "7b": Shape(3584, 28, 28, 4, 18_944, 152_064, False, 128),
    "14b": Shape(5120, 48, 40, 8, 13_824, 152_064, False, 128),
}
"""Published shapes of Qwen2.5, for models that are not downloaded yet."""


def shape_of(recipe: AgentRecipe) -> tuple[Shape, str]:
    """The policy's shape and its source. Raises `DataError` for an unknown shape."""
    if recipe.policy.folder is None:
        laptop = recipe.policy.laptop
        cached = sum(kind == "full_attention" for kind in laptop.layers)
        sizes = (laptop.hidden, len(laptop.layers), laptop.heads, laptop.kv_heads, laptop.feed_forward)
        return Shape(*sizes, laptop.vocabulary, True, laptop.hidden // laptop.heads, False, cached), "policy.laptop"
    path = Path(recipe.policy.folder).expanduser() / "config.json"
    if path.is_file():
        return shape_of_config(read_json(path), path), str(path)
    size = _QWEN_SIZE.search(path.parent.name.lower())
    if size is None or size[1] not in QWEN25:
        known = ", ".join(f"Qwen2.5-{name.upper()}" for name in QWEN25)
        raise DataError(f"there is no {path}, and its shape is known only of {known}; {way_out(str(path.parent))}")
    return QWEN25[size[1]], f"the published shape of Qwen2.5-{size[1].upper()}"


def shape_of_config(config: object, path: Path) -> Shape:
    """The shape that a `config.json` describes. Raises `DataError` for another kind of model."""
    row = config if isinstance(config, dict) else {}
    try:
        hidden, heads = int(row["hidden_size"]), int(row["num_attention_heads"])
        kinds = row.get("layer_types")
        return Shape(
            hidden=hidden,
            layers=int(row["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(row.get("num_key_value_heads") or heads),
            feed_forward=int(row["intermediate_size"]),
            vocabulary=int(row["vocab_size"]),
            tied=bool(row.get("tie_word_embeddings", False)),
            head_size=int(row.get("head_dim") or hidden // heads),
            attention_bias=row.get("model_type") == "qwen2",
            attention_layers=sum("attention" in kind for kind in kinds) if isinstance(kinds, list) else None,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise DataError(
            f"{path} does not describe a decoder whose size can be worked out (hidden_size, num_hidden_layers, "
            "num_attention_heads, intermediate_size, vocab_size); leave --dry-run out"
        ) from None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one device."""

    weights: float
    """Policy weights in float32."""
    gradients: float
    adam: float
    critic: float
    """The value model with gradients and moments; PPO only."""
    reference: float
    """The reference policy of the KL term."""
    sampler: float
    """The sampler's copy of the weights, in another precision."""
    cache: float
    """The key-value cache of all concurrent rows at full length."""
    activations: float
    """Activations that one micro-batch keeps for the backward pass."""

    @property
    def parts(self) -> dict[str, float]:
        return {name: float(getattr(self, name)) for name in self.__dataclass_fields__}

    @property
    def needed(self) -> float:
        """Peak bytes: rollouts and updates alternate, the states stay."""
        states = self.weights + self.gradients + self.adam + self.critic + self.reference
        return states + max(self.sampler + self.cache, self.activations)


def memory_of(recipe: AgentRecipe, shape: Shape) -> Memory:
    """Weights 4N, gradients 4T and two moments 8T bytes (float32) for N parameters, T of them trained, and the rest.

    `fsdp2` shards them over the devices.
    """
    rl, devices = recipe.rl, recipe.machine.devices
    shared = devices if rl.policy.workers == "fsdp2" else 1
    whole = shape.parameters
    parameters, trained = whole / shared, trained_of(shape, rl.policy) / shared
    two_bytes = recipe.precision == "bfloat16"
    rows = min(recipe.concurrency, rl.questions_per_step * rl.group_size)
    row_cache = 2 * shape.cached_layers * shape.kv_heads * shape.head_size * (2 if two_bytes else 4)
    learns = recipe.learn == "rl"
    return Memory(
        weights=4.0 * parameters,
        gradients=4.0 * trained,
        adam=8.0 * trained,
        critic=16.0 * parameters if learns and open_algorithm(rl).needs_critic else 0.0,
        reference=4.0 * parameters if learns and rl.kl > 0.0 and rl.policy.lora is None else 0.0,
        sampler=2.0 * whole if two_bytes else 0.0,
        cache=rows * recipe.limits.max_tokens * row_cache / devices,
        activations=activations_of(shape, rl.policy, recipe.limits.max_tokens),
    )


def trained_of(shape: Shape, learner: LearnerSettings) -> int:
    """Trained parameters. LoRA of rank r adds r·(i + o) to each i × o layer; assumed on all linear layers."""
    if learner.lora is None:
        return shape.parameters
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    sides = 2 * (shape.hidden + queries) + 2 * (shape.hidden + keys) + 3 * (shape.hidden + shape.feed_forward)
    return shape.layers * learner.lora.rank * sides


def activations_of(shape: Shape, learner: LearnerSettings, row_tokens: int) -> float:
    """Bytes of a micro-batch's activations: in each layer the inputs of its two norms and of every matrix product.

    About 8·h + 2·q + 3·k + 4·f numbers a token and layer (h hidden, q and k query and key widths, f feed-forward), and
    3·v float32 numbers for the logits. Fused attention keeps no scores. `checkpointing` keeps h a layer and one layer
    in full.
    """
    tokens = max(learner.micro_batch_tokens, row_tokens)
    size = 2 if learner.precision == "bfloat16" else 4
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer = 8 * shape.hidden + 2 * queries + 3 * keys + 4 * shape.feed_forward
    kept = shape.layers * shape.hidden + layer if learner.checkpointing else shape.layers * layer
    return float(tokens * (size * kept + 4 * 3 * shape.vocabulary))


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
    """Bounds of one step, in which every run takes all turns or fills its token budget.

    2N operations a token forwards and 4N backwards, plus 4·L·q a token and token of context for attention. Graders,
    searches, evaluations and the runs of rejection sampling are left out.
    """
    rl, limits, machine = recipe.rl, recipe.limits, recipe.machine
    if recipe.learn != "rl":
        warm = recipe.warm_start
        sft = recipe.rejection.sft if recipe.learn == "rejection" or warm is None else warm.sft
        seconds = 6.0 * shape.parameters * sft.tokens_per_step / _rate(machine, machine.update_mfu)
        return Work(0, 0, sft.tokens_per_step, 0.0, seconds, sft.steps)
    turns = limits.max_turns + 1
    written = turns * limits.max_turn_tokens
    capped = (limits.max_document_tokens or 0) * limits.passages_per_search
    read = PROMPT_TOKENS + limits.max_turns * max(capped, limits.max_observation_tokens)
    shrink = min(1.0, limits.max_tokens / (written + read))
    written, read = round(shrink * written), round(shrink * read)
    runs = rl.questions_per_step * rl.group_size
    context = (written + read) / 2
    forward = 2.0 * shape.parameters + 4.0 * shape.cached_layers * shape.heads * shape.head_size * context
    passes = 3.0 * rl.epochs + (1.0 if rl.kl > 0.0 else 0.0) + (1.0 if rl.old_logprobs == "recompute" else 0.0)
    passes += 3.0 * rl.epochs + 1.0 if open_algorithm(rl).needs_critic else 0.0
    passes += rl.epochs if rl.policy.checkpointing else 0.0
    written_s = written / _rate(machine, machine.rollout_mfu)
    rollout = runs * forward * (written_s + read / _rate(machine, machine.update_mfu))
    update = runs * (written + read) * forward * passes / _rate(machine, machine.update_mfu)
    return Work(runs, runs * written, runs * read, rollout, update, rl.steps)


def _rate(machine: MachineSettings, share: float) -> float:
    return machine.devices * machine.tflops * 1e12 * share
