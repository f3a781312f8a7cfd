"""Episodes as coroutines beside the batch driver: how many ledgers are equal to the byte, and the ratio of their times.

    python -m bench.async_episodes                    scripted: the expert in a laptop world, and a model that writes
                                                      broken turns, over every protocol
    python -m bench.async_episodes --network          a laptop policy that was shown every protocol for a few minutes

A network runs one row at a time in both drivers, since the last bits of a log-probability depend on a batch's size;
everything else runs up to 64 episodes at once. Wall times in ledgers are left out. Exit 1 when a ledger differs.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents.async_playing import Improviser, asked, ledger, play_async, shelf_for

from coseek.agents.limits import Limits
from coseek.agents.protocol import FOLDER, Protocol, load_protocol
from coseek.agents.rollout import Agent, rollout
from coseek.agents.scripted.expert import ExpertAgent
from coseek.agents.scripted_model import ScriptedAgentModel
from coseek.data.question import Question
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model import Model
from coseek.models.pretrained import load_model, save_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.sft.curriculum import draw_any
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import SftSettings
from coseek.training.trainer.policy import Policy
from coseek.world.settings import WorldSettings
from coseek.world.world import World, make_world

PROTOCOLS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
BYTES = Limits(max_turns=4, max_turn_tokens=600, max_observation_tokens=600, max_tokens=6000)
TOKENS = Limits(max_turns=3, max_turn_tokens=64, max_observation_tokens=96, max_tokens=900)


@dataclass
class Comparison:
    """Ledgers and seconds of both drivers."""

    name: str
    equal: int = 0
    episodes: int = 0
    batch_s: float = 0.0
    async_s: float = 0.0
    stops: Counter[str] = field(default_factory=Counter)

    def add(
        self,
        protocol: Protocol,
        make: Callable[[], Model],
        retriever: Retriever,
        questions: Sequence[Question],
        limits: Limits,
        at_once: int = 64,
    ) -> None:
        seeds = range(len(questions))
        began = time.perf_counter()
        batch = rollout(Agent(protocol, make()), retriever, questions, seeds, limits, concurrency=at_once)
        between = time.perf_counter()
        alone = asyncio.run(play_async(protocol, make(), retriever, questions, seeds, limits))
        self.batch_s += between - began
        self.async_s += time.perf_counter() - between
        self.episodes += len(batch)
        self.equal += sum(ledger(one) == ledger(other) for one, other in zip(batch, alone, strict=True))
        self.stops += Counter(run.stop.value for run in batch)

    def report(self) -> str:
        stops = ", ".join(f"{stop} {count}" for stop, count in self.stops.most_common())
        return (
            f"{self.name:<10}{self.equal:6} of {self.episodes} ledgers equal; batch {self.batch_s:.1f} s, async "
            f"{self.async_s:.1f} s, ratio {self.async_s / self.batch_s:.2f}; {stops}"
        )


def questions_of(world: World, only: Sequence[str], episodes: int) -> Iterator[tuple[Protocol, list[Question]]]:
    """Protocols with their share of the episodes."""
    pool = world.questions["dev"]
    for place, name in enumerate(PROTOCOLS):
        if name not in only:
            continue
        numbers = range(place, episodes, len(PROTOCOLS))
        yield load_protocol(name, "laptop"), [pool[number % len(pool)] for number in numbers]


def retriever_for(protocol: Protocol, world: World) -> Retriever:
    """BM25, under the name of the kind that the protocol is meant for."""
    retriever = Bm25.over(world.corpus)
    if protocol.retrievers:
        retriever.name = protocol.retrievers[0]
    return retriever


def scripted(world: World, only: Sequence[str], episodes: int) -> Iterator[Comparison]:
    expert, broken = Comparison("expert"), Comparison("broken")
    for protocol, questions in questions_of(world, only, episodes):
        tokenizer = ByteTokenizer(protocol.grammar.special_tokens)

        def model(protocol: Protocol = protocol, tokenizer: ByteTokenizer = tokenizer) -> Model:
            return ScriptedAgentModel(ExpertAgent(), protocol, tokenizer)

        def improviser(protocol: Protocol = protocol) -> Model:
            return Improviser(protocol)

        expert.add(protocol, model, retriever_for(protocol, world), questions, BYTES)
        broken.add(protocol, improviser, shelf_for(protocol), asked(len(questions)), BYTES)
    yield expert
    yield broken


def networks(world: World, only: Sequence[str], episodes: int, folder: Path, steps: int) -> Iterator[Comparison]:
    if not (folder / "policy").exists():
        make_shown(world, folder, steps)
    tokenizer, module = HfTokenizer.load(folder / "policy"), load_model(folder / "policy", FLOAT32)
    for temperature in (0.0, 1.0):
        found = Comparison(f"network {temperature:g}")
        for protocol, questions in questions_of(world, only, episodes // 2):
            chosen = SamplerSettings(temperature=temperature, max_rows=64)

            def model(protocol: Protocol = protocol, chosen: SamplerSettings = chosen) -> Model:
                return Sampler(module, tokenizer, protocol.grammar.stops, chosen)

            found.add(protocol, model, retriever_for(protocol, world), questions, TOKENS, at_once=1)
        yield found


def make_shown(world: World, folder: Path, steps: int) -> None:
    """A small laptop policy that was shown what the expert does in every protocol."""
    protocols = [load_protocol(name, "laptop") for name in PROTOCOLS]
    marks = dict.fromkeys(mark for protocol in protocols for mark in protocol.grammar.special_tokens)
    texts = [f" {passage.contents}" for passage in world.corpus]
    small = LaptopSettings(hidden=64, feed_forward=128, vocabulary=1500)
    make_policy(small, texts, tuple(marks), folder / "untrained", seed=0)
    tokenizer, model = HfTokenizer.load(folder / "untrained"), load_model(folder / "untrained", FLOAT32)
    shown = []
    for protocol in protocols:
        agent = Agent(protocol, ScriptedAgentModel(ExpertAgent(), protocol, tokenizer))
        questions = world.questions["train"][:200]
        limits = TOKENS.model_copy(update={"max_turn_tokens": 300, "max_tokens": 1500})
        shown += rollout(agent, retriever_for(protocol, world), questions, range(len(questions)), limits)
    whole = [run for run in shown if not run.truncated and not run.stop.is_fault]
    # The form of a turn is enough: the policy need not know what it writes about.
    settings = SftSettings(steps=steps, checkpoint_every=steps, repeat_steps=0)
    train_sft(Policy(model, settings.learner, 0), draw_any(whole), settings, folder / "sft")
    save_model(model, tokenizer, folder / "policy")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--only", nargs="+", choices=PROTOCOLS, default=PROTOCOLS, help="these protocols' share alone")
    parser.add_argument("--folder", type=Path, help="where the policy is kept for another start")
    parser.add_argument("--sft-steps", type=int, default=250)
    options = parser.parse_args()
    world = make_world(WorldSettings(seed=9, size="tiny", train=200, dev=100, test=0))
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        options_of = (world, options.only, options.episodes)
        found = list(networks(*options_of, folder, options.sft_steps) if options.network else scripted(*options_of))
    print("\n".join(one.report() for one in found))
    return 0 if all(one.equal == one.episodes for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
