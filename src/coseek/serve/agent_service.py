"""Agent service: an agent with its retriever, which turns questions into trajectories. Independent of HTTP."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from coseek import __version__
from coseek.agents.drivers import Agent, AsyncDriver, Sampled, Sampling
from coseek.agents.factory import AgentSettings, open_agent
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import EARLIER
from coseek.agents.tag import Action
from coseek.core.errors import CoseekError, RetrieverError
from coseek.core.files import Json, JsonObject, parse_rows
from coseek.core.settings import dump_settings
from coseek.core.text import as_written
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Trajectory
from coseek.models.chat import Message
from coseek.models.model import EpisodeState, Ranking, Request
from coseek.retrieval.index import IndexCard
from coseek.retrieval.retriever import Retriever
from coseek.serve.model_engine import ModelEngine, TextStream
from coseek.serve.service import RefusedRequest, Service, WorkThread
from coseek.serve.settings import AgentServeSettings

RETRY_AFTER_S = 5
_EXAMPLES = 3
"""Number of examples on the page."""
_LONGEST = 90
"""Maximum number of characters of an example, so that it fits one or two lines."""
_SPLITS = ("test", "dev", "train")
_LOOKED_AT = 200
"""Number of questions or passages from which the examples are chosen."""
OnProgress: TypeAlias = Callable[[str, Sequence[Search]], None]
"""Called with newly written text, or with "" and newly answered searches."""


@dataclass(frozen=True)
class QuestionInContext:
    """The question, and the messages before it."""

    question: str
    earlier: tuple[Message, ...] = ()


class AgentService(Service):
    """Serves one agent over one retriever, both opened in the engine's thread."""

    settings: AgentServeSettings

    def __init__(
        self,
        agent: AgentSettings,
        open_retriever: Callable[[], Retriever],
        limits: Limits,
        settings: AgentServeSettings,
        name: str | None = None,
        source: str = "",
    ) -> None:
        """`source` is the retriever's name or path, from which the page's examples come."""
        self.name = name or Path(agent.name).stem or agent.name
        super().__init__(settings, WorkThread("coseek-agent"), self.name)
        self._source = source
        self._examples: list[str] = []
        self.limits = limits
        self.waiting = 0
        """Questions that wait for a row."""
        self.running = 0
        self._settings, self._open_retriever = agent, open_retriever
        self._engine = ModelEngine(self.thread)
        self._free = asyncio.Semaphore(settings.max_rows)
        self._agent: Agent | None = None
        self._retriever: Retriever | None = None
        self._driver: AsyncDriver | None = None

    def _open(self) -> None:
        self._retriever = self._open_retriever()
        self._agent = open_agent(self._settings)
        self._engine.model = self._agent.model
        self._examples = examples_for(self._source, self._retriever.corpus)

    def _counts(self) -> JsonObject:
        rows, faults = self._engine.open_rows, self._engine.faults
        return {"waiting": self.waiting, "running": self.running, "open_rows": rows, "faults": faults}

    def model_entry(self) -> JsonObject:
        """The response of `/v1/models/NAME`."""
        return {"id": self.name, "object": "model", "created": 0, "owned_by": "coseek"}

    def info(self) -> JsonObject:
        agent, retriever = self._require_open()
        identity = ""
        with suppress(RetrieverError):  # of a server that does not answer; searches report it
            identity = retriever.identity
        return {
            "name": self.name,
            "protocol": agent.protocol.name,
            **agent.identities,
            "retriever": retriever.name,
            "retriever_identity": identity,
            "limits": dump_settings(self.limits),
            "coseek": __version__,
            **self._page_settings(agent, retriever),
        }

    def _page_settings(self, agent: Agent, retriever: Retriever) -> JsonObject:
        """What the chat page shows, and how it parses the agent's text."""
        tags: list[Json] = [
            {"open": tag.opening, "close": tag.closing, "kept": tag.action is Action.NONE}
            for tag in agent.protocol.grammar.tags
            if tag.author is Author.AGENT
        ]
        return {
            "agent_name": _last_parts(self._settings.name),
            "index": _last_parts(self._source) or retriever.name,
            "passages": None if retriever.corpus is None else len(retriever.corpus),
            "examples": list(self._examples),
            "documents": self.settings.documents is not None,
            "tags": tags,
            "spelling": agent.protocol.template.file.question_spelling,
        }

    async def close(self) -> None:
        """End the remaining episodes, then the engine."""
        if self._driver is not None:
            await self._driver.__aexit__(None, None, None)
        await super().close()

    async def answer(
        self,
        conversation: QuestionInContext,
        seed: int,
        on_progress: OnProgress | None = None,
        begun: asyncio.Event | None = None,
    ) -> Trajectory:
        """Let the agent answer. Sets `begun` when the question has a row. Raises `RefusedRequest` (503) if too many
        questions wait, or for too long. Cancellation frees the row."""
        await self._wait_for_row()
        self.running += 1
        if begun is not None:
            begun.set()
        try:
            driver = await self._open_driver()
            turns = _Turns(self._engine, on_progress)
            try:
                return await driver.run_episode(self._question(conversation), seed, turns)
            finally:
                turns.close()
        finally:
            self.running -= 1
            self._free.release()

    async def _wait_for_row(self) -> None:
        """Wait for a row. Raises `RefusedRequest` (503) if that takes too long."""
        self.check_ready()
        if self._free.locked() and self.waiting >= self.settings.queue:
            raise self._busy_refusal()
        self.waiting += 1
        try:
            async with asyncio.timeout(self.settings.most_wait_s):
                await self._free.acquire()
        except TimeoutError:
            raise self._busy_refusal() from None
        finally:
            self.waiting -= 1

    def _busy_refusal(self) -> RefusedRequest:
        count = self.waiting + self.running
        return RefusedRequest(503, f"{count} questions are running or waiting already; retry later", RETRY_AFTER_S)

    def check_name(self, name: str | None) -> None:
        """Raise `RefusedRequest` (404) for a name other than the agent's."""
        if name is not None and name != self.name:
            raise RefusedRequest(404, f"{name[:200]!r} is not served here; the agent is {self.name!r}")

    def check_length(self, conversation: QuestionInContext) -> None:
        """Raise `RefusedRequest` (413) for a question that is too long."""
        length, limit = len(conversation.question), self.settings.max_question_chars
        if length > limit:
            raise RefusedRequest(413, f"the question has {length} characters, and at most {limit} are taken")

    def _question(self, conversation: QuestionInContext) -> Question:
        """The question, with the latest earlier messages that fit into the tokens of one observation."""
        encode = self._require_open()[0].model.tokenizer.encode_data
        tokens_left, earlier = self.limits.max_observation_tokens, list[Json]()
        for message in reversed(conversation.earlier):
            if len(message.content) > self.settings.max_question_chars:
                break
            tokens_left -= len(encode(f"{message.role}: {message.content}\n"))
            if tokens_left < 0:
                break
            earlier.append({"role": message.role, "content": message.content})
        return Question("asked", conversation.question, meta={EARLIER: earlier[::-1]} if earlier else {})

    def _require_open(self) -> tuple[Agent, Retriever]:
        self.check_ready()
        assert self._agent is not None and self._retriever is not None
        return self._agent, self._retriever

    async def _open_driver(self) -> AsyncDriver:
        """The driver, which belongs to the event loop."""
        if self._driver is None:
            agent, retriever = self._require_open()
            driver = AsyncDriver(agent.protocol, agent.model.tokenizer, retriever, self.limits)
            self._driver = await driver.__aenter__()
        return self._driver


class _Turns:
    """The turns of one episode. Implements `Generate`, and `Ranking` if the model ranks its evidence."""

    def __init__(self, engine: ModelEngine, on_progress: OnProgress | None) -> None:
        self._engine, self._on_progress = engine, on_progress
        self._keys: set[int] = set()
        self._reported = 0
        """Number of searches that were reported."""

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        self._keys.add(request.key)
        searches = request.state.searches[self._reported :]
        self._reported += len(searches)
        if searches and self._on_progress is not None:
            self._on_progress("", searches)
        if request.key < 0:  # a side context, which has one turn
            turn = await self._engine.turn(request)
            self._engine.close_row(request.key)
        elif self._on_progress is None or self._engine.model is None:
            turn = await self._engine.turn(request)
        else:
            stream = TextStream(self._engine.model.tokenizer)
            turn = await self._engine.turn(request, lambda ids: self._report(stream.add(ids)))
            self._report(stream.rest(turn.ids))
        return Sampled(turn.ids, turn.logprobs, turn.end, turn.version, turn.exact, turn.cost_usd, turn.fault)

    def _report(self, text: str) -> None:
        if text and self._on_progress is not None:
            self._on_progress(text, ())

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        return self._engine.model.evidence(so_far) if isinstance(self._engine.model, Ranking) else None

    def close(self) -> None:
        """Free the rows."""
        for key in self._keys:
            self._engine.close_row(key)


def _last_parts(name: str) -> str:
    """A path's last two parts, which distinguish `runs/a/policy` from `runs/b/policy`; an address unchanged."""
    return name if "://" in name else "/".join(Path(name).parts[-2:])


def examples_for(source: str, corpus: Corpus | None) -> list[str]:
    """Up to three questions for the chat page, as people write them: from the data folder of an index, else about
    titles of its corpus. `source` is the retriever's name or path."""
    texts = list(dict.fromkeys(as_written(question.question).strip() for question in _questions(source)))[:_EXAMPLES]
    if texts or corpus is None:
        return texts
    titles = (as_written(passage.title).strip() for passage in islice(corpus, _LOOKED_AT))
    about_titles = dict.fromkeys(f"What is said about {title}?" for title in titles if title)
    return [text for text in about_titles if len(text) <= _LONGEST][:_EXAMPLES]


def _questions(source: str) -> list[Question]:
    """The first questions of the data folder that an index was made from; empty if the folder is missing."""
    if not source or "://" in source or not (folder := Path(source)).is_dir():
        return []
    with suppress(CoseekError, OSError):
        if corpus_path := IndexCard.read(folder).corpus.path:
            dataset = Dataset((folder / corpus_path).resolve().parent)
            paths = (dataset.split_path(split) for split in _SPLITS if split in dataset.splits)
            return next(filter(None, (list(_short_questions(path)) for path in paths)), [])
    return []


def _short_questions(path: Path) -> Iterator[Question]:
    rows = islice(parse_rows(path, Question.from_json), _LOOKED_AT)  # a training set may hold millions
    return (question for question in rows if len(question.question) <= _LONGEST and question.answerable)
