"""Rollouts a second: the sampler against a turn-by-turn loop that reads the whole context again with `generate`.

    python bench/rollout.py                      # warms a laptop policy up first (some minutes)
    python bench/rollout.py --policy FOLDER      # a trained one
    python bench/rollout.py --dtype bfloat16
    python bench/rollout.py --group 8 --prompt-tokens 300 --bar 2    # sharing a prompt against reading it every time
    python bench/rollout.py --delay-s 0.2 --bar 1                    # a slow retriever: overlapped against waited for
    python bench/rollout.py --profile            # where the time goes; any of the above may be profiled

Both sides have the same weights, precision, temperature, driver, retriever, questions, seeds and budgets, in one
process, taking turns. The loop is given what it may fairly have: the best of several batch sizes, its own cache within
a turn, stopping by token ids at the same tags, padding on the left, and batches that are filled up between turns with
the next questions. It need not say log-probabilities; the sampler does. Exits 1 when the sampler is not `--bar` times
as fast as the best batch size.

With `--group` every question is rolled out that often, its prompt made as long as `--prompt-tokens` by text in front of
the question, and the sampler that shares is set against the one that does not. With `--delay-s` every call of the
retriever takes that much longer, as a server far away does, and a rollout that overlaps is set against one that waits.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ParamSpec, TypeVar, cast
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.hardware.device import instructions
from coseek.hardware.placement import FLOAT32, Placement
from coseek.lab.agents.expert import ExpertAgent
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world
from coseek.models import sampler as sampler_module
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model import Model, Request, Tokenizer, Turn, TurnEnd
from coseek.models.pretrained import load_model, save_model
from coseek.models.sampler import Sampler, SamplerSettings, sample_filtered, uniforms
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.learner.policy import Policy
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import SftSettings, draw_any

LIMITS = Limits(max_turns=4, passages_per_search=3, max_turn_tokens=64, max_observation_tokens=200, max_tokens=448)
P = ParamSpec("P")
R = TypeVar("R")


class RereadingModel:
    """The loop that everybody writes first: every turn, `generate` reads all of every row again. Implements `Model`."""

    def __init__(self, model: PreTrainedModel, tokenizer: HfTokenizer, stops: Sequence[str], batch: int) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self._model, self._batch = model, batch
        self._pad = cast(int, tokenizer.fast.pad_token_id)
        self._stops = [tokenizer.eos_id]
        for stop in stops:
            (ident,) = tokenizer.encode(stop)
            self._stops.append(ident)
        self._rows: dict[int, list[int]] = {}
        self._waiting: list[Request] = []

    def start(self, request: Request) -> None:
        self._rows[request.key] = list(request.ids)
        self._waiting.append(request)

    def extend(self, request: Request) -> None:
        self._rows[request.key] += request.ids
        self._waiting.append(request)

    def close(self, key: int) -> None:
        del self._rows[key]

    def step(self) -> list[Turn]:
        asked, self._waiting = self._waiting[: self._batch], self._waiting[self._batch :]
        return self._generate(asked) if asked else []

    @torch.inference_mode()
    def _generate(self, asked: Sequence[Request]) -> list[Turn]:
        width = max(len(self._rows[request.key]) for request in asked)
        padded = [[self._pad] * (width - len(row)) + row for row in (self._rows[request.key] for request in asked)]
        real = [[0] * (width - len(row)) + [1] * len(row) for row in (self._rows[request.key] for request in asked)]
        written = self._model.generate(  # type: ignore[operator]
            input_ids=torch.tensor(padded),
            attention_mask=torch.tensor(real),
            max_new_tokens=max(request.max_tokens for request in asked),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cache=True,
            eos_token_id=self._stops,
            pad_token_id=self._pad,
        )
        return [self._turn(request, row) for request, row in zip(asked, written[:, width:].tolist(), strict=True)]

    def _turn(self, request: Request, row: Sequence[int]) -> Turn:
        ends = [place for place, ident in enumerate(row[: request.max_tokens]) if ident in self._stops]
        ids = tuple(row[: ends[0] + 1] if ends else row[: request.max_tokens])
        self._rows[request.key] += ids
        end = TurnEnd.LENGTH if not ends else TurnEnd.EOS if ids[-1] == self.tokenizer.eos_id else TurnEnd.STOP
        return Turn(request.key, ids, (0.0,) * len(ids), end)


class Slow(Bm25):
    """BM25 at the far end of a slow line. The delay is an argument of the bench, and no core is busy meanwhile."""

    delay_s = 0.0

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        time.sleep(self.delay_s)
        return super().search(queries, k)


@dataclass
class Side:
    """One way of rolling out, and how it did."""

    name: str
    model: Model
    concurrency: int
    limits: Limits = LIMITS
    overlap: bool = False
    rates: list[float] = field(default_factory=list)
    """Rollouts a second by the clock, one a repeat."""
    cpu_rates: list[float] = field(default_factory=list)
    """Rollouts a second of processor time: steadier where others use the machine too."""
    runs: list[Trajectory] = field(default_factory=list)

    def go(self, protocol: Protocol, retriever: Retriever, questions: Sequence[Question], repeat: int) -> None:
        torch.manual_seed(repeat)  # `generate` draws from the global generator
        seeds = [repeat * len(questions) + number for number in range(len(questions))]
        clock, processor = time.perf_counter(), time.process_time()
        agent = Agent(protocol, self.model)
        self.runs = rollout(
            agent, retriever, questions, seeds, self.limits, concurrency=self.concurrency, overlap=self.overlap
        )
        self.rates.append(len(questions) / (time.perf_counter() - clock))
        self.cpu_rates.append(len(questions) / (time.process_time() - processor))

    def report(self) -> str:
        spread = f"{min(self.rates):5.1f} – {max(self.rates):5.1f}"
        count = len(self.runs)
        tokens = sum(len(run.ids) for run in self.runs) / count
        written = sum(run.agent_tokens for run in self.runs) / count
        searches = sum(len(run.searches) for run in self.runs) / count
        return (
            f"{self.name:<22}{statistics.median(self.rates):7.1f}  {spread}  {statistics.median(self.cpu_rates):9.1f}"
            f"{tokens:10.0f}{written:9.0f}{searches:10.2f}"
        )


@dataclass
class Clock:
    """Seconds of processor time that each part took, without the parts that it called in turn."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inner: list[float] = field(default_factory=list)

    def timed(self, name: str, part: Callable[P, R]) -> Callable[P, R]:
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            self._inner.append(0.0)
            began = time.process_time()
            try:
                return part(*args, **kwargs)
            finally:
                took = time.process_time() - began
                self.seconds[name] = self.seconds.get(name, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return run

    def watch(self, owner: object, attribute: str, name: str) -> None:
        setattr(owner, attribute, self.timed(name, getattr(owner, attribute)))


def profile(side: Side, protocol: Protocol, retriever: Retriever, questions: Sequence[Question]) -> None:
    """One more repeat, with a clock in front of every part; what is left is the driver's own."""
    assert isinstance(side.model, Sampler)
    clock, engine = Clock(), side.model._engine
    for attribute, name in {"read": "prefill", "step": "decoding"}.items():
        clock.watch(engine, attribute, name)
    for attribute, name in {"copy": "copying prefixes", "swap": "moving rows"}.items():
        clock.watch(engine.cache, attribute, name)
    clock.watch(side.model, "step", "sampler's own")
    clock.watch(retriever, "search", "retrieval")
    with (
        patch.object(sampler_module, "sample_filtered", clock.timed("drawing", sample_filtered)),
        patch.object(sampler_module, "uniforms", clock.timed("drawing", uniforms)),
    ):
        clock.timed("driver and tokenizer", side.go)(protocol, retriever, questions, 0)
    total = sum(clock.seconds.values())
    print(f"\nwhere {total:.2f} s of processor time went: {side.name}")
    for name, took in sorted(clock.seconds.items(), key=lambda part: -part[1]):
        print(f"{name:<22}{took:8.2f} s{100 * took / total:6.1f} %")


def lengthened(protocol: Protocol, tokenizer: Tokenizer, world: World, tokens: int) -> Protocol:
    """The protocol with the world's own text in front of every question, until a prompt has this many tokens."""
    file, rng, front = protocol.template.file, random.Random(0), ""
    question = max(world.questions["dev"], key=lambda one: len(one.question))

    def longer() -> Protocol:
        prompt_template = replace(protocol.template, file=file.model_copy(update={"prompt": front + file.prompt}))
        return replace(protocol, template=prompt_template)

    while len(longer().template.prompt_ids(tokenizer, question)[0]) < tokens:
        front += f" {rng.choice(rng.choice(world.corpus).text.split())}"
    return longer()


def warm_policy(world: World, protocol: Protocol, folder: Path, steps: int, limits: Limits, tokens: int) -> Path:
    """A laptop policy that has learnt to write the protocol's form, and a little more."""
    texts = [f" {passage.contents}" for passage in world.corpus]
    texts += [f" {question.question}" for question in world.questions["train"]]
    make_policy(LaptopSettings(), texts, protocol.grammar.special_tokens, folder / "untrained", seed=0)
    tokenizer, model = (
        HfTokenizer.load(folder / "untrained"),
        load_model(folder / "untrained", FLOAT32),
    )
    if tokens:
        protocol = lengthened(protocol, tokenizer, world, tokens)
    questions = world.questions["train"]
    agent = Agent(protocol, ScriptedAgentModel(ExpertAgent(), protocol, tokenizer))
    shown = rollout(agent, Bm25.over(world.corpus), questions, range(len(questions)), limits)
    whole = [run for run in shown if not run.truncated and not run.stop.is_fault]
    settings = SftSettings(steps=steps, checkpoint_every=steps)
    train_sft(Policy(model, settings.learner, 0), draw_any(whole), settings, folder / "sft")
    save_model(model, tokenizer, folder / "policy")
    return folder / "policy"


def make_sides(policy: Path, protocol: Protocol, options: argparse.Namespace, limits: Limits) -> list[Side]:
    """Ours first, then what it is set against."""
    tokenizer, stops = HfTokenizer.load(policy), protocol.grammar.stops

    def ours(name: str, share: bool = True, overlap: bool = False) -> Side:
        settings = SamplerSettings(dtype=options.dtype, share=share)
        return Side(
            name,
            Sampler(load_model(policy, FLOAT32), tokenizer, stops, settings),
            256,
            limits,
            overlap,
        )

    if options.delay_s:
        return [ours("overlapped", overlap=True), ours("one after the other")]
    if options.group > 1:
        return [ours("prompts shared"), ours("prompts not shared", share=False)]
    module = load_model(policy, Placement(precision=options.dtype))
    loops = [RereadingModel(module, tokenizer, stops, batch) for batch in options.batches]
    return [
        ours("sampler"),
        *(Side(f"generate, batch {n}", loop, n, limits) for n, loop in zip(options.batches, loops, strict=True)),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--policy", type=Path, help="a trained policy that speaks search-r1 in the laptop prompt_template"
    )
    parser.add_argument("--sft-steps", type=int, default=300, help="updates of the warm start without --policy")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--bar", type=float, default=3.0)
    parser.add_argument("--group", type=int, default=1, help="rollouts of each question")
    parser.add_argument("--prompt-tokens", type=int, default=0, help="make prompts this long")
    parser.add_argument("--protocol", default="search-r1")
    parser.add_argument("--delay-s", type=float, default=0.0, help="what every call of the retriever takes longer")
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    protocol = load_protocol(options.protocol, "laptop")
    limits = LIMITS.model_copy(update={"max_tokens": LIMITS.max_tokens + options.prompt_tokens})
    count = options.questions // options.group
    world = make_world(WorldSettings(seed=9, size="small", train=3000, dev=count, test=0))
    with tempfile.TemporaryDirectory() as made:
        policy = options.policy or warm_policy(
            world, protocol, Path(made), options.sft_steps, limits, options.prompt_tokens
        )
        if options.prompt_tokens:
            protocol = lengthened(protocol, HfTokenizer.load(policy), world, options.prompt_tokens)
        sides = make_sides(policy, protocol, options, limits)
    retriever = Slow.over(world.corpus)
    Slow.delay_s = options.delay_s
    questions = [question for question in world.questions["dev"] for _ in range(options.group)]
    for repeat in range(options.repeats):
        for side in sides:
            side.go(protocol, retriever, questions, repeat)
            print(f"repeat {repeat + 1}, {side.name}: {side.rates[-1]:.1f} rollouts/s", file=sys.stderr, flush=True)
    print(f"{count} questions × {options.group}, {limits.max_tokens} tokens each at most, {options.dtype}, ", end="")
    print(f"{torch.get_num_threads()} threads, {options.repeats} repeats taking turns, {instructions()}")
    ratio = report(sides, options.bar)
    if options.profile:
        for side in sides:
            if isinstance(side.model, Sampler) and not side.overlap:  # one clock cannot follow two threads
                profile(side, protocol, retriever, questions)
    return 0 if ratio >= options.bar else 1


def report(sides: Sequence[Side], bar: float) -> float:
    """Print the table; returns how many times as fast as the best of the others ours is, by the clock."""
    print(f"{'':<22}{'rollouts/s':>12}{'':>10}{'per CPU s':>10}{'tokens':>10}{'written':>9}{'searches':>10}")
    print("\n".join(side.report() for side in sides))
    for side in sides:
        if isinstance(side.model, Sampler) and side.model.tokens_copied:
            read, copied = side.model.tokens_read, side.model.tokens_copied
            print(f"{side.name}: {copied / (read + copied):.1%} of the tokens ahead of writing were copied, not read")
    ours, best = sides[0], max(sides[1:], key=lambda side: statistics.median(side.rates))
    ratio = statistics.median(ours.rates) / statistics.median(best.rates)
    cpu = statistics.median(ours.cpu_rates) / max(statistics.median(side.cpu_rates) for side in sides[1:])
    print(f"{ours.name} / {best.name}: {ratio:.2f} by the clock, {cpu:.2f} in processor time; bar {bar}")
    return ratio


if __name__ == "__main__":
    sys.exit(main())
