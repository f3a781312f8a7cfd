"""Run audit: opens what a stored run names, and has all of it worked out again that follows from it.

Files that have changed or gone since the run was made are no fault of the run. What could not be compared for that
reason is said, by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar, cast

from coseek import __version__
from coseek.agents.derivation import Derivation
from coseek.agents.factory import (
    AgentSettings,
    content_of,
    is_scripted,
    stored_tokenizer,
    taken_by,
)
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import TakenAs
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.run_questions import row_seed, rows_of
from coseek.agents.search_turns import replay_queries, turn_number
from coseek.agents.unwritable import mended
from coseek.core.address import is_url
from coseek.core.errors import DataError, UserError
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import TOKENIZER
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import Settings, make_settings
from coseek.data.audit import Audit, AuditParts, Finding, RunCheck, audit_run
from coseek.data.identities import KEY, digest, questions_digest
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.token_data import TokenData, finite
from coseek.data.trajectory import Search, Trajectory
from coseek.models.model import Tokenizer
from coseek.pipelines.agent_run import RunSettings, load_asked
from coseek.pipelines.grade_audit import GradeFiles
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import IndexCard, corpus_of
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import Given, RewardFault, RewardFunction, make_reward

NEAR = 1e-4
"""How far two scores of one search may lie apart, for their size: kernels add in other orders."""
TEXT, PLAYED, QUESTIONS, HITS, AGAIN = "ids against text", "what follows", "questions and rows", "hits", "searches"
REWARDS, LOGPROBS = "rewards", "log-probabilities"
"""What may be left out of an audit."""

MOST_SAMPLES = 100_000
"""Samples of a question above which a record is not believed."""

S = TypeVar("S", bound=Settings)
T = TypeVar("T")


def audit_stored_run(folder: Path, retriever: str | None = None, model: str | None = None) -> Audit:
    """Check a run folder, with everything worked out again that its files allow.

    `retriever` names the retriever of the run, which then searches every query again, and `model` the folder of its
    model, which gives every log-probability again. Raises `UserError` for a folder that is no run, and for a retriever
    or a model that cannot be opened.
    """
    run = Run(folder)
    opened = None if retriever is None else open_retriever(retriever)
    try:
        settings, record = run.settings, run.record
    except DataError:  # the audit says so
        return audit_run(folder)
    return audit_run(folder, parts=_Recorded(settings, record, opened, folder, model).parts())


@dataclass
class _Recorded:
    """What the record of a run names, opened as far as it still exists."""

    settings: JsonObject
    record: JsonObject
    retriever: Retriever | None
    """The one to search with again."""
    folder: Path
    model: str | None
    """The model to compute log-probabilities with again."""
    wrong: list[str] = field(default_factory=list)
    """What contradicts itself in the record."""
    left_out: dict[str, str] = field(default_factory=dict)

    def parts(self) -> AuditParts:
        """Open everything."""
        derivations, asked, hits = self._derivations(), self._asked(), self._hits()
        self._identities()
        seeds = self.seeds
        return AuditParts(
            decode=None if self.tokenizer is None else self.tokenizer.decode,
            derive=_derive(derivations) if derivations else None,
            hits=hits,
            reward=self._reward(),
            questions=None if asked is None else {question.id: question for question in asked},
            rows=None if asked is None else frozenset(rows_of(asked, *seeds)),
            seeds=self._follows if "seed" in self.settings else None,
            checks=tuple(self._checks()),
            record=tuple(self.wrong),
            left_out=self.left_out,
        )

    def _checks(self) -> Iterator[RunCheck]:
        yield GradeFiles(self.folder, self.left_out)
        if self.model is None:
            if self.agent is None or not is_scripted(self.agent.name):  # what rules wrote has none
                self.left_out[LOGPROBS] = "no --model is named to compute them again with"
        elif self.agent is None or self._changed("agent", content_of(self.model)):
            self.left_out[LOGPROBS] = "the model is not the one that the run was sampled from"
        else:
            from coseek.pipelines.logprob_audit import LogprobAudit  # torch, which other audits do not need

            yield LogprobAudit(self.model, self.agent)

    # --- what was asked

    @cached_property
    def seeds(self) -> tuple[int, int]:
        """The run's seed and the samples of each question."""
        seed, samples = self.settings.get("seed", 0), self.settings.get("samples", 1)
        if not isinstance(seed, int) or not isinstance(samples, int) or not 1 <= samples <= MOST_SAMPLES:
            self.wrong.append(f"its seed {seed!r} or its samples {samples!r} are none that a run can have")
            return 0, 1
        return seed, samples

    def _follows(self, row: RowKey) -> bool:
        seed, samples = self.seeds
        return any(row[1] == row_seed(seed, row[0], sample) for sample in range(samples))

    def _asked(self) -> list[Question] | None:
        """The questions that the settings name, if they are those of the run."""
        if "questions" not in self.settings:
            self.left_out[QUESTIONS] = "its record names no questions file"
            return None
        named = {name: value for name, value in self.settings.items() if name in RunSettings.model_fields}
        given = self._read(QUESTIONS, RunSettings, named)
        asked = None if given is None else self._tried(QUESTIONS, lambda: [*map(mended, load_asked(given))])
        if asked is not None and self._changed("questions", questions_digest(asked)):
            self.left_out[QUESTIONS] = "the questions file has changed since"
            return None
        return asked

    # --- what the agent wrote

    @cached_property
    def agent(self) -> AgentSettings | None:
        recorded = self.settings.get("agent")
        if not isinstance(recorded, dict) or "protocol" not in recorded:
            if "protocol" in self.identities and "labels" not in self.settings:  # those of labels name it
                self.wrong.append("it names no agent with a protocol, and its identities do")
            self.left_out[PLAYED] = "its record names no agent with a protocol"
            return None
        return self._read(PLAYED, AgentSettings, recorded)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        who = self.agent
        if who is None:
            self.left_out[TEXT] = "its record names no tokenizer"
            return None
        found = self._tried(TEXT, lambda: stored_tokenizer(who))
        folder = who.tokenizer_name
        if found is None:
            self.left_out[TEXT] = "the agent's tokenizer is missing"
        elif self._changed("tokenizer", content_of(folder, TOKENIZER)):
            self.left_out[TEXT] = f"the tokenizer in {folder} has changed since"
            return None
        return found

    @cached_property
    def protocol(self) -> Protocol | None:
        who = self.agent
        if who is None:
            return None
        return self._tried(PLAYED, lambda: load_protocol(who.protocol, who.prompt_template, who.chat_template))

    @cached_property
    def limits(self) -> Limits | None:
        recorded = self.settings.get("limits")
        if not isinstance(recorded, dict):
            if "limits" in self.identities:
                self.wrong.append("it holds no limits, and its identities do")
            self.left_out.setdefault(PLAYED, "its record holds no limits")
            return None
        return self._read(PLAYED, Limits, recorded)

    def _derivations(self) -> list[Derivation]:
        """One for each form in which the model may have taken its input."""
        who, tokenizer, protocol, limits = self.agent, self.tokenizer, self.protocol, self.limits
        if who is None or protocol is None or limits is None:
            return []
        if tokenizer is None:
            self.left_out[PLAYED] = self.left_out[TEXT]
            return []
        template = protocol.template.file.model_dump_json(exclude={"about"}, exclude_defaults=True)
        forms: list[TakenAs] = ["ids"]
        if who.is_remote:
            dialect = who.server.dialect if who.server is not None else "auto"
            forms = ["ids", "text", "messages"] if dialect == "auto" else [taken_by(dialect)]
        spoken = [protocol.taken_as(form) for form in forms]
        prompts = {digest(template + (" in the chat template" if framed else "")) for framed in (False, True)}
        if self._changed("protocol", protocol.identity) or self._changed("prompt_template", *prompts):
            self.left_out[PLAYED] = "the protocol or its prompt template has changed since"
            return []
        ranks = is_scripted(who.name)
        return self._tried(PLAYED, lambda: [Derivation(one, tokenizer, limits, ranks) for one in spoken]) or []

    # --- what was found

    def _hits(self) -> Callable[[Trajectory], Iterator[str]] | None:
        corpus = self._corpus()
        if self.retriever is not None and self._changed("retriever", self.retriever.identity):
            self.left_out[AGAIN] = "the retriever is not the one that the run searched with"
            self.retriever = None
        elif self.retriever is not None and (self.protocol is None or self.limits is None):
            self.left_out[AGAIN] = self.left_out[PLAYED]
            self.retriever = None
        elif self.retriever is None:
            self.left_out[AGAIN] = "no --retriever is named to search again with"
        else:
            self.left_out.pop(HITS, None)
        if corpus is None and self.retriever is None:
            return None
        return lambda run: self._wrong_hits(run, corpus)

    def _corpus(self) -> Corpus | None:
        """The corpus of the index that the record names, if it is still that of the run."""
        name = self.settings.get("retriever")
        if not isinstance(name, str) or not self._tried(HITS, lambda: Path(name).is_dir()):
            named = isinstance(name, str) and (is_url(name) or Path(name).is_file())
            why = "its record names no index folder that is still there"
            self.left_out[HITS] = f"{name} is no index folder; search again with --retriever" if named else why
            return None
        folder = Path(name)
        card = self._tried(HITS, lambda: IndexCard.read(folder))
        if card is None or self.settings.get("index", card.to_json()) != card.to_json():
            self.left_out.setdefault(HITS, f"the index {folder} has been replaced since")
            return None
        corpus = self._tried(HITS, lambda: corpus_of(folder, card))
        if corpus is not None and corpus.digest != card.digest:
            self.left_out[HITS] = f"the corpus of {folder} has changed since"
            return None
        return corpus

    def _wrong_hits(self, run: Trajectory, corpus: Corpus | None) -> Iterator[str]:
        for number, search in enumerate(run.searches, start=1):
            for hit in search.hits:
                if corpus is not None and not _is_in(corpus, hit.passage):
                    yield f"the passage {hit.passage.id!r} of search {number} is not that of the corpus"
        for visit in run.visits:
            for passage in visit.passages:
                if corpus is not None and not _is_in(corpus, passage):
                    yield f"the passage {passage.id!r}, which turn {visit.turn} visited, is not that of the corpus"
        if self.retriever is not None and self.protocol is not None and self.limits is not None:
            yield from _searched_again(run, self.retriever, self.protocol, self.limits)

    # --- what it was paid

    def _reward(self) -> Callable[[Trajectory, TokenData], Iterator[str]] | None:
        """Compares rewards with those of the recorded parts, where these need no grader and no file of a user."""
        spec = self.settings.get("reward")
        if not isinstance(spec, dict):
            return None
        if any(map(is_plugin_path, spec)) or str(spec.get("preset", "")).endswith((".yaml", ".yml")):
            self.left_out[REWARDS] = "a file of the user's rewards, which is not run"
            return None
        made = self._tried(REWARDS, lambda: make_reward(cast("Mapping[str, Given]", spec)))
        if made is not None and made.needs:
            self.left_out[REWARDS] = "they need grades, which are not stored with the run"
            return None
        return None if made is None else lambda run, data: _wrong_reward(made, run, data)

    # --- the record

    @property
    def identities(self) -> Mapping[str, Json]:
        found = self.record.get(KEY)
        return found if isinstance(found, dict) else {}

    def _identities(self) -> None:
        """Compare the settings with their own identities."""
        if self._changed("seed", str(self.settings.get("seed", self.identities.get("seed")))):
            self.wrong.append("the seed is not the one of its identities")
        if self.agent is not None:
            at, sampling = f"temperature {self.agent.temperature:g}", str(self.identities.get("sampling", ""))
            if sampling and sampling != at and not sampling.startswith(f"{at}, "):
                self.wrong.append("the temperature is not the one of its identities")
        limits = self.limits if self.same_version else None  # whose defaults the digest leaves out
        if limits is not None and self._changed("limits", digest(limits.model_dump_json(exclude_defaults=True))):
            self.wrong.append("the limits are not those of its identities")

    @property
    def same_version(self) -> bool:
        """Whether this version of coseek made the run."""
        versions = self.record.get("versions")
        return isinstance(versions, dict) and versions.get("coseek") == __version__

    def _changed(self, part: str, *now: str) -> bool:
        """Whether a part has another identity than it had; one that is not recorded may be any."""
        return part in self.identities and self.identities[part] not in now

    def _read(self, what: str, kind: type[S], tree: JsonObject) -> S | None:
        """Settings of the record. What this version has written it can read."""
        found = self._tried(what, lambda: make_settings(kind, tree))
        if found is None and self.same_version:
            self.wrong.append(f"its settings cannot be read: {self.left_out[what]}")
        return found

    def _tried(self, what: str, open_it: Callable[[], T]) -> T | None:
        """What `open_it` returns; `None` where it fails, which leaves `what` out."""
        try:
            return open_it()
        except (UserError, OSError, ValueError) as error:  # a name that is no path is a ValueError
            self.left_out[what] = str(error)
            return None


def _derive(derivations: Sequence[Derivation]) -> Callable[[Trajectory], list[Finding]]:
    """What differs from the nearest derivation: the first without differences, else the first."""

    def derive(run: Trajectory) -> list[Finding]:
        found = [list(derivations[0].differences(run))]
        for other in derivations[1:]:
            if not found[-1]:
                break
            found.append(list(other.differences(run)))
        return found[-1] and found[0]

    return derive


def _wrong_reward(reward: RewardFunction, run: Trajectory, data: TokenData) -> Iterator[str]:
    """What a reward has other than its parts make it. A training may add parts of its own, such as for length."""
    paid = reward.pay(run)
    if isinstance(paid, RewardFault):
        yield f"it has a reward, and none follows ({paid.detail or paid.part})"
        return
    follows = dict(zip(paid.parts, finite(paid.parts.values()), strict=True))
    for name, value in follows.items():
        if data.parts.get(name) != value:
            yield f"the reward's part {name!r} is {data.parts.get(name)}, and {value} follows"
    if data.parts.keys() == follows.keys() and (data.reward,) != (whole := finite([paid.value])):
        yield f"the reward is {data.reward}, and {whole[0]} follows"


def _is_in(corpus: Corpus, passage: Passage) -> bool:
    return corpus.has(passage.id) and corpus.by_id(passage.id).to_json() == passage.to_json()


def _searched_again(run: Trajectory, retriever: Retriever, protocol: Protocol, limits: Limits) -> Iterator[str]:
    """The searches that find something else now."""
    by_depth: dict[int, list[tuple[int, Query]]] = {}
    for place, query in enumerate(replay_queries(run, protocol)):
        if not run.searches[place].fault:
            depth = limits.passages_of(turn_number(run, place, protocol))
            by_depth.setdefault(depth, []).append((place, query))
    for k, asked in by_depth.items():
        for (place, _), hits in zip(asked, retriever.search([query for _, query in asked], k), strict=True):
            if not _alike(run.searches[place], hits):
                yield f"search {place + 1} finds other passages or scores now"


def _alike(search: Search, hits: Sequence[Hit]) -> bool:
    """Whether hits are those of a search. Passages whose scores differ by a rounding may change places."""
    if len(search.hits) != len(hits):
        return False
    near = [
        abs(one.score - other.score) <= NEAR * max(1.0, abs(one.score))
        for one, other in zip(search.hits, hits, strict=True)
    ]
    lowest = hits[-1].score + NEAR * max(1.0, abs(hits[-1].score)) if hits else 0.0
    kept = {hit.passage.id for hit in hits}
    return all(near) and all(hit.passage.id in kept or hit.score <= lowest for hit in search.hits)
