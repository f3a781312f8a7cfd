"""Rollouts a second: the sampler against a turn-by-turn loop that reads the whole context again with `generate`.

    python bench/rollout.py                      # warms a laptop policy up first (some minutes)
    python bench/rollout.py --policy FOLDER      # a trained one
    python bench/rollout.py --dtype bfloat16

Both sides have the same weights, precision, temperature, driver, retriever, questions, seeds and budgets, in one
process, taking turns. The loop is given what it may fairly have: the best of several batch sizes, its own cache within
a turn, stopping by token ids at the same tags, padding on the left, and batches that are filled up between turns with
the next questions. It need not say log-probabilities; the sampler does. Exits 1 when the sampler is not `--bar` times
as fast as the best batch size.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from transformers import PreTrainedModel

from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.agents.writers.expert import Expert
from coseek.agents.writing import WriterModel
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.loading import Precision, load_model, save_model
from coseek.models.model import Model, Request, Tokenizer, Turn, TurnEnd
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.settings import SftSettings
from coseek.training.sft.curriculum import draw_any
from coseek.training.sft.loop import train_sft
from coseek.world.settings import WorldSettings
from coseek.world.world import World, make_world

LIMITS = Limits(max_turns=4, passages_per_search=3, max_turn_tokens=64, max_observation_tokens=200, max_tokens=448)


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


@dataclass
class Side:
    """One way of rolling out, and how it did."""

    name: str
    model: Model
    concurrency: int
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
        self.runs = rollout(agent, retriever, questions, seeds, LIMITS, concurrency=self.concurrency)
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


def warm_policy(world: World, protocol: Protocol, folder: Path, steps: int) -> Path:
    """A laptop policy that has learnt to write the protocol's form, and a little more."""
    texts = [f" {passage.contents}" for passage in world.corpus]
    texts += [f" {question.question}" for question in world.questions["train"]]
    make_policy(LaptopSettings(), texts, protocol.grammar.special_tokens, folder / "untrained", seed=0)
    tokenizer, model = HfTokenizer.load(folder / "untrained"), load_model(folder / "untrained")
    questions = world.questions["train"]
    agent = Agent(protocol, WriterModel(Expert(), protocol, tokenizer))
    shown = rollout(agent, Bm25.over(world.corpus), questions, range(len(questions)), LIMITS)
    whole = [run for run in shown if not run.truncated and not run.stop.is_fault]
    train_sft(model, draw_any(whole), SftSettings(steps=steps, checkpoint_every=steps), folder / "sft")
    save_model(model, tokenizer, folder / "policy")
    return folder / "policy"


def make_sides(policy: Path, protocol: Protocol, dtype: Precision, batches: Sequence[int]) -> list[Side]:
    tokenizer = HfTokenizer.load(policy)
    stops = protocol.grammar.stops
    sampler = Sampler(load_model(policy), tokenizer, stops, SamplerSettings(dtype=dtype))
    sides = [Side("sampler", sampler, 256)]
    module = load_model(policy, dtype)
    for batch in batches:
        sides.append(Side(f"generate, batch {batch}", RereadingModel(module, tokenizer, stops, batch), batch))
    return sides


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, help="a trained policy that speaks search-r1 in the laptop wording")
    parser.add_argument("--sft-steps", type=int, default=300, help="updates of the warm start without --policy")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--bar", type=float, default=3.0)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    protocol = load_protocol("search-r1", "laptop")
    world = make_world(WorldSettings(seed=9, size="small", train=3000, dev=options.questions, test=0))
    with tempfile.TemporaryDirectory() as made:
        policy = options.policy or warm_policy(world, protocol, Path(made), options.sft_steps)
        sides = make_sides(policy, protocol, options.dtype, options.batches)
    retriever, questions = Bm25.over(world.corpus), world.questions["dev"]
    for repeat in range(options.repeats):
        for side in sides:
            side.go(protocol, retriever, questions, repeat)
            print(f"repeat {repeat + 1}, {side.name}: {side.rates[-1]:.1f} rollouts/s", file=sys.stderr, flush=True)
    print(f"{len(questions)} questions, {LIMITS.max_tokens} tokens each at most, {options.dtype}, ", end="")
    print(f"{torch.get_num_threads()} threads, {options.repeats} repeats taking turns")
    print(f"{'':<22}{'rollouts/s':>12}{'':>10}{'per CPU s':>10}{'tokens':>10}{'written':>9}{'searches':>10}")
    print("\n".join(side.report() for side in sides))
    ours, best = sides[0], max(sides[1:], key=lambda side: statistics.median(side.rates))
    ratio = statistics.median(ours.rates) / statistics.median(best.rates)
    cpu = statistics.median(ours.cpu_rates) / max(statistics.median(side.cpu_rates) for side in sides[1:])
    print(
        f"sampler / best loop ({best.name}): {ratio:.2f} by the clock, {cpu:.2f} in processor time; bar {options.bar}"
    )
    return 0 if ratio >= options.bar else 1


if __name__ == "__main__":
    sys.exit(main())
