"""What a dry run says of memory is what training holds, byte by byte counted."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.processes import run_workers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen2Config, Qwen2ForCausalLM

from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.models.engines import fused
from coseek.models.model import EpisodeState, Request, Turn
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.estimate import FULL, Memory, memory_of, shape_of, share_of, ways_out
from coseek.rewards.reward import Reward
from coseek.training.learner.learner import Learner
from coseek.training.learner.workers import Workers, workers_here
from coseek.training.rl.backend import open_backend
from coseek.training.rl.loop import train_rl


@pytest.mark.slow
def test_the_estimate_counts_what_every_worker_holds(tmp_path: Path) -> None:
    """PPO with a KL, and GRPO of adapters: after rollouts, before optimizer steps, and at the peak of a pass."""
    rows = counted_rows(2, tmp_path)
    assert [name for name, *_ in rows] == ["ppo", "lora"]
    for name, counted, estimate in rows:
        for phase, value in counted.items():
            print(f"{name}, {phase}: {value:.0f} counted, {estimate[phase]:.0f} estimated")
            assert estimate[phase] == pytest.approx(value, rel=BAR), (name, phase)


LOCAL = ["graders.generator.model=models/Qwen2.5-14B-Instruct", "graders.judge.model=models/Qwen2.5-14B-Instruct"]


@pytest.mark.parametrize(
    ("name", "overrides", "named"),
    [
        ("search-r1-ppo", ["cache_gib=null"], "cache_gib="),
        ("search-r1-ppo", ["cache_gib=null"], "lora={rank: 16}"),
        ("search-r1-ppo", ["rl.policy.strategy=ddp"], "rl.policy.strategy=fsdp2"),
        ("search-r1-ppo", ["machine.devices=1"], "machine.devices=8"),
        ("search-r1-grpo", ["rl.policy.micro_batch_tokens=32768"], "rl.policy.micro_batch_tokens="),
        ("s3", LOCAL, "graders.generator.model=http://"),
        (
            "search-r1-ppo",
            ["rl.policy.gradient_checkpointing=false", "rl.policy.share_prefixes=true"],
            "share_prefixes=false",
        ),
        ("sft", ["warm_start.sft.learner.strategy=ddp", "machine.memory_gib=24"], "sft.learner.strategy=fsdp2"),
    ],
)
def test_a_recipe_that_does_not_fit_names_changes_and_each_of_them_helps(
    name: str, overrides: list[str], named: str
) -> None:
    recipe = load_recipe(name, overrides)
    shape, _ = shape_of(recipe)
    advice = ways_out(recipe, shape)
    assert share_of(recipe, shape) > FULL and named in advice
    for way in advice.removeprefix("it fits with ").split(", or with "):
        changes = way.replace("rank: ", "rank:_").split()
        fitting = load_recipe(name, [*overrides, *(change.replace(":_", ": ") for change in changes)])
        assert share_of(fitting, shape) <= FULL, way


def test_what_no_change_helps_is_said_as_plainly() -> None:
    recipe = load_recipe("search-r1-ppo", ["machine.memory_gib=4"])
    assert "smaller model" in ways_out(recipe, shape_of(recipe)[0])


def test_models_that_are_asked_count_where_they_are_loaded_and_nowhere_else() -> None:
    recipe, local = load_recipe("s3"), load_recipe("s3", [*LOCAL, "graders.precision=bfloat16"])
    shape, _ = shape_of(recipe)
    assert memory_of(recipe, shape).graders == 0.0
    assert memory_of(local, shape).graders == 2 * 2 * 14_770_033_664


ALGORITHMS = ("ppo", "lora")
PROMPT, TURNS, TURN_TOKENS, ROWS = 8, 2, 124, 2
"""Prompt tokens of a row, turns, tokens of a turn, and rows per worker."""
BAR = 0.10


def recipe_for(algorithm: str, folder: Path, devices: int) -> AgentRecipe:
    """A recipe of one step whose rows all have their full length."""
    base = "search-r1-ppo" if algorithm == "ppo" else "search-r1-grpo"
    learner = (
        "{optimizer: {lr: 1.0e-3}, precision: float32, micro_batch_tokens: 256, gradient_checkpointing: true, "
        "strategy: fsdp2"
    )
    changes = [
        f"policy.folder={folder}", f"machine.devices={devices}", "precision=bfloat16", "table.dev_questions=1",
        f"limits.max_turns={TURNS - 1}", f"limits.max_turn_tokens={TURN_TOKENS}",
        f"limits.max_tokens={PROMPT + TURNS * TURN_TOKENS}",
        "rl.steps=2", f"rl.questions_per_step={ROWS * devices}", "rl.group_size=1", "rl.num_minibatches=1",
        "rl.monitor.probe_trajectories=0",
        f"rl.policy={learner}{', lora: {rank: 8}' if algorithm == 'lora' else ''}}}", f"rl.critic={learner}}}",
    ]  # fmt: skip
    return load_recipe(base, changes)


def make_model(folder: Path) -> None:
    config = Qwen2Config(
        vocab_size=1024, hidden_size=128, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=512, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)


# --- counting

PACKED = torch._mkldnn  # type: ignore[attr-defined]
"""The layout of a matrix that oneDNN has packed, which has no storage."""


def live_storages() -> dict[int, torch.UntypedStorage]:
    """The storages of all tensors in this process, by address; shards and the wrappers around them are one."""
    storages: dict[int, torch.UntypedStorage] = {}
    for thing in _tensors():
        if thing.layout is not PACKED and (storage := thing.untyped_storage()).nbytes():
            storages[storage.data_ptr()] = storage
    return storages


def _tensors() -> Iterator[Tensor]:
    for thing in gc.get_objects():
        if type(thing) in (Tensor, torch.nn.Parameter) and thing.device.type == "cpu":
            yield thing


def held_bytes() -> int:
    gc.collect()
    packed = sum(thing.numel() * thing.element_size() for thing in _tensors() if thing.layout is PACKED)
    return packed + sum(storage.nbytes() for storage in live_storages().values())


class PassPeak(TorchDispatchMode):
    """The most bytes that are alive inside the block, whoever holds them: tensors, graph or sharding."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._seen = weakref.WeakKeyDictionary({storage: storage.nbytes() for storage in live_storages().values()})

    def __torch_dispatch__(
        self, func: Callable[..., object], types: Sequence[type], args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        output = func(*args, **(kwargs if isinstance(kwargs, dict) else {}))
        grown = False  # only then can there be more than ever before
        for leaf in tree_leaves((output, args)):
            if type(leaf) in (Tensor, torch.nn.Parameter) and leaf.device.type == "cpu":
                storage = leaf.untyped_storage()
                grown |= storage.nbytes() > self._seen.get(storage, -1)
                self._seen[storage] = storage.nbytes()
        if grown:
            by_address = {storage.data_ptr(): storage.nbytes() for storage in self._seen if storage.nbytes()}
            self.peak = max(self.peak, sum(by_address.values()))
        return output


@dataclass
class Counts:
    """The largest counts of a run, in bytes."""

    rollout: int = 0
    update: int = 0
    """Between the passes of an update and its step."""
    within: int = 0
    """Within a pass."""


def run_rows(sampler: Sampler, questions: Sequence[Question], seeds: Sequence[int], counts: Counts) -> list[Trajectory]:
    """Rows that fill their budget, counted before they are closed."""
    prompt = tuple(range(2, 2 + PROMPT))
    turns: dict[int, Turn] = {}
    for key, (question, seed) in enumerate(zip(questions, seeds, strict=True)):
        sampler.start(Request(key, prompt, TURNS * TURN_TOKENS, seed, EpisodeState(question)))
    while len(turns) < len(questions):
        turns |= {turn.key: turn for turn in sampler.step()}
    counts.rollout = max(counts.rollout, held_bytes())
    runs = []
    for key, question in enumerate(questions):
        sampler.close(key)
        written = Segment(Author.AGENT, "answer", "", turns[key].ids, turns[key].logprobs)
        shown = Segment(Author.ENVIRONMENT, "prompt", "", prompt)
        runs.append(Trajectory(question, "test", (shown, written), (), StopReason.ANSWERED, "a", True))
    return runs


def count(algorithm: str, folder: Path, model: Path, workers: Workers) -> tuple[Counts, Memory]:
    """Train two steps and count."""
    recipe = recipe_for(algorithm, model, workers.world_size)
    begun, counts = held_bytes(), Counts()
    network = Qwen2ForCausalLM.from_pretrained(model)
    network.eval()
    backend = open_backend(recipe.rl, network, workers)
    limits = SamplerSettings(
        temperature=recipe.rl.temperature, max_rows=ROWS, max_tokens=recipe.limits.max_tokens, dtype=recipe.precision
    )
    sampler = backend.sampler(ByteTokenizer(), (), limits)
    backend.sampler(ByteTokenizer(), (), limits.model_copy(update={"temperature": 0.0}), on_policy=False)
    for learner in (backend.policy, backend.critic):
        if learner is not None:
            _watch(learner, counts)
    assert isinstance(sampler, Sampler)
    questions = [Question(str(number), "?", ("a",)) for number in range(recipe.rl.questions_per_step)]
    train_rl(
        backend, questions, lambda questions, seeds: run_rows(sampler, questions, seeds, counts),
        lambda run: Reward(float(sum(run.segments[1].ids) % 7)), recipe.rl, folder,
    )  # fmt: skip
    held = Counts(counts.rollout - begun, counts.update - begun, counts.within - begun)
    return held, memory_of(recipe, shape_of(recipe)[0])


def _watch(learner: object, counts: Counts) -> None:
    """Count in the learner's passes, and before its steps."""
    assert isinstance(learner, Learner)
    forward_backward, optim_step = learner.forward_backward, learner.optim_step

    def passes(*args: object, **named: object) -> float:
        with PassPeak() as peak:
            loss: float = forward_backward(*args, **named)  # type: ignore[arg-type]
        counts.within = max(counts.within, peak.peak)
        return loss

    def step() -> float:
        counts.update = max(counts.update, held_bytes())
        return optim_step()

    learner.forward_backward, learner.optim_step = passes, step  # type: ignore[method-assign]


def work(folder: Path) -> None:
    """What one worker does; the first writes down the counts of every algorithm."""
    gc.freeze()  # what was there before is not counted, and need not be looked through
    fused.MAX_COPIED_BYTES = 0  # the estimate is of accelerators, where sampler and trainer share their weights
    workers, rows = workers_here(), []
    for algorithm in ALGORITHMS:
        counts, memory = count(algorithm, folder / algorithm, folder / "model", workers)
        all_counts = workers.gather((counts.rollout, counts.update, counts.within))
        if workers.is_main:
            rollout, update = memory.held + memory.sampler + memory.cache, memory.held + memory.gradients
            estimate = {"rollout": rollout, "update": update}
            estimate["within"] = update + memory.gathered + memory.activations
            worst = dict(zip(("rollout", "update", "within"), map(max, zip(*all_counts, strict=True)), strict=True))
            rows.append({"algorithm": algorithm, "counted": worst, "estimate": estimate})
    if workers.is_main:
        (folder / "counted.json").write_text(json.dumps(rows))


def counted_rows(world: int, folder: Path) -> list[tuple[str, dict[str, float], dict[str, float]]]:
    """The algorithms with the counts and estimates of `world` workers."""
    make_model(folder / "model")
    run_workers(world, work, folder)
    rows = json.loads((folder / "counted.json").read_text())
    return [(row["algorithm"], row["counted"], row["estimate"]) for row in rows]
