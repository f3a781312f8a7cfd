"""Global answer correctness (Agentic-R) by branches of one past against continuing every candidate from scratch.

    OMP_NUM_THREADS=1 python bench/branches.py                       # the policy of bench/protocols.py, if it is there
    OMP_NUM_THREADS=1 python bench/branches.py --policy FOLDER       # a policy that speaks search-r1
    OMP_NUM_THREADS=1 python bench/branches.py --trajectories 40 --repeats 1 --profile

Trajectories of a laptop world; 20 candidates of BM25 for every search turn; local relevance by the world's oracle.
Three ways to the labels, taking turns, with the same weights, seeds, budgets and driver:

    from scratch    every candidate is continued, and each row reads its whole past
    forked          every candidate is continued from a past that is read once
    decided         forked, and only until the turn's positive is decided (coseek.labels.positives)

Prints model tokens (read and written), seconds by the clock and of processor time, how many GACs differ between the
first two ways, and whether the labels of all three are the same. Exits 1 when `decided` does not need `--fewer` times
fewer tokens and `--faster` times less time than `from scratch`, or when a label differs.
"""

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from coseek.agents.branching import Branch, branch
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, rollout
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Trajectory
from coseek.hardware.host import Host
from coseek.hardware.placement import FLOAT32
from coseek.labels.positives import PositiveChoice
from coseek.measure.answers import exact_match
from coseek.models.model import Model
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.world.settings import WorldSettings
from coseek.world.world import World, make_world

POLICY = Path(__file__).resolve().parent.parent / "build/protocols/policy/policy/warm"
LIMITS = Limits(max_turns=5, passages_per_search=3, max_turn_tokens=96, max_observation_tokens=320, max_tokens=1024)


class Unforked:
    """The same model to a driver that knows of no forks."""

    def __init__(self, model: Model) -> None:
        self.tokenizer = model.tokenizer
        self.start, self.extend, self.step, self.close = model.start, model.extend, model.step, model.close


@dataclass(frozen=True)
class Labelling:
    """What is to be labelled, the same for every way."""

    protocol: Protocol
    retriever: Retriever
    policy: Path
    turns: Sequence[SearchTurn]
    passages_TC: Sequence[Sequence[Passage]]
    relevance_TC: Sequence[Sequence[float]]
    temperature: float

    def sampler(self, share: bool = True) -> Sampler:
        settings = SamplerSettings(temperature=self.temperature, max_tokens=LIMITS.max_tokens, share=share)
        return Sampler(
            load_model(self.policy, FLOAT32),
            HfTokenizer.load(self.policy),
            self.protocol.grammar.stops,
            settings,
        )


Asked: TypeAlias = tuple[int, int]
"""(Index of a turn, index of a candidate in it)."""


@dataclass
class Way:
    """One way to the labels, and how it did."""

    name: str
    forks: bool
    exhaustive: bool
    read: int = 0
    written: int = 0
    continued: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    correct: dict[Asked, bool | None] = field(default_factory=dict)
    labels: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.read + self.written

    def go(self, work: Labelling) -> None:
        # Rows that are opened together share what they begin with; a loop that continues each from scratch does not.
        model = work.sampler(share=self.forks)
        agent = Agent(work.protocol, model if self.forks else Unforked(model))
        self.written, self.correct = 0, {}

        def continued(wave: Sequence[Asked]) -> list[bool | None]:
            branches = [branch_of(work, *asked) for asked in wave]
            ends = branch(agent, work.retriever, branches, LIMITS)
            self.written += sum(map(written_since, branches, ends))
            right = [None if end.stop.is_fault else exact_match(end.answer, end.question.answers) for end in ends]
            self.correct.update(zip(wave, right, strict=True))
            return right

        clock, processor = time.perf_counter(), time.process_time()
        choices = [PositiveChoice(relevance_C, exhaustive=self.exhaustive) for relevance_C in work.relevance_TC]
        while wave := [(turn, place) for turn, choice in enumerate(choices) for place in choice.wanted()]:
            for (turn, place), right in zip(wave, continued(wave), strict=True):
                choices[turn].learn(place, right)
        self.labels = {turn: choice.positives for turn, choice in enumerate(choices)}
        self.seconds.append(time.perf_counter() - clock)
        self.cpu_seconds.append(time.process_time() - processor)
        self.read, self.continued = model.tokens_read, len(self.correct)

    def report(self) -> str:
        clock, processor = statistics.median(self.seconds), statistics.median(self.cpu_seconds)
        spread = f"({min(self.seconds):.1f} – {max(self.seconds):.1f})"
        return (
            f"{self.name:<14}{self.continued:>10,}{self.read:>13,}{self.written:>12,}{self.tokens:>13,}"
            f"{clock:>9.1f} {spread:<18}{processor:>9.1f}"
        )


def branch_of(work: Labelling, turn: int, place: int) -> Branch:
    """Greedy or not, a candidate's continuation is seeded by its run."""
    asked = work.turns[turn]
    return Branch(asked.trajectory, asked.search, (work.passages_TC[turn][place],), asked.trajectory.seed)


def written_since(told: Branch, end: Trajectory) -> int:
    """Tokens that the agent wrote after the search (each turn of a run up to it is the run's own)."""
    turn = told.trajectory.searches[told.search].turn or 0
    own = [segment for segment in end.segments if segment.author is Author.AGENT]
    return sum(len(segment.ids) for segment in own[turn:])


def prepare(options: argparse.Namespace) -> Labelling:
    """Roll out, find candidates, and let the oracle score them."""
    world = make_world(WorldSettings(seed=options.world, size="small", train=options.trajectories, dev=0, test=0))
    protocol, retriever = load_protocol(options.protocol, "laptop"), Bm25.over(world.corpus)
    empty = Labelling(protocol, retriever, options.policy, (), (), (), options.temperature)
    questions = world.questions["train"]
    runs = rollout(Agent(protocol, empty.sampler()), retriever, questions, range(len(questions)), LIMITS)
    right = sum(exact_match(run.answer, run.question.answers) for run in runs)
    turns = [turn for run in runs for turn in search_turns(run, protocol)]
    found_TC = retriever.search([turn.query for turn in turns], options.candidates)
    passages_TC = [[hit.passage for hit in found] for found in found_TC]
    relevance_TC = [relevance(world, turn, found) for turn, found in zip(turns, passages_TC, strict=True)]
    print(f"{len(runs)} trajectories (EM {right / len(runs):.2f}), {len(turns)} search turns", file=sys.stderr)
    return Labelling(protocol, retriever, options.policy, turns, passages_TC, relevance_TC, options.temperature)


def relevance(world: World, turn: SearchTurn, passages: Sequence[Passage]) -> list[float]:
    """LR of each passage, for the hop that the query is for."""
    hop = world.oracle.hop_of(turn.question, turn.query.text)
    return [float(world.oracle.relevance(turn.question, passage, hop)) for passage in passages]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", type=Path, default=POLICY, help="a folder with a policy")
    parser.add_argument("--protocol", default="search-r1", help="which it speaks in the laptop prompt_template")
    parser.add_argument("--world", type=int, default=7, help="seed of the world")
    parser.add_argument("--trajectories", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fewer", type=float, default=5.0, help="bar: times fewer tokens")
    parser.add_argument("--faster", type=float, default=3.0, help="bar: times less time")
    parser.add_argument("--profile", action="store_true", help="where the time of the last way goes")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    work = prepare(options)
    ways = (
        Way("from scratch", forks=False, exhaustive=True),
        Way("forked", forks=True, exhaustive=True),
        Way("decided", forks=True, exhaustive=False),
    )
    for repeat in range(options.repeats):
        for way in ways:
            way.go(work)
            print(f"repeat {repeat + 1}, {way.name}: {way.seconds[-1]:.1f} s", file=sys.stderr, flush=True)
    print(f"instructions: {Host.here().instructions}")
    print(
        f"{'':<14}{'continued':>10}{'read':>13}{'written':>12}{'tokens':>13}{'seconds (least – most)':>28}{'CPU s':>9}"
    )
    for way in ways:
        print(way.report())
    scratch, forked, decided = ways
    tipped = sum(scratch.correct[asked] != right for asked, right in forked.correct.items())
    print(f"GACs that differ between from scratch and forked: {tipped} of {len(forked.correct)}")
    labelled = sum(bool(positives) for positives in scratch.labels.values())
    same = scratch.labels == forked.labels == decided.labels
    print(f"labels: {labelled} of {len(work.turns)} turns have a positive; the same in all three ways: {same}")
    for way in (forked, decided):
        fewer = scratch.tokens / way.tokens
        faster = [before / after for before, after in zip(scratch.seconds, way.seconds, strict=True)]
        processor = [before / after for before, after in zip(scratch.cpu_seconds, way.cpu_seconds, strict=True)]
        print(
            f"{way.name}: {fewer:.1f} times fewer tokens, {statistics.median(faster):.1f} times less time "
            f"({min(faster):.1f} – {max(faster):.1f}), {statistics.median(processor):.1f} in processor time "
            f"({min(processor):.1f} – {max(processor):.1f})"
        )
    if options.profile:
        profiled(decided, work)
    passed = same and fewer >= options.fewer and statistics.median(faster) >= options.faster
    print(f"bar of {options.fewer:g} times fewer tokens and {options.faster:g} times less time: {passed}")
    return 0 if passed else 1


def profiled(way: Way, work: Labelling) -> None:
    with cProfile.Profile() as profile:
        way.go(work)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    sys.exit(main())
