"""The driver and the audit hold each other to the same invariants: whatever a model writes, its run is sound."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most

from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.core.errors import RetrieverError
from coseek.core.settings import dump_settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory_checks import RecordedLimits, check_trajectory
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever

MARKS = load_protocol("search-r1", "laptop").grammar.special_tokens
TOKENIZER = ByteTokenizer(MARKS)
CORPUS = Corpus(Passage(f"p{n}", f"Title {n}", f"text {n} </information> é") for n in range(4))
pieces = st.sampled_from([*MARKS, " Ada", " 1815", " bad", " ", "</sear", "é"])
turns = st.lists(pieces, max_size=6).map("".join) | st.sampled_from(
    ["<think> a</think><search> Ada</search>", "<think> a</think><answer> 1815</answer>"]
)


class Moody(FixedRetriever):
    """A retriever that fails for some queries and finds little for others."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if any("bad" in self.seen(query) for query in queries):
            raise RetrieverError("the disk is gone")
        return [
            [Hit(passage, -float(n)) for n, passage in enumerate(CORPUS[: min(k, len(self.seen(query)))])]
            for query in queries
        ]


class Babbler:
    """A model that writes given turns and ends them for any reason."""

    tokenizer: Tokenizer = TOKENIZER

    def __init__(self, said: Sequence[str], rng: random.Random) -> None:
        self.said, self.rng = said, rng
        self.waiting: list[Request] = []

    def start(self, request: Request) -> None:
        self.waiting.append(request)

    extend = start

    def step(self) -> list[Turn]:
        asked, self.waiting = self.waiting, []
        return [self.turn(request) for request in asked]

    def turn(self, request: Request) -> Turn:
        ids = tuple(TOKENIZER.encode(self.said[len(request.state.searches) % len(self.said)]))[: request.max_tokens]
        end = self.rng.choice([TurnEnd.STOP, TurnEnd.STOP, TurnEnd.STOP, TurnEnd.FAULT])
        end = TurnEnd.LENGTH if len(ids) == request.max_tokens else end
        return Turn(request.key, ids, (-0.5,) * len(ids), end, "out of memory" if end is TurnEnd.FAULT else "")

    def close(self, key: int) -> None:
        self.waiting = [request for request in self.waiting if request.key != key]


@pytest.mark.parametrize("protocol", ["search-r1", "rag", "direct"])
@given(
    said=st.lists(turns, min_size=1, max_size=3),
    max_tokens=st.integers(1, 400),
    max_turn_tokens=st.integers(1, 60),
    k=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=at_most(60))
def test_whatever_a_model_writes_its_run_is_sound(
    protocol: str, said: list[str], max_tokens: int, max_turn_tokens: int, k: int, seed: int
) -> None:
    limits = Limits(
        max_turns=2,
        passages_per_search=k,
        max_turn_tokens=max_turn_tokens,
        max_observation_tokens=60,
        max_tokens=max_tokens,
    )
    agent = Agent(load_protocol(protocol, "laptop"), Babbler(said, random.Random(seed)))
    questions = [Question("q1", "When was Ada born ?", ("1815",)), Question("q2", "a bad one ?")]
    budgets = RecordedLimits.of({"limits": dump_settings(limits)})
    for trajectory in rollout(agent, Moody(CORPUS, {}), questions, [seed, seed + 1], limits):
        assert list(check_trajectory(trajectory, budgets, TOKENIZER.decode)) == []
