"""The driver: how runs end, how faults are recorded, and that searching while the model writes changes nothing."""

import asyncio
import gc
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from tests.agents.playing import CORPUS, LOOPS, QUESTION, WIDE, Shelf, Typist, play, script, typist
from tests.agents.test_tools import ECHO, tool, with_tool
from tests.models.networks import network

from coseek.agents.branching import Branching
from coseek.agents.drivers import Agent, AsyncDriver, Generate, Sampled, Sampling, rollout
from coseek.agents.episode import Episode
from coseek.agents.factory import open_agent, settings_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.scripted_agent import Move, ScriptedAgentModel
from coseek.agents.tag import NOT_FOUND
from coseek.core.errors import ModelError, RetrieverError, SettingError
from coseek.core.files import json_line
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.models.model import EpisodeState, Model, Request, Turn, TurnEnd
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


@pytest.mark.medium
def test_a_run_ends_at_its_token_budget_and_nothing_is_cut() -> None:
    whole = play("search-r1", SEARCH, ANSWER)
    ends = [*accumulate(len(segment.ids) for segment in whole.segments)]
    near = {end + more for end in ends[:-1] for more in (-1, 0, 1)}
    for budget in (*near, *range(1, ends[-1], 50), ends[-1]):
        run = play("search-r1", SEARCH, ANSWER, limits=WIDE.model_copy(update={"max_tokens": budget}))
        assert len(run.ids) <= max(budget, len(whole.segments[0].ids))
        assert run.ids == whole.ids[: len(run.ids)]
        assert run.stop is (StopReason.ANSWERED if budget == len(whole.ids) else StopReason.TOKEN_LIMIT)


# --- searches while the model writes


class Guarded(FixedRetriever):
    """A retriever that records the threads that call it, and fails for two at the same time."""

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
    """Searches a random number of times, so that rows diverge."""

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


class Broken(Shelf):
    """A retriever with a bug."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        raise ZeroDivisionError


def test_an_error_of_the_searching_thread_reaches_the_caller_and_leaves_no_row_open() -> None:
    model = typist(PROTOCOL, SEARCH)
    with pytest.raises(ZeroDivisionError):
        rollout(Agent(PROTOCOL, model), Broken(), [QUESTION], [0], WIDE, overlap=True)
    assert model.count == {}


# --- rows of the model


class Eager(Sampler):
    """A sampler over random weights whose sampled tokens are put into search tags, so that every turn searches."""

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


@pytest.mark.medium
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


# --- episodes as coroutines: the ledger is that of the batch driver, whatever the order, the fault or the interruption


TIGHT = Limits(max_turns=3, max_turn_tokens=400, max_observation_tokens=300, max_tokens=3000)


def protocol_of(name: str) -> Protocol:
    return load_protocol(name, run_files=True)


class OneRow:
    """The engine of one episode over a shared batch model. Samples each turn alone, after up to three steps of other
    coroutines."""

    def __init__(self, model: Model, version: int | None = None):
        self.model, self.version = model, version
        self.read: dict[int, tuple[int, ...]] = {}

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        for _ in range(1 + random.Random(f"{request.seed}/{len(ids)}").randrange(3)):
            await asyncio.sleep(0)
        (self.model.extend if request.key in self.read else self.model.start)(request)
        self.read[request.key] = self.read.get(request.key, ()) + request.ids
        assert tuple(ids) == self.read[request.key], "the context is not what the model has read and written"
        assert (sampling.max_tokens, sampling.seed) == (request.max_tokens, request.seed)
        (turn,) = self.model.step()
        self.read[request.key] += turn.ids
        if request.key < 0:
            self.model.close(request.key)
            del self.read[request.key]
        return Sampled(turn.ids, turn.logprobs, turn.end, self.version, turn.exact, turn.cost_usd, fault=turn.fault)


class Improviser(Typist):
    """Writes turns drawn by a row's seed and tokens: valid, broken and long turns, and faults."""

    def __init__(self, protocol: Protocol, *more: str) -> None:
        super().__init__(ByteTokenizer(protocol.grammar.special_tokens), ())
        good = script(protocol.name)
        self.texts = [*good * 4, *(text.replace("Ada", "a bad one") for text in good), "".join(good)]
        self.texts += [text.replace("1815", NOT_FOUND) for text in good if "1815" in text]
        self.texts += [text.replace("Ada", "Eve") for text in good] + ["hm", "", "</think>", "x" * 999, *more]
        if "visit" in protocol.grammar.tools:  # `id` and `url` in the two protocols that have it
            page = good[0].replace('"search"', '"visit"').replace('"query": "Ada"', '"id": "p1", "url": "p1"')
            self.texts += [page, page, page.replace("p1", "p9")]

    def _write(self, request: Request) -> Turn:
        rng = random.Random(f"{request.seed}/{len(self.read[request.key])}")
        ids = tuple(self.tokenizer.encode("noted" if request.state.side_searches else rng.choice(self.texts)))
        written = ids[: request.max_tokens]
        self.read[request.key] += written
        logprobs = tuple(-rng.random() for _ in written)
        if rng.random() < 0.03:
            return Turn(request.key, written[:2], logprobs[:2], TurnEnd.FAULT, "out of memory")
        end = TurnEnd.LENGTH if len(written) == request.max_tokens else TurnEnd.STOP
        cost = None if rng.random() < 0.01 else 1e-3
        return Turn(request.key, written, logprobs, end, exact=rng.random() > 0.05, cost_usd=cost)


def check_ledgers(protocol: Protocol, *more: str) -> list[Trajectory]:
    """The ledgers of both drivers are equal, without wall times. Returns the runs."""
    questions = [replace(QUESTION, id=f"q{number}") for number in range(40)]
    agent = Agent(protocol, Improviser(protocol, *more))
    runs = rollout(agent, Shelf().fit(protocol), questions, range(40), TIGHT)

    async def play_all() -> list[Trajectory]:
        model = Improviser(protocol, *more)
        async with AsyncDriver(protocol, model.tokenizer, Shelf().fit(protocol), TIGHT) as driver:
            rows = enumerate(questions)
            return await asyncio.gather(*(driver.run_episode(question, row, OneRow(model)) for row, question in rows))

    batch, played = ([replace(run, timings={}) for run in each] for each in (runs, asyncio.run(play_all())))
    assert [json_line(run.to_json()) for run in played] == [json_line(run.to_json()) for run in batch]
    return runs


@pytest.mark.medium
@pytest.mark.parametrize("name", LOOPS, ids=lambda name: Path(name).stem)
def test_the_async_driver_writes_the_ledger_of_the_batch_driver(name: str) -> None:
    check_ledgers(protocol_of(name))


def test_a_users_own_tool_and_a_page_that_is_opened_are_run_as_in_a_batch(tmp_path: Path) -> None:
    source = ECHO.replace('request.arguments["text"]', '9 // len(request.arguments["text"])')
    source = source.replace("return result", "return str(result)")
    protocol = protocol_of(with_tool(tmp_path, source))
    calls = [tool("mine", text=text) for text in ("", "a", "ab")]
    runs = check_ledgers(protocol, *calls * 3)
    tags = {segment.tag for run in runs for segment in run.segments}
    assert {"page", "missing", "tool"} <= tags and StopReason.TOOL_ERROR in {run.stop for run in runs}


# --- faults


async def episode_of(
    generate: Generate, shelf: Shelf | None = None, *, name: str = "search-r1", timeout_s: float | None = None
) -> Trajectory:
    protocol = protocol_of(name)
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    async with AsyncDriver(protocol, tokenizer, shelf or Shelf(), WIDE, timeout_s=timeout_s) as driver:
        return await driver.run_episode(QUESTION, 7, generate)


class Failing:
    """Writes a first turn that searches, then returns or raises something else; `None`: waits for a minute."""

    def __init__(self, instead: Sampled | BaseException | None) -> None:
        self.good = OneRow(typist(protocol_of("search-r1"), *script("search-r1")))
        self.instead = instead

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        if not self.good.read:
            return await self.good(ids, sampling=sampling, request=request)
        if isinstance(self.instead, Sampled):
            return self.instead
        await asyncio.sleep(0 if self.instead else 60)
        raise self.instead or AssertionError


@pytest.mark.parametrize(
    ("instead", "detail"),
    [
        (ModelError("the server is gone"), "the server is gone"),
        (KeyError("a lone \ud800"), "KeyError: 'a lone \\ud800'"),
        (asyncio.CancelledError(), "the engine cancelled the turn"),
        (None, "no turn within 0.05 s"),
        (Sampled((1, 2), (-1.0,), TurnEnd.STOP), "the engine returned 2 token ids and 1 log-probabilities"),
        (Sampled((1,) * 4001, (0.0,) * 4001, TurnEnd.LENGTH), "the engine wrote 4001 tokens, but at most 4000"),
        (Sampled((1,), (float("nan"),), TurnEnd.STOP), "a log-probability or a cost that is no finite number"),
    ],
)
def test_a_fault_of_the_engine_is_recorded_with_what_came_before_it(
    instead: Sampled | BaseException | None, detail: str
) -> None:
    run = asyncio.run(episode_of(Failing(instead), timeout_s=None if instead else 0.05))
    assert run.stop is StopReason.MODEL_ERROR and detail in run.stop_detail
    assert [segment.tag for segment in run.segments] == ["prompt", "search", "information"] and run.searches
    assert Trajectory.from_json(run.to_json()) == run


def test_a_bug_of_a_part_is_raised_and_hangs_no_episode() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(episode_of(OneRow(typist(PROTOCOL, *script("search-r1"))), Broken()))


# --- cancellation


class Slow(Shelf):
    """A retriever that answers once `may_end` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.begun.set()
        assert self.may_end.wait(10)
        return super().search(queries, k)


def test_a_cancelled_episode_leaves_nothing_and_costs_no_other_its_result() -> None:
    protocol, shelf, before = protocol_of("search-r1"), Slow(), open_episodes()
    engines = [OneRow(typist(protocol, *script("search-r1"))) for _ in range(3)]

    async def play() -> Trajectory:
        async with AsyncDriver(protocol, engines[0].model.tokenizer, shelf, WIDE) as driver:
            tasks = []
            for engine in engines:
                tasks.append(asyncio.create_task(driver.run_episode(QUESTION, 7, engine)))
                await asyncio.to_thread(shelf.begun.wait, 10)
            while len(driver._results) < len(tasks):
                await asyncio.sleep(0)
            assert open_episodes() == before + len(tasks)
            for task in tasks[:2]:  # the search of the first is running, and that of the second waits for it
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            shelf.may_end.set()
            return await tasks[2]

    assert asyncio.run(play()).answer == "1815"
    assert len(shelf.asked) == 2  # the waiting call was never made
    assert open_episodes() == before


def open_episodes() -> int:
    gc.collect()
    return sum(isinstance(thing, Episode) for thing in gc.get_objects())


def test_a_cancelled_turn_is_no_fault_of_the_engine() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(episode_of(Failing(None)), 0.1))


# --- versions


def test_the_version_that_sampled_a_turn_stands_in_the_ledger() -> None:
    engine = OneRow(typist(protocol_of("search-o1"), *script("search-o1")), version=3)
    run = asyncio.run(episode_of(engine, name="search-o1"))
    written = [*run.segments, *run.side_contexts[0]]
    assert {segment.version for segment in written if segment.logprobs} == {3}
    assert {segment.version for segment in written if not segment.logprobs} == {None}
    assert Trajectory.from_json(run.to_json()) == run
