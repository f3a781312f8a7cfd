"""Label resources: retriever, agent and frozen models of label makers, opened at first use. One that the user did not
name raises `SettingError` with the option that names it."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from coseek.agents.drivers import Agent
from coseek.agents.limits import Limits
from coseek.agents.search_turns import SearchTurn
from coseek.core.concurrency import WorkAhead, concurrency_of
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.settings import make_settings
from coseek.data.grade_cache import GradeCache
from coseek.data.passage import Corpus, Hit
from coseek.graders.factory import open_frozen_model, open_judge
from coseek.graders.grading import BATCH
from coseek.graders.judge import Judge, JudgeSettings
from coseek.graders.structured_output import CallCounts
from coseek.hardware.placement import Placement
from coseek.labels.label_folder import E, ScoreCache
from coseek.labels.label_set import Candidates, find_candidates
from coseek.models.likelihood import LikelihoodModel, LikelihoodSettings, open_likelihood
from coseek.models.model import ServedModel
from coseek.models.text_model import TextModel, TextModelSettings, named_server
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever, Retriever

ORACLE, GOLD = "oracle", "gold"
"""Scorers without a model: the oracle of a laptop world, and the gold passages of a data set."""
T = TypeVar("T")


@dataclass(frozen=True)
class AgentWithLimits:
    """An agent and its limits."""

    agent: Agent
    limits: Limits
    identity: str
    """A digest of everything that its turns depend on besides its context: weights, protocol, prompt, sampling."""


@dataclass(frozen=True)
class LabelResources:
    """The retriever, the agent and the frozen models."""

    folder: Path
    """The label folder. Makers keep caches in `scores`, and a run of their own in `run`."""
    found_by: Retriever
    """The current retriever."""
    open_agent: Callable[[], AgentWithLimits] | None = None
    scorer_name: str | None = None
    """`oracle`, `gold`, or a model: a folder, the address of a server, a YAML file."""
    world: Path | None = None
    """The folder of the laptop world whose oracle scores."""
    likelihood_name: str | None = None
    """A model that computes answer likelihoods: a folder, the address of a server, a YAML file."""
    placement: Placement = field(default_factory=Placement)
    """Placement of these two, where they are model folders."""
    cache: Path | None = None
    """A SQLite file that caches the outputs of frozen models, independent of labels."""
    tally: CallCounts = field(default_factory=CallCounts)
    _closing: list[Callable[[], None]] = field(default_factory=list, repr=False, compare=False)

    @cached_property
    def retriever(self) -> Retriever:
        """The current retriever, which can be searched from several threads."""
        return self.found_by if hasattr(self.found_by, "concurrency") else LockedRetriever(self.found_by)

    @property
    def corpus(self) -> Corpus:
        """The corpus of the retriever, for passages that it did not return."""
        corpus = self.retriever.corpus
        if corpus is None:
            raise SettingError(
                f"the corpus of the retriever {self.retriever.name!r} is unknown, but passages that it did not "
                "return must be added; use an index of that corpus"
            )
        return corpus

    @property
    def agent(self) -> Agent:
        return self._agent_with_limits.agent

    @property
    def limits(self) -> Limits:
        return self._agent_with_limits.limits

    @property
    def agent_identity(self) -> str:
        """A digest of the agent and its limits."""
        return digest_of(self._agent_with_limits.identity, self.limits.model_dump_json())

    @cached_property
    def _agent_with_limits(self) -> AgentWithLimits:
        return _require(self.open_agent, "the agent, which continues from passages; name it with --agent")()

    @property
    def scorer(self) -> str:
        """`oracle`, `gold` or a model's name."""
        return _require(
            self.scorer_name,
            "a scorer of passages; name with --scorer a model (a folder, a URL, a YAML file), `oracle` for questions "
            "of a laptop world, or `gold` for questions with gold passages",
        )

    @property
    def oracle_world(self) -> str:
        """The folder of the laptop world whose oracle scores. Raises `SettingError` without one."""
        if self.world is None:
            raise SettingError(
                "there is no world.json beside the questions, so there is no oracle; name a laptop world's folder "
                "with --scorer, or a model"
            )
        return str(self.world)

    @cached_property
    def writer(self) -> TextModel:
        """The scorer as a text model with greedy decoding."""
        if self.scorer in (ORACLE, GOLD):
            raise SettingError(f"--scorer {self.scorer} is no model; these labels need a language model")
        return open_frozen_model(self.scorer, self.text_cache(self.scorer), self._model_settings)

    def judge(self, name: str) -> Judge:
        """The judge of answers, placed as the scorer is."""
        return open_judge(JudgeSettings(model=name), self.text_cache(name), self._model_settings)

    @property
    def _model_settings(self) -> TextModelSettings:
        return make_settings(TextModelSettings, self.placement.values())

    def text_cache(self, name: str) -> Path | None:
        """The cache of a model's texts. A server has one in any case: equal prompts of different turns are paid for
        once, and a kill loses no text that had arrived."""
        own_cache = self.folder / "scores" / "texts.sqlite" if named_server(name) is not None else None
        return self.cache or own_cache

    @cached_property
    def likelihood(self) -> LikelihoodModel:
        name = _require(
            self.likelihood_name,
            "a model that says how likely an answer is; name with --likelihood its folder, or a server (a URL, a YAML "
            "file)",
        )
        return open_likelihood(name, make_settings(LikelihoodSettings, self.placement.values()))

    def ahead(
        self, work: Callable[[list[SearchTurn]], T], turns: Iterable[SearchTurn], slowest: object, wakes: bool = False
    ) -> WorkAhead[list[SearchTurn], T]:
        """Apply `work` to the turns, run by run: ahead in threads if its `slowest` part is a server, else in batches of
        at least `BATCH` turns when results are taken. With `wakes`, each result wakes the agent's model."""
        threads = concurrency_of(slowest)
        model = self.agent.model if wakes else None
        wake = model.wake if isinstance(model, ServedModel) else lambda: None
        return WorkAhead(work, by_trajectory(turns, BATCH if threads == 1 else 1), threads, wake)

    def each(
        self, work: Callable[[list[SearchTurn]], list[T]], turns: Iterable[SearchTurn], slowest: object
    ) -> Iterator[T]:
        """Yield the rows that `work` returns for the turns, computed `ahead`."""
        with self.ahead(work, turns, slowest) as ahead:
            for batch in ahead:
                yield from batch

    def each_searched(
        self, label: Callable[[SearchTurn, Candidates], Iterable[T]], turns: Iterable[SearchTurn], k: int
    ) -> Iterator[T]:
        """Yield the rows that `label` makes of each turn and its `k` best passages. A turn whose search fails is
        skipped and counted; the next start repeats it."""

        def rows(batch: list[SearchTurn]) -> list[T]:
            pairs = zip(batch, find_candidates(self.retriever, batch, k, self.tally), strict=True)
            return [row for turn, candidates in pairs if candidates is not None for row in label(turn, candidates)]

        return self.each(rows, turns, self.retriever)

    def score_cache(self, name: str, kind: type[E], identity: str, card: JsonObject) -> ScoreCache[E]:
        """The cache of a grader in `scores`; graders with different identities have different files."""
        path = self.folder / "scores" / f"{name}.{digest_of(identity)[:16]}.jsonl"
        cache = ScoreCache(GradeCache(path, kind, identity, card))
        self._closing.append(cache.close)
        return cache

    def close(self) -> None:
        """Close the caches, which releases their locks."""
        for close in self._closing:
            close()


def by_trajectory(turns: Iterable[SearchTurn], size: int) -> Iterator[list[SearchTurn]]:
    """Batches of at least `size` turns, except the last; the turns of one run stay together."""
    batch: list[SearchTurn] = []
    for turn in turns:
        if len(batch) >= size and turn.trajectory is not batch[-1].trajectory:
            yield batch
            batch = []
        batch.append(turn)
    if batch:
        yield batch


def _require(resource: T | None, noun: str) -> T:
    """A part that was named. Raises `SettingError` with what is needed and how to name it."""
    if resource is None:
        raise SettingError(f"these labels need {noun}")
    return resource


class LockedRetriever(LayeredRetriever):
    """The other retriever under its own name and identity, searched by one thread at a time."""

    def __init__(self, over: Retriever) -> None:
        super().__init__(over)
        self.name, self._lock = over.name, threading.Lock()

    @property
    def identity(self) -> str:
        return self.over.identity

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        with self._lock:
            return self.over.search(queries, k)
