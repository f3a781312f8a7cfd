"""The driver: what ends a run, what a fault costs, and that searching while the model writes changes nothing."""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.agents.playing import CORPUS, QUESTION, WIDE, Shelf, play, script, typist
from tests.models.networks import network

from coseek.agents.branching import Branching
from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import open_agent, settings_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted_agent import Move, ScriptedAgentModel
from coseek.core.errors import RetrieverError, SettingError
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import StopReason
from coseek.models.model import EpisodeState, Request, Turn, TurnEnd
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever

PROTOCOL = load_protocol("search-r1", "laptop")
TOKENIZER = ByteTokenizer(PROTOCOL.grammar.special_tokens)
SEARCH, ANSWER = script("search-r1")


def test_only_what_the_agent_wrote_is_marked_as_the_agents() -> None:
    run = play("search-r1", SEARCH, ANSWER)
    written = [token for token, agent in zip(run.ids, run.agent_mask, strict=True) if agent]
    assert TOKENIZER.decode(written) == SEARCH + ANSWER


def test_one_search_too_many_ends_the_run_at_the_turn_limit() -> None:
    run = play("search-r1", SEARCH, SEARCH, SEARCH, limits=WIDE.model_copy(update={"max_turns": 2}))
    assert run.stop is StopReason.TURN_LIMIT and len(run.searches) == 2 and run.truncated


def test_a_run_ends_at_its_token_budget_and_nothing_is_cut() -> None:
    whole = play("search-r1", SEARCH, ANSWER)
    for budget in range(1, len(whole.ids) + 1):
        run = play("search-r1", SEARCH, ANSWER, limits=WIDE.model_copy(update={"max_tokens": budget}))
        assert len(run.ids) <= max(budget, len(whole.segments[0].ids))
        assert run.ids == whole.ids[: len(run.ids)]
        assert run.stop is (StopReason.ANSWERED if budget == len(whole.ids) else StopReason.TOKEN_LIMIT)


def test_a_turn_without_an_action_is_invalid() -> None:
    run = play("search-r1", "<think> I wonder")
    assert (run.stop, run.valid, run.format_error) == (StopReason.INVALID, False, "<think> is not closed")


# --- searches while the model writes


class Guarded(FixedRetriever):
    """A retriever that notes which threads call it, and would notice two at once."""

    def __init__(self) -> None:
        super().__init__(CORPUS, {})
        self.threads: set[str] = set()
        self.busy = threading.Lock()

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        assert self.busy.acquire(blocking=False)
        self.threads.add(threading.current_thread().name)
        self.busy.release()
        if any("7" in self.seen(query) for query in queries):
            raise RetrieverError("the line is down")
        return [[Hit(CORPUS.by_id("p1" if len(self.seen(query)) % 2 else "p2"), 1.0)] for query in queries]


class Wanderer:
    """Searches as often as its own randomness says, so that rows drift apart."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        if rng.random() < 0.4:
            return Move(" it says so", answer=" 1815")
        return Move(" why", (f" {so_far.question.id} {rng.randint(0, 99)}",))


@pytest.mark.parametrize("name", ["search-r1", "rag", "search-o1"])
def test_searching_while_the_model_writes_changes_no_run(name: str) -> None:
    protocol = load_protocol(name, "laptop")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    questions = [Question(str(n), f"question {n}") for n in range(30)]
    limits = Limits(max_tokens=2000, passages_per_search=2)
    both = []
    for overlap in (False, True):
        guarded = Guarded()
        agent = Agent(protocol, ScriptedAgentModel(Wanderer(), protocol, tokenizer))
        runs = rollout(agent, guarded, questions, range(30), limits, concurrency=7, overlap=overlap)
        both.append([replace(run, timings={}) for run in runs])
        assert all(thread.startswith("coseek-search") is overlap for thread in guarded.threads)
    assert both[0] == both[1]
    assert {StopReason.RETRIEVER_ERROR, StopReason.ANSWERED} <= {run.stop for run in both[0]}


def test_an_error_of_the_searching_thread_reaches_the_caller_and_leaves_no_row_open() -> None:
    class Buggy(Shelf):
        def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
            raise ZeroDivisionError("a bug, not a fault of the retriever")

    model = typist(PROTOCOL, SEARCH)
    with pytest.raises(ZeroDivisionError):
        rollout(Agent(PROTOCOL, model), Buggy(), [QUESTION], [0], WIDE, overlap=True)
    assert model.count == {}


# --- rows of the model


class Eager(Sampler):
    """A sampler over random weights whose every turn is read as a search, by words added behind what was sampled."""

    def step(self, most_tokens: int | None = None) -> list[Turn]:
        return [self._searching(turn) for turn in super().step(most_tokens)]

    def _searching(self, turn: Turn) -> Turn:
        close, opening = (TOKENIZER.encode(f"<{slash}search>")[0] for slash in ("/", ""))
        ids = (opening, *(65 + token % 26 for token in turn.ids), close)
        return replace(turn, ids=ids, logprobs=(0.0, *turn.logprobs, 0.0), end=TurnEnd.STOP)


def test_no_more_rows_are_open_than_the_model_has() -> None:
    """A run that waits for its search keeps its row."""

    class Counted(Eager):
        most = 0
        keys: frozenset[int] = frozenset()

        def start(self, request: Request) -> None:
            self.keys |= {request.key}
            self.most = max(self.most, len(self.keys))
            super().start(request)

        def close(self, key: int) -> None:
            self.keys -= {key}
            super().close(key)

    model = Counted(network("lfm2"), TOKENIZER, PROTOCOL.grammar.stops, SamplerSettings(max_rows=3))
    limits = Limits(max_turns=1, max_turn_tokens=4, max_tokens=2000, passages_per_search=1)
    questions = [Question(str(number), "?") for number in range(8)]
    runs = rollout(Agent(PROTOCOL, model), Shelf(), questions, range(8), limits)
    assert model.most == 3 and all(len(run.searches) == 1 for run in runs)


def test_episodes_whose_caches_do_not_fit_in_memory_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = []
    for gib in (64.0, 0.5, 0.0):
        monkeypatch.setattr("coseek.agents.factory.memory_gib", lambda device, gib=gib: gib)
        model = open_agent(settings_for("base")).model
        assert isinstance(model, Sampler)
        rows.append(model.max_rows)
    assert rows[0] == 256 > rows[1] > rows[2] == 2


def test_a_protocol_with_notes_says_that_it_needs_two_rows() -> None:
    protocol = load_protocol("search-o1")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    one_row = Agent(protocol, Sampler(network("lfm2"), tokenizer, protocol.grammar.stops, SamplerSettings(max_rows=1)))
    with pytest.raises(SettingError, match=r"search-o1 .* has 1 row; raise max_rows .* and cache_gib"):
        rollout(one_row, Shelf(), [QUESTION], [0], WIDE)
    with pytest.raises(SettingError, match="raise max_rows"):
        Branching(one_row, Shelf(), WIDE, lambda wait: None, lambda branch, run: None)
