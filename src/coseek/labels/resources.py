"""Label resources: retriever, agent and frozen models of label makers, opened at first use. One that the user did not
name raises `SettingError` with the option that names it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from coseek.agents.limits import Limits
from coseek.agents.rollout import Agent
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.settings import make_settings
from coseek.data.grade_cache import GradeCache
from coseek.data.passage import Corpus
from coseek.graders.call_counts import CallCounts
from coseek.graders.factory import open_frozen_model
from coseek.hardware.placement import Placement
from coseek.labels.score_cache import E, ScoreCache
from coseek.models.likelihood import LikelihoodSettings, LocalLikelihood, open_likelihood
from coseek.models.local_text import TextModelSettings
from coseek.models.text_model import TextModel
from coseek.retrieval.retriever import Retriever
from coseek.world.oracle import Oracle

ORACLE, GOLD = "oracle", "gold"
"""Scorers without a model: the oracle of a laptop world, and the gold passages of a data set."""


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
    found_by: Retriever | None = None
    """The current retriever."""
    open_agent: Callable[[], AgentWithLimits] | None = None
    scorer_name: str | None = None
    """`oracle`, `gold`, or a model: a folder, the address of a server, a YAML file."""
    world: Path | None = None
    """The folder of the laptop world whose oracle scores."""
    likelihood_name: str | None = None
    """The folder of a model that computes answer likelihoods."""
    placement: Placement = field(default_factory=Placement)
    """Placement of these two, where they are model folders."""
    cache: Path | None = None
    """A SQLite file that caches the outputs of frozen models, independent of labels."""
    tally: CallCounts = field(default_factory=CallCounts)

    @property
    def retriever(self) -> Retriever:
        if self.found_by is None:
            raise SettingError("these labels need a retriever, whose passages they score; name one with --retriever")
        return self.found_by

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
        return self._speaker.agent

    @property
    def limits(self) -> Limits:
        return self._speaker.limits

    @property
    def agent_identity(self) -> str:
        """With the limits."""
        return digest_of(self._speaker.identity, self.limits.model_dump_json())

    @cached_property
    def _speaker(self) -> AgentWithLimits:
        if self.open_agent is None:
            raise SettingError("these labels need the agent, which continues from passages; name it with --agent")
        return self.open_agent()

    @property
    def scorer(self) -> str:
        """`oracle`, `gold` or a model's name."""
        if self.scorer_name is None:
            raise SettingError(
                "these labels need a scorer of passages; name with --scorer a model (a folder, a URL, a YAML "
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
        """The scorer as a text model with greedy decoding."""
        if self.scorer in (ORACLE, GOLD):
            raise SettingError(f"--scorer {self.scorer} is no model, and these labels need one that writes")
        return open_frozen_model(self.scorer, self.cache, make_settings(TextModelSettings, self.placement.values()))

    @cached_property
    def likelihood(self) -> LocalLikelihood:
        if self.likelihood_name is None:
            raise SettingError(
                "these labels need a model that says how likely an answer is; name its folder with --likelihood"
            )
        return open_likelihood(self.likelihood_name, make_settings(LikelihoodSettings, self.placement.values()))

    def score_cache(self, name: str, kind: type[E], identity: str, card: JsonObject) -> ScoreCache[E]:
        """The cache of a grader in `scores`; graders with different identities have different files."""
        path = self.folder / "scores" / f"{name}.{digest_of(identity)[:16]}.jsonl"
        return ScoreCache(GradeCache(path, kind, identity, card))
