"""Credit of a stored run's turns: continues the agent from every turn, and scores signals against the outcomes.

A state after a turn that searched is continued from the turn's own passages (`agents/branching.py`), so a model that
can fork reads each run once. The last turn, and turns that did not search, have no value.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from pydantic import Field

from coseek.agents.branching import Branch, branch, searches_by_turn
from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import AgentSettings, is_scripted, open_agent, open_tokenizer
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import row_seed
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.core.settings import Settings, make_settings
from coseek.data.answers import exact_match
from coseek.data.dataset import draw
from coseek.data.grade_cache import GradeCache
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import TrajectoryScorer
from coseek.measure import credit as measures
from coseek.measure.credit import (
    DECISIVE,
    CreditScores,
    SignalScore,
    StateOutcome,
    TurnKey,
    score_signal,
    turn_values,
    within_questions,
)
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.pipelines.labelling import agent_of, identity_of, limits_of, retriever_of
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import RewardSpec, make_reward
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.algorithm import GoldContext, GoldProbe, open_algorithm
from coseek.training.rl.experience import make_experience
from coseek.training.rl.gold_probe import AnswerWriter, PolicyProbe
from coseek.training.rl.rollout import score
from coseek.training.rl.settings import RlSettings

SIGNALS = Path(measures.__file__).with_name("credits.yaml")
RULER = "half of the continuations"
AT_ONCE = 4096
"""Continuations that are sampled before the next are listed."""
READ_AT_ONCE = 64
"""Contexts that are read before they are stored."""
Tell: TypeAlias = Callable[[int, int], None]


class CreditSignal(Settings):
    """A signal: the advantages that an algorithm gives a turn's tokens."""

    algorithm: str
    """`rl.algorithm`: a name, or a file."""
    settings: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """`rl.algorithm_settings`."""
    reward: RewardSpec = Field(default_factory=lambda: RewardSpec({"exact_match": 1.0}))
    """The reward that the algorithm is given."""


def load_signals(names: Sequence[str]) -> dict[str, CreditSignal]:
    """Signals by name; a YAML file adds its signals. Without names, all shipped ones."""
    shipped = _signals(SIGNALS)
    if not names:
        return shipped
    chosen: dict[str, CreditSignal] = {}
    for name in names:
        if name.endswith((".yaml", ".yml")):
            chosen |= _signals(Path(name))
        elif name in shipped:
            chosen[name] = shipped[name]
        else:
            raise UnknownName("signal", name, shipped)
    return chosen


def _signals(path: Path) -> dict[str, CreditSignal]:
    tree = read_yaml(path, "file of signals", "`name: {algorithm: …}`")
    signals: dict[str, CreditSignal] = {}
    for name, signal_tree in tree.items():
        if not isinstance(signal_tree, dict):
            raise SettingError(f"{path}: the signal {name!r} is {signal_tree!r}; write {name}: {{algorithm: …}}")
        signals[name] = make_settings(CreditSignal, signal_tree, path)
    return signals


# --- continuations


@dataclass(frozen=True)
class Ruler:
    """Continues runs from their turns, and stores the outcome of each continuation."""

    agent: Agent
    agent_identity: str
    retriever: Retriever
    limits: Limits
    continuations: int
    """Continuations of every state."""
    folder: Path

    @property
    def cache(self) -> GradeCache[StateOutcome]:
        identity = digest_of("credit", self.agent_identity, self.retriever.identity, str(self.limits))
        return GradeCache.beside(self.folder, StateOutcome, identity, {"agent": self.agent_identity})

    def measure(self, trajectories: Sequence[Trajectory], tell: Tell = lambda *_: None) -> list[StateOutcome]:
        """Continue every state that has no outcome in the folder yet, and store each outcome as its continuation ends.
        Faults are retried."""
        outcomes = {key: outcome for key, outcome in self.cache.entries().items() if outcome.fault is None}
        states = [*self._states(trajectories)]
        missing_states = [state for state in states if state.key not in outcomes]
        first = len(outcomes)
        with self.cache.appending() as file:

            def keep(state: _State, trajectory: Trajectory) -> None:
                outcomes[state.key] = state.ended(trajectory)
                self.cache.append(file, outcomes[state.key])
                tell(len(outcomes) - first, len(missing_states))

            for start in range(0, len(missing_states), AT_ONCE):
                self._continue(missing_states[start : start + AT_ONCE], keep)
        return [outcomes[state.key] for state in states if state.key in outcomes]

    def _states(self, trajectories: Sequence[Trajectory]) -> "Iterator[_State]":
        numbers = range(self.continuations)
        for question in {trajectory.question.id: trajectory.question for trajectory in trajectories}.values():
            yield from (_State(question, 0, 0, number, digest_of(*question.answers)) for number in numbers)
        for run in trajectories:
            for turn, position in searches_by_turn(run).items():
                ids = run.ids[: run.turn_spans[turn - 1][1]]
                digest = digest_of(f"{ids}", f"{run.searches[position].to_json()}", *run.question.answers)
                yield from (_State(run.question, run.seed, turn, number, digest, (run, position)) for number in numbers)

    def _continue(self, states: "Sequence[_State]", keep: "Callable[[_State, Trajectory], None]") -> None:
        """Continue states; `keep` is called as each continuation ends."""
        initial = {(state.question.id, state.continued_seed): state for state in states if state.search is None}
        rollout(
            self.agent, self.retriever, [state.question for state in initial.values()], [seed for _, seed in initial],
            self.limits, on_done=lambda done: keep(initial[done.question.id, done.seed], done), keep=False,
        )  # fmt: skip
        branches: list[Branch] = []
        state_of: dict[int, _State] = {}
        for state in states:
            if state.search is not None:
                stored, position = state.search
                passages = tuple(hit.passage for hit in stored.searches[position].hits)
                branches.append(Branch(stored, position, passages, state.continued_seed))
                state_of[id(branches[-1])] = state
        branch(
            self.agent, self.retriever, branches, self.limits,
            on_done=lambda branched, trajectory: keep(state_of[id(branched)], trajectory),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _State:
    """One continuation to make."""

    question: Question
    seed: int
    turn: int
    number: int
    digest: str
    """Digest of the gold answers and of what the run did up to there."""
    search: tuple[Trajectory, int] | None = None
    """The run and the position of the search to continue from; `None` for a new run."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question.id, str(self.seed), str(self.turn), str(self.number), self.digest

    @property
    def continued_seed(self) -> int:
        return row_seed(self.seed, f"{self.question.id}/{self.turn}", self.number)

    def ended(self, trajectory: Trajectory) -> StateOutcome:
        fault = None if trajectory.fault is None else trajectory.fault[1] or str(trajectory.fault[0])
        right = None if fault is not None else float(exact_match(trajectory.answer, self.question.answers))
        tokens = trajectory.agent_tokens - (sum(end - start for start, end in trajectory.turn_spans[: self.turn]))
        return StateOutcome(self.question.id, self.seed, self.turn, self.number, right, tokens, fault, self.digest)


# --- signals


def credit_of(stored: Sequence[Trajectory], signal: CreditSignal, probe: GoldProbe | None) -> dict[TurnKey, float]:
    """The mean advantage that the signal gives the tokens of every turn. Raises `SettingError` if its reward cannot be
    computed."""
    numbers = {ident: number for number, ident in enumerate(dict.fromkeys(run.question.id for run in stored))}
    ordered = sorted(stored, key=lambda trajectory: numbers[trajectory.question.id])
    groups = [numbers[trajectory.question.id] for trajectory in ordered]
    size = max(Counter(groups).values(), default=1)
    settings = make_settings(
        RlSettings, {"algorithm": signal.algorithm, "algorithm_settings": {**signal.settings}, "group_size": size}
    )
    episodes = score(groups, ordered, TrajectoryScorer(make_reward(signal.reward)))
    if len(episodes.scored) < len(ordered):
        raise SettingError(f"the reward of the signal {signal.algorithm} failed: {dict(episodes.faults)}")
    experience = make_experience(episodes, settings, open_algorithm(settings), None, probe)
    return {
        # in float64, where the mean of equal numbers is that number
        (trajectory.question.id, trajectory.seed, turn): float(experience.advantages_BT[row, start:end].double().mean())
        for row, trajectory in enumerate(ordered)
        for turn, (start, end) in enumerate(trajectory.turn_spans, start=1)
    }


def gold_probe_of(settings: AgentSettings) -> GoldProbe | None:
    """A probe that reads gold answers with the agent's weights; `None` if the agent is not a model folder."""
    folder = model_path(settings.name)
    if is_scripted(settings.name) or settings.is_remote or not (folder / "config.json").is_file():
        return None
    protocol = load_protocol(settings.protocol, settings.prompt_template, settings.chat_template, run_files=True)
    policy = Policy(load_model(folder, settings), LearnerSettings(), 1, settings.temperature)
    return PolicyProbe(policy, AnswerWriter(protocol, open_tokenizer(settings, protocol)))


@dataclass(frozen=True, slots=True)
class GoldLikelihood(Record):
    """What the policy gives the gold answer after a context of one of its runs."""

    question_id: str
    seed: int
    context: str
    """Digest of the context's token ids and the gold answers."""
    logprob: float
    """Per token."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), self.context

    @property
    def fault(self) -> None:
        return None


@dataclass
class CountingProbe:
    """A `GoldProbe` that reads each context once and stores what it read, and counts the tokens of every request."""

    probe: GoldProbe
    cache: GradeCache[GoldLikelihood]
    tokens: int = 0

    def __call__(self, contexts: Sequence[GoldContext]) -> list[float]:
        keys: list[tuple[str, ...]] = []
        for run, context in contexts:
            ids = [token for segment in context for token in segment.ids]
            self.tokens += len(ids)
            digest = digest_of(",".join(map(str, ids)), *run.question.answers)
            keys.append((run.question.id, str(run.seed), digest))
        logprobs = {key: entry.logprob for key, entry in self.cache.entries().items()}
        context_of = dict(zip(keys, contexts, strict=True))
        unread = [key for key in context_of if key not in logprobs]
        with self.cache.appending() as file:
            for start in range(0, len(unread), READ_AT_ONCE):
                part = unread[start : start + READ_AT_ONCE]
                for key, logprob in zip(part, self.probe([context_of[key] for key in part]), strict=True):
                    run, _ = context_of[key]
                    self.cache.append(file, GoldLikelihood(run.question.id, run.seed, key[-1], logprob))
                    logprobs[key] = logprob
        return [logprobs[key] for key in keys]


def measured_turns(stored: Sequence[Trajectory]) -> list[TurnKey]:
    """The turns that searched."""
    return [(run.question.id, run.seed, turn) for run in stored for turn in searches_by_turn(run)]


def values_of(
    trajectories: Sequence[Trajectory], outcomes: Sequence[StateOutcome]
) -> tuple[dict[TurnKey, float], dict[TurnKey, float], dict[TurnKey, float]]:
    """The values of the turns by all continuations, and by each half where both have one. Raises `DataError`."""
    turns = measured_turns(trajectories)
    values = turn_values(turns, outcomes)
    if not values:
        raise DataError("no turn has a value: none searched, or no continuation went through")
    even, odd = turn_values(turns, outcomes, 0), turn_values(turns, outcomes, 1)
    # Faults may leave a state with continuations of one half alone.
    return values, {key: even[key] for key in even if key in odd}, {key: odd[key] for key in odd if key in even}


def measure_credit(
    folder: Path,
    signals: Mapping[str, CreditSignal],
    continuations: int,
    out: Path,
    decisive: float = DECISIVE,
    count: int | None = None,
    device: str | None = None,
    tell: Callable[[str, int, int], None] = lambda *_: None,
    say: Callable[[str], None] = lambda _: None,
) -> CreditScores:
    """Continue the turns of a stored run, of `count` of its questions, and score signals on them.

    `tell` is called with (`continuations`, done, total), then with `signals`. A signal that cannot be computed is
    skipped and reported.
    """
    stored = Run(folder)
    settings = sampling_agent(stored, device)
    faultless = [trajectory for trajectory in stored.trajectories() if trajectory.fault is None]
    questions = {trajectory.question.id: trajectory.question for trajectory in faultless}
    drawn_ids = {question.id for question in draw([*questions.values()], count, 0)}
    trajectories = [trajectory for trajectory in faultless if trajectory.question.id in drawn_ids]
    agent, retriever = open_agent(settings), open_retriever(retriever_of([stored], None))
    ruler = Ruler(agent, identity_of(settings), retriever, limits_of([stored], None, settings), continuations, out)
    if old_count := sum(not outcome.state for outcome in ruler.cache.entries().values()):
        say(
            f"{out} holds {old_count} outcomes of an earlier version that name no gold answers; they are measured again"
        )
    outcomes = ruler.measure(trajectories, partial(tell, "continuations"))
    values, even_values, odd_values = values_of(trajectories, outcomes)
    scores: dict[str, SignalScore] = {}
    within: dict[str, dict[str, float]] = {}
    tokens = {RULER: sum(outcome.tokens for outcome in outcomes) / len(values)}

    def add(name: str, truth: Mapping[TurnKey, float], signal: Mapping[TurnKey, float]) -> None:
        scores[name] = score_signal(truth, signal, decisive)
        within[name] = within_questions(truth, signal, decisive)

    gold_probe = gold_probe_of(settings)
    cache = GradeCache.beside(out, GoldLikelihood, ruler.agent_identity, {"agent": settings.name})
    probe = None if gold_probe is None else CountingProbe(gold_probe, cache)
    for number, (name, signal) in enumerate(signals.items()):
        tell("signals", number, len(signals))
        before = 0 if probe is None else probe.tokens
        try:
            add(name, values, credit_of(trajectories, signal, probe))
        except (SettingError, DataError) as error:
            say(f"{name} is left out: {error}")
            continue
        tokens[name] = 0.0 if probe is None else (probe.tokens - before) / len(values)
    rated_questions = within_questions(values, values, decisive)
    add(RULER, even_values, odd_values)
    within[RULER] = {question: value for question, value in within[RULER].items() if question in rated_questions}
    return CreditScores(values, scores, within, tokens, sum(outcome.fault is not None for outcome in outcomes))


def sampling_agent(run: Run, device: str | None) -> AgentSettings:
    """The agent of a run at its temperature. Raises `SettingError` for a greedy agent, whose continuations would all be
    equal."""
    settings = agent_of([run], None, 1.0)
    agent = run.settings.get("agent")
    if settings is None or not isinstance(agent, dict):
        raise SettingError(f"{run.folder} names no agent that could go on")
    if not agent.get("temperature") and not is_scripted(settings.name):
        raise SettingError(f"{run.folder} was run greedily and has one continuation; run it with --temperature 1")
    update = {"temperature": agent.get("temperature"), **({} if device is None else {"device": device})}
    return settings.model_copy(update=update)
