"""Run checks: derive what a trajectory says from the parts that its run's record names.

Prompt, masks, queries, answer and validity follow from the agent's tokens and the hits (`Derivation`), hits
from the corpus and the retriever, the reward from the trajectory.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TypeAlias, cast

from coseek.agents.environment import End, Environment, Next, PendingCall
from coseek.agents.episode import Episode
from coseek.agents.factory import AgentSettings, content_of, input_mode_of, is_scripted, stored_tokenizer
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import InputMode
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.run_questions import row_keys_of
from coseek.agents.search_turns import replay_queries
from coseek.agents.tool import DocumentPage, Result, TurnSearches
from coseek.core.errors import DataError, UserError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import CHAT_TEMPLATES, TOKENIZER
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import make_settings
from coseek.data.digests import KEY, digest, questions_digest
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.run import RowKey
from coseek.data.token_data import TokenData, finite
from coseek.data.trajectory import LAST_WORD, Author, Search, Segment, StopReason, Trajectory
from coseek.data.trajectory_checks import Finding
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.pipelines.agent_run import load_run_questions, recorded_settings
from coseek.retrieval.index import IndexCard, corpus_of
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import RewardFault, RewardFunction, RewardValue, make_reward

Check: TypeAlias = Callable[[Trajectory], Iterator[Finding]]
FIELDS = ("stop", "stop_detail", "answer", "valid", "format_error", "selected_ids", "calls", "visits")
"""Fields of a trajectory that are compared as a whole."""
NEAR = 1e-4
"""Largest difference of two scores of one passage, relative to their size: kernels add in different orders."""


class RunChecks:
    """Opens the parts that a run's record names. Raises `UserError` for a part that has changed or is missing."""

    def __init__(self, settings: JsonObject, record: JsonObject, retriever: Retriever | None) -> None:
        """`retriever` repeats the searches."""
        self.settings, self.retriever = settings, retriever
        identities = record.get(KEY)
        self._identities = identities if isinstance(identities, dict) else {}

    def _check_same(self, name: str, *identities: str) -> None:
        """Raise `DataError` if the recorded identity of a part is none of these. A part without a record passes."""
        if self._identities.get(name, identities[0]) not in identities:
            raise DataError(f"its {name.replace('_', ' ')} changed since")

    @cached_property
    def agent(self) -> AgentSettings:
        agent_record = self.settings.get("agent")
        if not isinstance(agent_record, dict) or "protocol" not in agent_record:
            raise DataError("run.yaml names no agent with a protocol")
        return make_settings(AgentSettings, agent_record)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = stored_tokenizer(self.agent)
        if tokenizer is None:
            raise DataError("the agent's tokenizer is missing")
        for name, files in (("tokenizer", TOKENIZER), ("chat_template", CHAT_TEMPLATES)):
            self._check_same(name, content_of(self.agent.tokenizer_name, files))
        return tokenizer

    @cached_property
    def protocol(self) -> Protocol:
        return load_protocol(self.agent.protocol, self.agent.prompt_template, self.agent.chat_template)

    @cached_property
    def limits(self) -> Limits:
        limits_record = self.settings.get("limits")
        if not isinstance(limits_record, dict):
            raise DataError("run.yaml holds no limits")
        return make_settings(Limits, limits_record)

    def questions(self) -> dict[RowKey, Question]:
        """All rows of the run, with their questions."""
        settings = recorded_settings(self.settings)
        questions = {question.id: question for question in load_run_questions(settings)}
        self._check_same("questions", questions_digest(questions.values()))
        return {key: questions[key[0]] for key in row_keys_of([*questions.values()], settings.seed, settings.samples)}

    def derivation(self) -> Check:
        """Replays a trajectory. If the record does not tell in which form a server took its input, every form is tried,
        and one that agrees is enough."""
        template = self.protocol.template.file.model_dump_json(exclude={"about"}, exclude_defaults=True)
        self._check_same("prompt_template", *(digest(template + end) for end in ("", " in the chat template")))
        self._check_same("protocol", self.protocol.identity)
        modes: list[InputMode] = ["ids"]
        if self.agent.is_remote:
            dialect = self.agent.server.dialect if self.agent.server is not None else "auto"
            modes = ["ids", "text", "messages"] if dialect == "auto" else [input_mode_of(dialect)]
        own_ranking = is_scripted(self.agent.name)
        derivations = [
            Derivation(self.protocol.with_input_mode(mode), self.tokenizer, self.limits, own_ranking) for mode in modes
        ]

        def check(trajectory: Trajectory) -> Iterator[Finding]:
            first: list[Finding] = []
            for derivation in derivations:
                if not (findings := [*derivation.differences(trajectory)]):
                    return
                first = first or findings
            yield from first

        return check

    def passages(self) -> Check:
        """Looks up the passages in the corpus of the index."""
        name = self.settings.get("retriever")
        if not isinstance(name, str) or not Path(name).is_dir():
            raise DataError(f"{name or 'the retriever'} is not an index folder; search again with --retriever")
        card = IndexCard.read(Path(name))
        if self.settings.get("index", card.to_json()) != card.to_json():
            raise DataError(f"the index {name} has been replaced since")
        corpus = corpus_of(Path(name), card)
        if corpus.digest != card.corpus.digest:
            raise DataError(f"the corpus of {name} has changed since")

        def check(trajectory: Trajectory) -> Iterator[Finding]:
            shown = [
                (f"search {at}", hit.passage) for at, search in enumerate(trajectory.searches, 1) for hit in search.hits
            ]
            for visit in trajectory.visits:
                shown += [(f"a visit in turn {visit.turn}", passage) for passage in visit.passages]
            for location, passage in shown:
                if not corpus.has(passage.id) or corpus.by_id(passage.id).to_json() != passage.to_json():
                    yield f"the passage {passage.id!r} of {location} is not that of the corpus", None

        return check

    def searches(self) -> Check:
        """Repeats every search."""
        if self.retriever is None:
            raise DataError("no --retriever is named to search again with")
        retriever, protocol, limits = self.retriever, self.protocol, self.limits
        self._check_same("retriever", retriever.identity)

        def check(trajectory: Trajectory) -> Iterator[Finding]:
            by_depth: dict[int, list[tuple[int, Query]]] = {}
            for index, query in enumerate(replay_queries(trajectory, protocol)):
                search = trajectory.searches[index]
                if search.fault is None:
                    by_depth.setdefault(limits.passages_of(search.turn), []).append((index, query))
            for depth, indexed_queries in by_depth.items():
                hit_lists = retriever.search([query for _, query in indexed_queries], depth)
                for (index, _), hits in zip(indexed_queries, hit_lists, strict=True):
                    if not _same_hits(trajectory.searches[index], hits):
                        yield f"search {index + 1} finds other passages or scores now", None

        return check

    def reward(self) -> RewardFunction | None:
        """The reward of stored rollouts, if it needs neither a grader nor a file of the user's."""
        spec = self.settings.get("reward")
        if not isinstance(spec, dict):
            return None
        if any(map(is_plugin_path, spec)) or str(spec.get("preset", "")).endswith((".yaml", ".yml")):
            raise DataError("the reward is a file of the user's, which is not run")
        reward = make_reward(cast("Mapping[str, RewardValue]", spec))
        if reward.needs:
            raise DataError("the reward needs grades, which are not stored with the run")
        return reward


def wrong_reward(reward: RewardFunction, trajectory: Trajectory, data: TokenData) -> Iterator[str]:
    """How a stored reward differs from its terms. A training may add terms, such as one for length."""
    outcome = reward.compute(trajectory)
    if isinstance(outcome, RewardFault):
        yield f"it has a reward, and none follows ({outcome.detail or outcome.part})"
        return
    derived_parts = dict(zip(outcome.parts, finite(outcome.parts.values()), strict=True))
    for name, value in derived_parts.items():
        if data.parts.get(name) != value:
            yield f"the reward's part {name!r} is {data.parts.get(name)}, and {value} follows"
    if data.parts.keys() == derived_parts.keys() and (data.reward,) != (derived_reward := finite([outcome.value])):
        yield f"the reward is {data.reward}, and {derived_reward[0]} follows"


def _same_hits(search: Search, hits: Sequence[Hit]) -> bool:
    """Whether hits are those of a search. Passages whose scores differ by a rounding error may change places."""
    if len(search.hits) != len(hits):
        return False
    are_close = all(near(hit.score, new_hit.score) for hit, new_hit in zip(search.hits, hits, strict=True))
    lowest = hits[-1].score + NEAR * max(1.0, abs(hits[-1].score)) if hits else 0.0
    idents = {hit.passage.id for hit in hits}
    return are_close and all(hit.passage.id in idents or hit.score <= lowest for hit in search.hits)


def near(value: float, other: float) -> bool:
    return abs(value - other) <= NEAR * max(1.0, abs(value))


# --- derivation


class Derivation:
    """Replays trajectories of one protocol, tokenizer and budget, and compares them with what is stored."""

    def __init__(self, protocol: Protocol, tokenizer: Tokenizer, limits: Limits, own_ranking: bool) -> None:
        """`own_ranking`: the agent may rank its evidence, so the order of the evidence does not follow."""
        kind = next(iter(protocol.file.retrievers), "stored")
        self.environment = Environment(protocol, tokenizer, _NoRetriever(kind), limits)
        self.own_ranking = own_ranking

    def differences(self, stored: Trajectory) -> Iterator[Finding]:
        """The differences of a stored trajectory that passes `check_trajectory`."""
        if stored.protocol != (name := self.environment.protocol.name):
            yield f"its protocol is {stored.protocol!r}, and the run's is {name!r}", None
            return
        try:
            derived = _Replay(self.environment, stored).trajectory()
        except (_Diverged, UserError) as error:
            yield str(error), None
            return
        yield from _segment_differences(derived.segments, stored.segments)
        for problem in _search_differences(derived.searches, stored.searches):
            yield problem, None
        for name in FIELDS:
            new, old = getattr(derived, name), getattr(stored, name)
            if new != old:
                yield f"{name} is {_excerpt(old)}, and what the agent wrote makes it {_excerpt(new)}", None
        if (count := len(stored.side_contexts)) != len(derived.side_contexts):
            yield f"it has {count} side contexts, and {len(derived.side_contexts)} follow", None
        for number, contexts in enumerate(zip(derived.side_contexts, stored.side_contexts, strict=False), start=1):
            for problem, _ in _segment_differences(*contexts):
                yield f"side context {number}: {problem}", None
        if stored.evidence is not None and not self.own_ranking and derived.evidence != stored.evidence:
            yield "the evidence is not in the order of selection and retrieval", None
        if stored.messages or stored.logged_protocol is not None:
            yield "it holds messages or the protocol of an imported log, which this agent does not write", None


class _NoRetriever:
    """Stands for the retriever of a replay, which takes the stored results and never searches."""

    corpus = None
    identity = ""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def seen(self, query: QueryLike) -> str:
        raise AssertionError("a derivation does not search")

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        raise AssertionError("a derivation does not search")


class _Diverged(Exception):
    """The stored trajectory does not hold what the replay needs next."""


_NO_ROOM = re.compile(r"(?:no room for an observation|a prompt for notes) of (\d{1,9}) tokens")
"""Detail of a stop in which the results of a search were not recorded."""
_CUT_TURN = "a turn of "
"""How the detail of a stop begins if its last turn was cut at its maximum length."""


class _Replay:
    """Plays one stored trajectory again."""

    def __init__(self, environment: Environment, stored: Trajectory) -> None:
        self.environment, self.stored = environment, stored
        self.episode = Episode(0, stored.question, stored.seed, 0.0)

    def trajectory(self) -> Trajectory:
        """The derived trajectory. Raises `_Diverged` if the stored one ends too early."""
        step: Next | PendingCall = self.environment.reset(self.episode)
        while not isinstance(step, End):
            if isinstance(step, PendingCall):
                step = self._result(step)
            else:
                step = self.environment.step(self.episode, self._notes(step) if step.key < 0 else self._turn(step))
        return self.environment.finish(self.episode, step, None)

    def _turn(self, request: Request) -> Turn:
        """The turn that the agent wrote next. An empty turn left no segment."""
        stored, position = self.stored, len(self.episode.segments)
        segments = [segment for segment in stored.segments[position : position + 1] if segment.author is Author.AGENT]
        is_last = position + len(segments) >= len(stored.segments)
        was_cut = stored.stop is StopReason.TOKEN_LIMIT and stored.stop_detail.startswith(_CUT_TURN)
        notes_failed = len(stored.side_contexts) > len(self.episode.side_contexts)
        if is_last and stored.stop is StopReason.MODEL_ERROR and not notes_failed:
            return self._as_turn(request, segments, TurnEnd.FAULT)
        if is_last:
            reached_limit = was_cut or (self.episode.limit is not None and stored.truncated)
        else:  # with an action in it, a turn is read the same whether it was cut or not
            reached_limit = bool(segments) and self._asks_last_word(position + 1) and (was_cut or not stored.truncated)
        return self._as_turn(request, segments, TurnEnd.LENGTH if reached_limit else TurnEnd.STOP)

    def _asks_last_word(self, position: int) -> bool:
        return any(segment.tag == LAST_WORD for segment in self.stored.segments[position : position + 1])

    def _notes(self, request: Request) -> Turn:
        """The model's notes in the side context that was opened last. They were shown: otherwise the searches that they
        are about would not be stored."""
        contexts, number = self.stored.side_contexts, len(self.episode.side_contexts)
        if len(contexts) < number:
            raise _Diverged(f"it has {len(contexts)} side contexts, and another one follows")
        return self._as_turn(request, contexts[number - 1][1:2], TurnEnd.STOP)

    def _as_turn(self, request: Request, segments: Sequence[Segment], end: TurnEnd) -> Turn:
        stored, fault = self.stored, self.stored.stop_detail if end is TurnEnd.FAULT else ""
        if not segments:
            return Turn(request.key, (), (), end, fault, stored.exact)
        ids, logprobs, version = segments[0].ids, segments[0].logprobs, segments[0].version
        if len(ids) > request.max_tokens:
            raise _Diverged(f"a turn holds {len(ids)} tokens, and {request.max_tokens} were left")
        return Turn(request.key, ids, logprobs, end, fault, stored.exact, version=version)

    def _result(self, call: PendingCall) -> Next | PendingCall:
        """Answer a call with the next stored searches, or with the result of a tool, which is run."""
        turn = call.request.turn
        if call.tool is not self.environment.protocol.grammar.search:
            result, took_s = self.environment.run_tool([call])[0]
            return self.environment.observe(call, self._with_document(turn, result), took_s)
        texts = cast(list[str], call.request.arguments["queries"])
        search_count = len(self.episode.searches) + len(self.episode.turn_searches)
        searches = self.stored.searches[search_count : search_count + len(texts)]
        if not searches and (end := self._unrecorded_end()) is not None:
            return end
        if len(searches) < len(texts):
            raise _Diverged(f"turn {turn} asks {len(texts)} queries, and {len(searches)} more are stored")
        k = self.environment.limits.passages_of(turn)
        if (hit_count := max(len(search.hits) for search in searches)) > k:
            raise _Diverged(f"a search of turn {turn} has {hit_count} hits, and its budget is {k}")
        queries = tuple(replace(call.request.query, text=text) for text in texts)
        results = tuple(
            Search(text, search.hits if search.fault is None else (), search.fault, turn)
            for text, search in zip(texts, searches, strict=True)
        )
        return self.environment.observe(call, TurnSearches(queries, results), 0.0)

    def _with_document(self, turn: int, result: Result) -> Result:
        """The result of a visit with the stored document; any other result unchanged."""
        if isinstance(result, DocumentPage):
            for visit in self.stored.visits:
                if (visit.turn, visit.id) == (turn, result.ident) and result.passage in visit.passages:
                    return replace(result, document=visit.passages)
        return result

    def _unrecorded_end(self) -> Next | None:
        """How a run ended whose last search is not stored because its results were not shown."""
        stored, episode = self.stored, self.episode
        if self._asks_last_word(len(episode.segments)):
            return self.environment.at_limit(episode, End(StopReason.TOKEN_LIMIT, detail=stored.stop_detail))
        if len(episode.segments) < len(stored.segments):
            return None
        writes_notes = self.environment.protocol.file.reason_in_documents
        if writes_notes:  # the prompt for notes on the results, and the notes
            episode.side_contexts += stored.side_contexts[len(episode.side_contexts) :][:1]
        no_room = _NO_ROOM.fullmatch(stored.stop_detail)
        if stored.stop is StopReason.TOKEN_LIMIT and no_room is not None:
            used_tokens = 0 if no_room[0].startswith("a prompt") else episode.tokens
            is_consistent = used_tokens + int(no_room[1]) >= self.environment.room(episode)
        else:
            is_consistent = writes_notes and stored.stop is StopReason.MODEL_ERROR
        return End(stored.stop, detail=stored.stop_detail) if is_consistent else None


def _segment_differences(derived: Sequence[Segment], stored: Sequence[Segment]) -> Iterator[Finding]:
    """The first segment that differs: later differences follow from it."""
    for index, (new, old) in enumerate(zip_longest(derived, stored)):
        if new is None or old is None:
            yield f"it has {len(stored)} segments, and {len(derived)} follow from what the agent wrote", None
        elif (new.author, new.tag) != (old.author, old.tag):
            expected = f"{new.tag!r} by the {new.author} follows"
            yield f"it is {old.tag!r} by the {old.author}, and {expected} from what the agent wrote", index
        elif new.ids != old.ids:
            pairs = enumerate(zip_longest(new.ids, old.ids))
            position = next(position for position, (derived_id, stored_id) in pairs if derived_id != stored_id)
            yield f"it is not what the environment writes here, from token {position} on", index
        elif new.message != old.message:
            yield f"its message is {_excerpt(old.message)}, and the ids say {_excerpt(new.message)}", index
        else:
            continue
        return


def _search_differences(derived: Sequence[Search], stored: Sequence[Search]) -> Iterator[str]:
    for number, (new, old) in enumerate(zip(derived, stored, strict=False), start=1):
        if new.query != old.query:
            yield f"search {number} asks {_excerpt(old.query)}, and the agent wrote {_excerpt(new.query)}"
        if new.turn != old.turn:
            yield f"search {number} belongs to turn {old.turn}, and turn {new.turn} asked it"
        if new.selected != old.selected:
            choice = f"and the agent chose {_excerpt(new.selected)}"
            yield f"from search {number} {_excerpt(old.selected)} was selected, {choice}"
    if len(derived) != len(stored):
        yield f"it has {len(stored)} searches, and {len(derived)} follow from what the agent wrote"


def _excerpt(value: object) -> str:
    text = str(value) if isinstance(value, StopReason) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
