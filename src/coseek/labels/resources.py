"""Parts: what label makers stand on, opened when it is asked for. What nobody named is refused with a sentence."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.agents.limits import Limits
from coseek.agents.rollout import Agent
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import GradeCache
from coseek.data.passage import Corpus
from coseek.graders.call_counts import CallCounts
from coseek.graders.factory import open_frozen_model
from coseek.labels.score_cache import E, ScoreCache
from coseek.models.text_model import TextModel
from coseek.retrieval.retriever import Retriever
from coseek.world.oracle import Oracle

if TYPE_CHECKING:  # torch
    from coseek.models.likelihood import LocalLikelihood

ORACLE, GOLD = "oracle", "gold"
"""Scorers that are no models: the oracle of a laptop world, and the gold passages of a data set."""


@dataclass(frozen=True)
class AgentWithLimits:
    """An agent with its budgets."""

    agent: Agent
    limits: Limits
    identity: str
    """A digest of all that its turns depend on besides what it reads: weights, protocol, prompt template, sampling."""


@dataclass(frozen=True)
class LabelResources:
    """The retriever, the agent and the frozen models that were named."""

    folder: Path
    """The label folder. Makers keep their sheets in `scores`, and a run of their own in `run`."""
    found_by: Retriever | None = None
    """The current retriever."""
    open_agent: Callable[[], AgentWithLimits] | None = None
    scorer_name: str | None = None
    """`oracle`, `gold`, or a model: a folder, the address of a server, a YAML file."""
    world: Path | None = None
    """The folder of the laptop world whose oracle scores."""
    likelihood_name: str | None = None
    """The folder of a model that says how likely answers are."""
    cache: Path | None = None
    """A SQLite file that remembers what frozen models wrote, whatever the labels."""
    tally: CallCounts = field(default_factory=CallCounts)

    @property
    def retriever(self) -> Retriever:
        if self.found_by is None:
            raise SettingError("these labels need a retriever, whose passages they weigh; name one with --retriever")
        return self.found_by

    @property
    def corpus(self) -> Corpus:
        """What the retriever searches, for passages that it did not find."""
        corpus = self.retriever.corpus
        if corpus is None:
            raise SettingError(
                f"the corpus of the retriever {self.retriever.name!r} is not at hand, and passages that it did not "
                "find are to be put in; use an index of that corpus"
            )
        return corpus

    @property
    def agent(self) -> Agent:
        return self._speaker.agent

    @property
    def limits(self) -> Limits:
        return self._speaker.limits

    @property
    def agent_identity(self) -> str:
        """With the budgets."""
        return digest_of(self._speaker.identity, self.limits.model_dump_json())

    @cached_property
    def _speaker(self) -> AgentWithLimits:
        if self.open_agent is None:
            raise SettingError("these labels need the agent, which goes on from passages; name it with --agent")
        return self.open_agent()

    @property
    def scorer(self) -> str:
        """`oracle`, `gold` or a model's name."""
        if self.scorer_name is None:
            raise SettingError(
                "these labels need somebody who scores passages; name with --scorer a model (a folder, a URL, a YAML "
                "file), `oracle` for questions of a laptop world, or `gold` for questions with gold passages"
            )
        return self.scorer_name

    @cached_property
    def oracle(self) -> Oracle:
        if self.world is None:
            raise SettingError(
                "there is no world.json beside the questions, so there is no oracle; name a laptop world's folder "
                "with --scorer, or a model"
            )
        return Oracle.load(self.world)

    @cached_property
    def writer(self) -> TextModel:
        """The scorer as a model that writes texts, always the likeliest one."""
        if self.scorer in (ORACLE, GOLD):
            raise SettingError(f"--scorer {self.scorer} is no model, and these labels need one that writes")
        return open_frozen_model(self.scorer, self.cache)

    @cached_property
    def likelihood(self) -> "LocalLikelihood":
        if self.likelihood_name is None:
            raise SettingError(
                "these labels need a model that says how likely an answer is; name its folder with --likelihood"
            )
        from coseek.models.likelihood import open_likelihood  # torch

        return open_likelihood(self.likelihood_name)

    def sheet(self, name: str, kind: type[E], identity: str, card: JsonObject) -> ScoreCache[E]:
        """The sheet of a part in `scores`, read; parts that differ in anything have different ones."""
        path = self.folder / "scores" / f"{name}.{digest_of(identity)[:16]}.jsonl"
        return ScoreCache(GradeCache(path, kind, identity, card))
