"""One real step of `search-r1-grpo` at the shapes of Qwen2.5 and SmolLM2 with random weights, and what it reaches.

    python -m bench.gpu                                     # on a machine with a GPU; nothing is downloaded
    python -m bench.gpu rl.policy.gradient_checkpointing=false 'rl.policy.lora={rank: 16}'
    python -m bench.gpu --device cpu --shape tiny           # seconds on a processor
    python -m bench.gpu --device cpu --shape smollm2 --turn --bar 3    # 32 rows of four prompts against `generate`

The recipe gives group, budgets, KL, minibatches and micro-batches; `SETTING=VALUE` changes them. An untrained model
never writes a tag, so every turn has all its tokens, and random tokens stand for the documents: rows are as long as the
recipe allows. Rewards differ inside every group, so that no row is left out of the update.

`sampler` and `generate` (of transformers, a copy of the same weights in the same precision) write one turn from the
same prompts, in turn. `rollouts`, `reference` and `update` are parts of the step: all turns of the runs, the pass for
the KL, and forward, backward and optimizer of every minibatch. The share is model operations (2 a weight and token and
causal attention, three times for an update; recomputed activations do not count) of what the device reaches in large
matrix products in this run, in the same precision.

`--turn` leaves out the step: `--rows` rows in groups of `--group`, prompts of `--prompt-tokens`, and `--new-tokens`
written by the sampler and by `generate` in turn, both from the same weights, each in its own copy in `--dtype`. The
sampler also says log-probabilities, and reads the prompt of a group once. Exits 1 below `--bar` times `generate`.
"""

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from coseek.agents.limits import Limits
from coseek.core.errors import UserError
from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.hardware.device import instructions
from coseek.models.model import EpisodeState, Model, Request
from coseek.models.pretrained import DTYPES
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.estimate import PROMPT_TOKENS
from coseek.rewards.reward import Reward
from coseek.training.learner.data_order import QuestionStream
from coseek.training.learner.policy import Policy
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import make_experience
from coseek.training.rl.rollout import sample_step
from coseek.training.rl.update import update_weights
from coseek.training.tracker import Timer

RECIPE = "search-r1-grpo"
COLUMNS = f"{'shape':>6} {'part':<10} {'tokens':>11} {'seconds':>9} {'tokens/s':>11} {'TFLOP/s':>9} {'share':>7}"
FIRST_WORD = 300
"""Ids below may be special tokens."""


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network, and transformers' name of its architecture."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int = 2
    vocabulary: int = 151_936
    architecture: str = "qwen2"


SHAPES = {
    "0.5B": NetworkShape(896, 4864, 24, 14),
    "1.5B": NetworkShape(1536, 8960, 28, 12),
    "smollm2": NetworkShape(576, 1536, 30, 9, 3, 49_152, "llama"),
    "tiny": NetworkShape(64, 128, 2, 4, vocabulary=512),
}
"""Of Qwen2.5-0.5B and 1.5B and of SmolLM2-135M as published, and one for processors."""
SMALL = (
    f"limits={{max_turns: 2, max_turn_tokens: 8, max_observation_tokens: 8, max_tokens: {PROMPT_TOKENS + 64}}}",
    "rl.policy.micro_batch_tokens=1024", "rl.questions_per_step=2",
)  # fmt: skip
"""What `tiny` changes in the recipe."""


def recipe_of(shape: str, overrides: Sequence[str], device: str) -> AgentRecipe:
    """The recipe of one step: 24 questions where it is not said, in bfloat16 on a GPU and float32 on a processor."""
    precision = "bfloat16" if device != "cpu" else "float32"
    fixed = (f"rl.policy.precision={precision}", f"precision={precision}", "rl.monitor.probe_trajectories=0")
    few = SMALL if shape == "tiny" else ("rl.questions_per_step=24",)
    return load_recipe(RECIPE, [*fixed, *few, *overrides])


def dtype_of(recipe: AgentRecipe) -> torch.dtype:
    return DTYPES["bfloat16" if recipe.precision == "bfloat16" else "float32"]


def make_model(shape: NetworkShape, device: torch.device) -> PreTrainedModel:
    """A network of this shape with random float32 weights."""
    config = AutoConfig.for_model(
        shape.architecture,
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config)
    assert isinstance(model, PreTrainedModel)
    model.eval()
    return model


def random_ids(count: int, vocabulary: int, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(FIRST_WORD, vocabulary) for _ in range(count))


def timed(work: Callable[[], int], device: torch.device) -> tuple[int, float]:
    """What the work returns, and its seconds."""
    settle(device)
    began = time.perf_counter()
    done = work()
    settle(device)
    return done, time.perf_counter() - began


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_tflops(device: torch.device, dtype: torch.dtype) -> float:
    """The best of some timings of large matrix products."""
    side, times = (8192, 20) if device.type == "cuda" else (768, 4)
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))

    def work() -> int:
        for _ in range(times):
            left @ right
        return times

    seconds = min(timed(work, device)[1] for _ in range(5))
    return times * 2.0 * side**3 / seconds / 1e12


@dataclass
class StepRollout:
    """Plays every turn of every run to its last token, with random documents between turns."""

    model: Model
    limits: Limits
    vocabulary: int
    turns: int | None = None
    """At most this many turns of a run; none for as many as the budgets allow."""
    written: int = field(default=0, init=False)
    """Tokens that the model wrote, over all calls."""

    def __call__(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        prompts = [random_ids(PROMPT_TOKENS, self.vocabulary, random.Random(one.id)) for one in questions]
        rows = [[Segment(Author.ENVIRONMENT, "prompt", "", prompt)] for prompt in prompts]
        most = self.limits.max_turn_tokens
        for key, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            self.model.start(Request(key, prompt, most, seed, EpisodeState(questions[key])))
        left = len(rows)
        while left:
            for turn in self.model.step():
                row, documents = rows[turn.key], self.documents(rows[turn.key], seeds[turn.key])
                row.append(Segment(Author.AGENT, "search", "", turn.ids, turn.logprobs))
                self.written += len(turn.ids)
                if documents:
                    row.append(Segment(Author.ENVIRONMENT, "information", "", documents))
                    state = EpisodeState(questions[turn.key])
                    self.model.extend(Request(turn.key, documents, most, seeds[turn.key], state))
                else:
                    self.model.close(turn.key)
                    left -= 1
        return [
            Trajectory(question, "search-r1", tuple(row), (), StopReason.TURN_LIMIT, None, True, seed=seed)
            for question, row, seed in zip(questions, rows, seeds, strict=True)
        ]

    def documents(self, row: Sequence[Segment], seed: int) -> tuple[int, ...]:
        """The observation after the turn that a row has begun; none where another turn has no room."""
        limits, turn = self.limits, len(row) // 2
        more = limits.max_observation_tokens + limits.max_turn_tokens
        held = sum(len(segment.ids) for segment in row) + limits.max_turn_tokens
        if turn >= limits.max_turns or turn + 1 == self.turns or held + more > limits.max_tokens:
            return ()
        return random_ids(limits.max_observation_tokens, self.vocabulary, random.Random(f"{seed} {turn}"))


def reward(run: Trajectory) -> Reward:
    """The share of even tokens: no two runs of a group have the same."""
    written = [ident for segment in run.segments if segment.author is Author.AGENT for ident in segment.ids]
    value = sum(ident % 2 == 0 for ident in written) / max(1, len(written)) + run.seed % 997 * 1e-6
    return Reward(value, {"exact_match": value})


@torch.inference_mode()
def generate(model: PreTrainedModel, prompts: Sequence[Sequence[int]], new: int) -> int:
    """Tokens that `generate` of transformers wrote."""
    ids = torch.tensor(prompts, device=model.device)
    written = model.generate(  # type: ignore[operator]
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return int((written.shape[1] - ids.shape[1]) * len(ids))


def forward_flops(model: PreTrainedModel, shape: NetworkShape, rows: Sequence[Trajectory]) -> float:
    """Of a pass over the rows: 2 a weight and token, causal attention, the output layer at the agent's tokens."""
    parts = model.named_parameters()
    body = sum(weight.numel() for name, weight in parts if "embed" not in name and "lora_" not in name)
    head = 2.0 * shape.vocabulary * shape.hidden * sum(row.agent_tokens for row in rows)
    lengths = [len(row.ids) for row in rows]
    return head + sum(length * (2.0 * body + 2.0 * shape.layers * shape.hidden * length) for length in lengths)


@dataclass(frozen=True)
class PartTime:
    """One timing of a part: tokens, seconds, and model operations where they are counted."""

    tokens: int
    seconds: float
    flops: float | None = None


@dataclass
class StepBench:
    """The models of one shape."""

    shape: NetworkShape
    recipe: AgentRecipe
    device: torch.device

    def __post_init__(self) -> None:
        rl, recipe = self.recipe.rl, self.recipe
        self.model = make_model(self.shape, self.device)
        self.weights = sum(weight.numel() for weight in self.model.parameters())
        self.plain = torch.nn.Module.to(copy.deepcopy(self.model), dtype=dtype_of(recipe))
        self.backend = LocalBackend(Policy(self.model, rl.policy, 10_000, rl.temperature), rl)
        sampling = SamplerSettings(
            temperature=rl.temperature, max_rows=recipe.concurrency, cache_gib=recipe.cache_gib,
            max_tokens=recipe.limits.max_tokens, dtype=recipe.precision,
        )  # fmt: skip
        self.sampler = self.backend.sampler(ByteTokenizer(), (), sampling)

    def turn(self) -> dict[str, PartTime]:
        """One turn of every run by the sampler, and by `generate`."""
        rl, limits = self.recipe.rl, self.recipe.limits
        asked = [Question(str(n), "?") for n in range(rl.questions_per_step) for _ in range(rl.group_size)]
        rollout = StepRollout(self.sampler, limits, self.shape.vocabulary, turns=1)
        prompts = [random_ids(PROMPT_TOKENS, self.shape.vocabulary, random.Random(one.id)) for one in asked]

        def sample() -> int:
            rollout(asked, range(len(asked)))
            return rollout.written

        sampled = PartTime(*timed(sample, self.device))
        self.backend.release()
        again = PartTime(*timed(lambda: generate(self.plain, prompts, limits.max_turn_tokens), self.device))
        return {"sampler": sampled, "generate": again}

    def step(self, number: int) -> dict[str, PartTime]:
        """One step of training."""
        rl, timer, algorithm = self.recipe.rl, Timer(), open_algorithm(self.recipe.rl)
        questions = QuestionStream([Question(str(n), "?") for n in range(rl.questions_per_step)], 0)
        rollout = StepRollout(self.sampler, self.recipe.limits, self.shape.vocabulary)
        self.backend.refresh()
        sampled = sample_step(number, questions, 0, rl, rollout, reward, self.backend, timer)
        self.backend.release()
        rows = [episode.trajectory for episode in sampled.kept.scored]
        read, flops = sum(len(row.ids) for row in rows), forward_flops(self.model, self.shape, rows)
        with timer("advantages_s"):
            experience = make_experience(sampled.kept, rl, algorithm, self.backend)
            settle(self.device)
        with timer("update_s"):
            update_weights(experience, rl, algorithm, self.backend, random.Random(number))
            settle(self.device)
        seconds = timer.seconds
        assert not experience.zero_grad_B.any(), "a group without spread is left out of the update"
        reference = {"reference": PartTime(read, seconds["advantages_s"], flops)} if self.backend.reference else {}
        return {
            "rollouts": PartTime(rollout.written, seconds["rollout_s"]),
            **reference,
            "update": PartTime(read * rl.epochs, seconds["update_s"], 3.0 * flops * rl.epochs),
        }


def measured(bench: StepBench, repeats: int) -> dict[str, PartTime]:
    """Part → the timing with the median of tokens a second. A first round, which warms up, is left out."""
    rounds = [{**bench.turn(), **bench.step(number)} for number in range(repeats + 1)][1:]
    return {part: _median([one[part] for one in rounds]) for part in rounds[0]}


def _median(timings: Sequence[PartTime]) -> PartTime:
    return sorted(timings, key=lambda one: one.tokens / one.seconds)[(len(timings) - 1) // 2]


def show(name: str, found: Mapping[str, PartTime], peak: float) -> None:
    """A line for each part, under `COLUMNS`."""
    for part, one in found.items():
        done = None if one.flops is None else one.flops / one.seconds / 1e12
        counted = f"{'–':>9} {'–':>7}" if done is None else f"{done:9.3f} {done / peak:7.1%}"
        rate = one.tokens / one.seconds
        print(f"{name:>6} {part:<10} {one.tokens:11,} {one.seconds:9.3f} {rate:11,.0f} {counted}", flush=True)


def race(shape: NetworkShape, device: torch.device, options: argparse.Namespace) -> float:
    """Time the sampler and `generate` in turn, print both; returns how many times as fast the sampler is."""
    model, rng = make_model(shape, device), random.Random(0)
    prompts = [random_ids(options.prompt_tokens, shape.vocabulary, rng) for _ in range(options.rows // options.group)]
    rows = [prompt for prompt in prompts for _ in range(options.group)]
    plain = copy.deepcopy(model)
    for weight in plain.parameters():  # not the buffers, of which rotary positions are made
        weight.data = weight.data.to(DTYPES[options.dtype])
    sampler = Sampler(model, ByteTokenizer(), (), SamplerSettings(dtype=options.dtype, max_rows=len(rows)))
    state = EpisodeState(Question("0", "?"))

    def sample() -> int:
        for key, prompt in enumerate(rows):
            sampler.start(Request(key, prompt, options.new_tokens, key, state))
        written, left = 0, len(rows)
        while left:
            for turn in sampler.step():
                sampler.close(turn.key)
                written, left = written + len(turn.ids), left - 1
        return written

    def write() -> int:
        return generate(plain, rows, options.new_tokens)

    rates: dict[str, list[tuple[float, float]]] = {"sampler": [], "generate": []}
    for repeat in range(options.repeats + 1):
        for name, work in (("sampler", sample), ("generate", write)):
            busy = time.process_time()
            tokens, seconds = timed(work, device)
            if repeat:  # the first warms up
                rates[name].append((tokens / seconds, tokens / (time.process_time() - busy)))
    shown = f"{len(rows)} rows, groups of {options.group}, {options.prompt_tokens} + {options.new_tokens} tokens"
    where = f"{torch.get_num_threads()} threads, {instructions()}"
    print(f"{shown}, {options.dtype}, {where}; {options.repeats} repeats in turn, the median")
    factors = []
    for clock, unit in enumerate(("tokens/s", "tokens/s of processor time")):
        for name, found in rates.items():
            told = sorted(one[clock] for one in found)
            print(f"{name:<10} {statistics.median(told):8.0f} ({told[0]:.0f} to {told[-1]:.0f}) {unit}")
        pairs = zip(rates["sampler"], rates["generate"], strict=True)
        ratios = sorted(ours[clock] / theirs[clock] for ours, theirs in pairs)
        factors.append(statistics.median(ratios))
        print(f"sampler / generate: {factors[-1]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f} turn by turn)", flush=True)
    return factors[0]


def main(typed: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="SETTING=VALUE", help=f"changes of the recipe {RECIPE}")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", action="append", choices=SHAPES, help="may be repeated [default: 0.5B and 1.5B]")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--turn", action="store_true", help="the sampler against `generate`, and no step")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--group", type=int, default=8, help="rows of one prompt")
    parser.add_argument("--prompt-tokens", type=int, default=300)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--bar", type=float, default=0.0, help="how many times as fast the sampler has to be")
    options = parser.parse_args(typed)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no GPU that torch can use here; try --device cpu --shape tiny")
    shapes: list[str] = options.shape or ["0.5B", "1.5B"]
    if options.turn:
        return 0 if min(race(SHAPES[name], device, options) for name in shapes) >= options.bar else 1
    try:
        recipes = {name: recipe_of(name, options.overrides, device.type) for name in shapes}
    except UserError as error:
        raise SystemExit(str(error)) from None
    for name, recipe in recipes.items():
        peak = peak_tflops(device, dtype_of(recipe))
        bench = StepBench(SHAPES[name], recipe, device)
        where = torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"
        rows = recipe.rl.questions_per_step * recipe.rl.group_size
        print(f"\n{where}, torch {torch.__version__}, {recipe.precision}; {options.repeats} repeats, the median")
        print(f"{bench.weights / 1e6:.1f} M weights, {rows} runs; large matrix products: {peak:.3f} TFLOP/s")
        print(COLUMNS)
        found = measured(bench, options.repeats)
        show(name, found, peak)
        ratio = found["sampler"].tokens / found["sampler"].seconds * found["generate"].seconds
        print(f"sampler / generate: {ratio / found['generate'].tokens:.2f}")
        if device.type == "cuda":
            print(f"most memory held: {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB")
            torch.cuda.reset_peak_memory_stats(device)
        del bench
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
