"""Shared by tests of protocols: a model that writes given turns, a retriever that fails for some queries."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import yaml

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import FOLDER, Protocol, load_protocol
from coseek.agents.scripted_agent import Move, ScriptedAgent
from coseek.core.errors import RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.models.model import EpisodeState, Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.run_checks import Derivation
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever, Retriever

ADA = Passage("p1", "Ada", "Ada Lovelace was born in 1815.")
BOB = Passage("p2", "Bob", "Bob is a cat.")
EVE = Passage("p3", "Eve", "Eve knows Bob.")
CORPUS = Corpus([ADA, BOB, EVE])
RESULTS = {"Ada": ["p1", "p2"], "Bob": ["p2", "p1"], "Eve": ["p3"], "none": []}
QUESTION = Question("q1", "When was Ada born ?", ("1815",))
WIDE = Limits(max_turns=6, passages_per_search=3, max_turn_tokens=4000, max_observation_tokens=4000, max_tokens=60000)
OURS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
LOOPS = [name for name in OURS if not name.endswith("-paper") or name == "react-paper"]
"""Those that differ in more than their limits, and one with a last word."""


class Shelf(FixedRetriever):
    """Returns listed results; the question finds Ada; queries with `bad` fail. Remembers its queries."""

    def __init__(self, corpus: Corpus = CORPUS, results: dict[str, list[str]] | None = None) -> None:
        super().__init__(corpus, {QUESTION.question: ["p1", "p2"], **(RESULTS if results is None else results)})
        self.asked: list[QueryLike] = []

    def fit(self, protocol: Protocol) -> "Shelf":
        """Call itself a retriever of the kind that the protocol is meant for."""
        self.name = (protocol.file.retrievers or (self.name,))[0]
        return self

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.asked += queries
        if any("bad" in self.seen(query) for query in queries):
            raise RetrieverError("the disk is gone")
        return super().search(queries, k)


class Typist:
    """Writes its turns in order, and its notes in side contexts. Text after a stop string is kept."""

    def __init__(
        self, tokenizer: Tokenizer, turns: Sequence[str], notes: str = "noted", note_end: TurnEnd = TurnEnd.EOS
    ):
        self.tokenizer = tokenizer
        self.turns, self.notes, self.note_end = turns, notes, note_end
        self.count: dict[int, int] = {}
        self.waiting: list[Request] = []
        self.read: dict[int, tuple[int, ...]] = {}

    def start(self, request: Request) -> None:
        assert request.key not in self.count
        self.count[request.key], self.read[request.key] = 0, ()
        self.extend(request)

    def extend(self, request: Request) -> None:
        self.read[request.key] += request.ids
        self.waiting.append(request)

    def step(self) -> list[Turn]:
        requests, self.waiting = self.waiting, []
        return [self._write(request) for request in requests]

    def _write(self, request: Request) -> Turn:
        number, self.count[request.key] = self.count[request.key], self.count[request.key] + 1
        text = self.notes if request.state.side_searches else self.turns[min(number, len(self.turns) - 1)]
        ids = tuple(self.tokenizer.encode(text))[: request.max_tokens]
        end = self.note_end if request.state.side_searches else TurnEnd.STOP
        end = TurnEnd.LENGTH if len(ids) == request.max_tokens else end
        if end is TurnEnd.FAULT:
            return Turn(request.key, (), (), end, "out of memory")
        self.read[request.key] += ids
        return Turn(request.key, ids, (-0.5,) * len(ids), end)

    def close(self, key: int) -> None:
        self.count.pop(key, None)


def typist(protocol: Protocol, *turns: str, notes: str = "noted", note_end: TurnEnd = TurnEnd.EOS) -> Typist:
    return Typist(ByteTokenizer(protocol.grammar.special_tokens), turns, notes, note_end)


def play(
    name: str,
    *turns: str,
    limits: Limits = WIDE,
    retriever: Shelf | None = None,
    model: Typist | None = None,
    notes: str = "noted",
    note_end: TurnEnd = TurnEnd.EOS,
) -> Trajectory:
    """One question under a protocol, with a model that writes these turns."""
    protocol = load_protocol(name, "default", run_files=True)
    model = model or typist(protocol, *turns, notes=notes, note_end=note_end)
    trajectory = rollout(Agent(protocol, model), (retriever or Shelf()).fit(protocol), [QUESTION], [7], limits)[0]
    assert not model.count, "a row was left open in the model"
    return trajectory


def moves_of(
    agent: ScriptedAgent, question: Question, index: Retriever, k: int, seed: int = 0
) -> tuple[list[Move], tuple[Search, ...]]:
    """The moves of a scripted agent without a driver, up to its answer, and its searches."""
    moves: list[Move] = []
    searches: tuple[Search, ...] = ()
    while not moves or moves[-1].answer is None:
        rng = random.Random(f"{seed} {question.id} {len(searches)}")
        moves.append(agent.write(EpisodeState(question, searches), rng))
        hit_lists = zip(moves[-1].queries, index.search(moves[-1].queries, k), strict=True)
        searches += tuple(Search(query.strip(), tuple(hits), turn=len(moves)) for query, hits in hit_lists)
    return moves, searches


def assert_sound(
    trajectory: Trajectory, protocol: Protocol, tokenizer: Tokenizer | None = None, limits: Limits = WIDE
) -> None:
    """The trajectory can be restored from its file, and the audit, which derives it again, finds no fault."""
    tokenizer = tokenizer or ByteTokenizer(protocol.grammar.special_tokens)
    assert Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))) == trajectory
    assert list(check_trajectory(trajectory, tokenizer.decode)) == []
    assert list(Derivation(protocol, tokenizer, limits, own_ranking=False).differences(trajectory)) == []


def observations(trajectory: Trajectory) -> list[str]:
    """The environment's texts after the prompt."""
    return [segment.text for segment in trajectory.segments[1:] if segment.author == "environment"]


SCRIPTS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_name("scripts.yaml").read_text(encoding="utf-8"))


def script(name: str) -> tuple[str, ...]:
    """Turns of a complete, valid run of a protocol: it searches Ada if it can, and answers 1815."""
    return tuple(SCRIPTS[Path(name).stem.removesuffix("-code").removesuffix("-paper").removesuffix("-search")])
