"""Run checks: what of a trajectory follows from the parts that the record of its run names.

Prompt, masks, queries, answer and validity follow from the agent's tokens and the hits (`agents/derivation.py`), hits
from the corpus and the retriever, the reward from the trajectory, log-probabilities from the model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, cast

from coseek.agents.derivation import Derivation
from coseek.agents.factory import AgentSettings, check_folder, content_of, is_scripted, stored_tokenizer, taken_by
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import TakenAs
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.run_questions import rows_of
from coseek.agents.search_turns import replay_queries, turn_number
from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import TOKENIZER
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import make_settings
from coseek.data.digests import KEY, digest, questions_digest
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.run import RowKey
from coseek.data.token_data import TokenData, finite
from coseek.data.trajectory import Author, Search, Trajectory
from coseek.data.trajectory_checks import Finding
from coseek.models.model import Tokenizer
from coseek.models.model_folder import model_path
from coseek.pipelines.agent_run import RunSettings, load_asked
from coseek.retrieval.index import IndexCard, corpus_of
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import Given, RewardFault, RewardFunction, make_reward

NEAR = 1e-4
"""How far two scores of one passage may lie apart, relative to their size: kernels add in other orders."""
LOGPROB_NEAR, ROUGHLY_NEAR = 0.001, 0.5
"""How many nats a log-probability may differ that was sampled in float32, and in another precision: a sampler adds in
another order than a pass over the whole context does."""
PLAYED, HITS, AGAIN, LOGPROBS = "what follows", "hits", "searches", "log-probabilities"
"""What is compared with what follows."""

Check: TypeAlias = Callable[[Trajectory], Iterator[Finding]]


class RunChecks:
    """Opens what the record of a run names. A part that has changed or gone raises an error, which says why."""

    def __init__(
        self, settings: JsonObject, record: JsonObject, retriever: Retriever | None, model: str | None
    ) -> None:
        """`retriever` and `model` are those to search and to compute log-probabilities with again."""
        self.settings, self.retriever, self.model = settings, retriever, model
        identities = record.get(KEY)
        self._identities = identities if isinstance(identities, dict) else {}

    def checks(self) -> Iterator[tuple[str, Callable[[], Check]]]:
        """What each check compares, and how it is opened."""
        yield PLAYED, self.derivation
        yield HITS, self.passages
        yield AGAIN, self.searches
        agent = self.settings.get("agent")
        if self.model is not None or not (isinstance(agent, dict) and is_scripted(str(agent.get("name")))):
            yield LOGPROBS, self.logprobs

    def _check_same(self, part: str, *now: str) -> None:
        """Raise `DataError` if a part had another identity; one without a record may be any."""
        if self._identities.get(part, now[0]) not in now:
            raise DataError(f"the {part.replace('_', ' ')} has changed since")

    @cached_property
    def agent(self) -> AgentSettings:
        recorded = self.settings.get("agent")
        if not isinstance(recorded, dict) or "protocol" not in recorded:
            raise DataError("run.yaml names no agent with a protocol")
        return make_settings(AgentSettings, recorded)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = stored_tokenizer(self.agent)
        if tokenizer is None:
            raise DataError("the agent's tokenizer is missing")
        self._check_same("tokenizer", content_of(self.agent.tokenizer_name, TOKENIZER))
        return tokenizer

    @cached_property
    def protocol(self) -> Protocol:
        return load_protocol(self.agent.protocol, self.agent.prompt_template, self.agent.chat_template)

    @cached_property
    def limits(self) -> Limits:
        recorded = self.settings.get("limits")
        if not isinstance(recorded, dict):
            raise DataError("run.yaml holds no limits")
        return make_settings(Limits, recorded)

    def questions(self) -> dict[RowKey, Question]:
        """All rows of the run, with their questions."""
        if "questions" not in self.settings:
            raise DataError("run.yaml names no questions file")
        named = {name: value for name, value in self.settings.items() if name in RunSettings.model_fields}
        settings = make_settings(RunSettings, named)
        asked = {question.id: question for question in load_asked(settings)}
        self._check_same("questions", questions_digest(asked.values()))
        return {key: asked[key[0]] for key in rows_of([*asked.values()], settings.seed, settings.samples)}

    def derivation(self) -> Check:
        """Plays a trajectory again, in each form in which the model may have taken its input: the nearest counts."""
        template = self.protocol.template.file.model_dump_json(exclude={"about"}, exclude_defaults=True)
        self._check_same("prompt_template", *(digest(template + end) for end in ("", " in the chat template")))
        self._check_same("protocol", self.protocol.identity)
        forms: list[TakenAs] = ["ids"]
        if self.agent.is_remote:
            dialect = self.agent.server.dialect if self.agent.server is not None else "auto"
            forms = ["ids", "text", "messages"] if dialect == "auto" else [taken_by(dialect)]
        ranks = is_scripted(self.agent.name)
        plays = [Derivation(self.protocol.taken_as(form), self.tokenizer, self.limits, ranks) for form in forms]

        def check(run: Trajectory) -> Iterator[Finding]:
            first = [*plays[0].differences(run)]
            if first and all(next(play.differences(run), None) is not None for play in plays[1:]):
                yield from first

        return check

    def passages(self) -> Check:
        """Looks the passages up in the corpus of the index."""
        name = self.settings.get("retriever")
        if not isinstance(name, str) or not Path(name).is_dir():
            raise DataError(f"{name or 'the retriever'} is not an index folder; search again with --retriever")
        card = IndexCard.read(Path(name))
        if self.settings.get("index", card.to_json()) != card.to_json():
            raise DataError(f"the index {name} has been replaced since")
        corpus = corpus_of(Path(name), card)
        if corpus.digest != card.digest:
            raise DataError(f"the corpus of {name} has changed since")

        def check(run: Trajectory) -> Iterator[Finding]:
            met = [(hit.passage, f"search {at}") for at, one in enumerate(run.searches, 1) for hit in one.hits]
            met += [(passage, f"a visit in turn {visit.turn}") for visit in run.visits for passage in visit.passages]
            for passage, where in met:
                if not _is_in(corpus, passage):
                    yield f"the passage {passage.id!r} of {where} is not that of the corpus", None

        return check

    def searches(self) -> Check:
        """Searches every query again."""
        if self.retriever is None:
            raise DataError("no --retriever is named to search again with")
        retriever, protocol, limits = self.retriever, self.protocol, self.limits
        self._check_same("retriever", retriever.identity)

        def check(run: Trajectory) -> Iterator[Finding]:
            by_depth: dict[int, list[tuple[int, Query]]] = {}
            for at, query in enumerate(replay_queries(run, protocol)):
                if run.searches[at].fault is None:
                    by_depth.setdefault(limits.passages_of(turn_number(run, at, protocol)), []).append((at, query))
            for depth, asked in by_depth.items():
                for (at, _), hits in zip(asked, retriever.search([query for _, query in asked], depth), strict=True):
                    if not _alike(run.searches[at], hits):
                        yield f"search {at + 1} finds other passages or scores now", None

        return check

    def logprobs(self) -> Check:
        """Computes the agent's log-probabilities again."""
        if self.model is None:
            raise DataError("no --model is named to compute them again with")
        self._check_same("agent", content_of(self.model))
        check_folder(model_path(self.model))
        return _logprob_check(self.model, self.agent)

    def reward(self) -> RewardFunction | None:
        """The reward of kept rollouts, if it needs no grader and no file of the user's."""
        spec = self.settings.get("reward")
        if not isinstance(spec, dict):
            return None
        if any(map(is_plugin_path, spec)) or str(spec.get("preset", "")).endswith((".yaml", ".yml")):
            raise DataError("a file of the user's rewards, which is not run")
        reward = make_reward(cast("Mapping[str, Given]", spec))
        if reward.needs:
            raise DataError("they need grades, which are not stored with the run")
        return reward


def _logprob_check(model: str, agent: AgentSettings) -> Check:
    from coseek.models.pretrained import load_model  # torch, which other audits do not need
    from coseek.training.trainer.batch import make_batch
    from coseek.training.trainer.policy import Policy
    from coseek.training.trainer.settings import LearnerSettings

    # At temperature 0 the most likely token is taken, with its log-probability at temperature 1.
    policy = Policy(load_model(model_path(model), agent), LearnerSettings(), 0, agent.temperature or 1.0)
    margin = LOGPROB_NEAR if agent.precision == "float32" else ROUGHLY_NEAR

    def check(run: Trajectory) -> Iterator[Finding]:
        for context in (run.segments, *run.side_contexts) if run.exact else ():
            if not any(segment.author is Author.AGENT for segment in context):
                continue
            batch = make_batch([replace(run, segments=context, side_contexts=())])
            again_T, end = policy.forward(batch, batch.agent_BT)[0].tolist(), 0
            for at, segment in enumerate(context):
                start, end = end, end + len(segment.ids)
                # The environment's segments have no log-probabilities.
                for place, (stored, now) in enumerate(zip(segment.logprobs, again_T[start:end], strict=False)):
                    if abs(stored - now) > margin:
                        what = f"token {place} has the log-probability {stored:.6g}, and the model gives {now:.6g}"
                        yield what, at if context is run.segments else None
                        break

    return check


def wrong_reward(reward: RewardFunction, run: Trajectory, data: TokenData) -> Iterator[str]:
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


def _alike(search: Search, hits: Sequence[Hit]) -> bool:
    """Whether hits are those of a search. Passages whose scores differ by a rounding may change places."""
    if len(search.hits) != len(hits):
        return False
    close = all(near(one.score, other.score) for one, other in zip(search.hits, hits, strict=True))
    lowest = hits[-1].score + NEAR * max(1.0, abs(hits[-1].score)) if hits else 0.0
    kept = {hit.passage.id for hit in hits}
    return close and all(hit.passage.id in kept or hit.score <= lowest for hit in search.hits)


def near(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR * max(1.0, abs(one))
