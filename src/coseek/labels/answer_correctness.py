"""Global answer correctness: whether the agent reaches the right answer from this one passage.

GAC(p) = EM(A(p), gold), where A(p) is the agent's answer when its run continues from the search with p as the only
result (Agentic-R, eq. 2 and 3). Turns before the search count against the agent's limits, as in the run. A branch
without an answer is wrong. A branch with a fault has no score and is repeated at the next start.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coseek.agents.branching import Branch, Branching
from coseek.agents.search_turns import SearchTurn
from coseek.agents.tag import Action
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.answers import exact_match
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.labels.label_folder import Score, ScoreCache
from coseek.labels.label_set import Candidate
from coseek.labels.resources import LabelResources
from coseek.models.model import ServedModel

# Positives: selects the positives of search turns with as few continuations of the agent as possible.
#
# Agentic-R ranks the candidates of a turn by (GAC, LR), both descending; ties keep the retriever's order. The first is
# the positive if its GAC is 1 and its LR at least 60 (Agentic-R, section 4.1). LR is known beforehand. GAC costs one
# continuation per candidate, and most continuations cannot change the result:
#
# 1. A candidate with an LR below 60 is never the positive. It ranks first only if no candidate with an LR of 60 or more
#    has a GAC of 1, and then there is no positive. It need not be continued.
# 2. Of the others, the positive is the first with a GAC of 1 by descending LR. Candidates after it rank below it,
#    whatever their GAC. They need not be continued.
# 3. Under the `code` rule the positives are the first three candidates that equal the first one in both scores. They
#    have the same LR, so they follow in the same order. Candidates after the last one with that LR, or after the third
#    positive, need not be continued.
#
# Negatives are drawn from all other candidates, so they need no GAC. A test compares the labels with those of
# continuing every candidate.

Ties: TypeAlias = Literal["paper", "code"]
LEAST = 60.0
"""Lower bound of a positive's local relevance (Agentic-R, section 4.1)."""
MOST_TIED = 3
"""Maximum number of positives of one turn under the `code` rule."""


def decide_positives(
    relevance_C: Sequence[float], correct: Mapping[int, bool], *, ties: Ties = "paper", least: float = LEAST
) -> tuple[tuple[int, ...], int | None]:
    """The positives of a turn in the retriever's order, empty if no candidate has both scores, and the candidate whose
    GAC is needed next: `None` once the positives are final.

    `relevance_C` is the LR of each candidate in the retriever's order, `correct` the GAC of those that were continued.
    Without LR (the ablation) pass the same number for all, without GAC a `correct` that is always true.
    """
    positives: list[int] = []
    eligible = [index for index, relevance in enumerate(relevance_C) if relevance >= least]
    for index in sorted(eligible, key=lambda index: -relevance_C[index]):
        if positives and relevance_C[index] < relevance_C[positives[0]]:
            break
        if index not in correct:
            return tuple(positives), index
        if correct[index]:
            positives.append(index)
        if len(positives) == (1 if ties == "paper" else MOST_TIED):
            break
    return tuple(positives), None


@dataclass(eq=False)
class PositiveChoice:
    """The choice of one turn's positives, which learns the GAC of candidates as they are continued."""

    relevance_C: Sequence[float]
    """LR of each candidate, in the retriever's order."""
    ties: Ties = "paper"
    least: float = LEAST
    exhaustive: bool = False
    """Continue every candidate first; the positives are the same."""
    _correct: dict[int, bool] = field(default_factory=dict)
    _tried: set[int] = field(default_factory=set)

    def wanted(self) -> tuple[int, ...]:
        """The candidates to continue now, each only once; empty when the choice is made."""
        _, next_candidate = self._outcome()
        indices = range(len(self.relevance_C)) if self.exhaustive and not self._tried else [next_candidate]
        untried = tuple(index for index in indices if index is not None and index not in self._tried)
        self._tried.update(untried)
        return untried

    @property
    def most_left(self) -> int:
        """Maximum number of candidates that may still be needed."""
        return sum(relevance >= self.least for relevance in self.relevance_C) - len(self._tried)

    def learn(self, candidate: int, right: bool | None) -> None:
        """Whether the answer from a candidate was right; `None` for a fault."""
        if right is not None:
            self._correct[candidate] = right

    @property
    def positives(self) -> tuple[int, ...] | None:
        """The positives; `None` where they depend on a GAC that is a fault."""
        positives, next_candidate = self._outcome()
        return positives if next_candidate is None else None

    def _outcome(self) -> tuple[tuple[int, ...], int | None]:
        return decide_positives(self.relevance_C, self._correct, ties=self.ties, least=self.least)


GAC = "gac"
BRANCHES = "branches"
"""Name in the counts."""

AHEAD = 2
"""Branches in flight for each slot of a server: some of them are searching."""


@dataclass(frozen=True)
class Correctness:
    """Continues the agent from passages, and caches the scores."""

    parts: LabelResources
    cache: ScoreCache[Score]
    _digests: dict[tuple[str, int], str] = field(default_factory=dict, repr=False)
    """Digests of runs, cached because runs have many tokens."""

    @classmethod
    def of(cls, parts: LabelResources) -> "Correctness":
        """Raises `SettingError` for an agent that writes no answer."""
        protocol = parts.agent.protocol
        if Action.ANSWER not in protocol.grammar.agent_tags:
            raise SettingError(
                f"an agent of the protocol {protocol.name} writes no answer, so GAC is undefined for it; choose "
                "gac=false"
            )
        card: JsonObject = {"agent": parts.agent_identity, "retriever": parts.retriever.identity}
        identity = digest_of(GAC, parts.agent_identity, parts.retriever.identity)
        return cls(parts, parts.score_cache(GAC, Score, identity, card))

    @property
    def identity(self) -> str:
        """A digest of everything that correctness depends on besides the agent's context."""
        return self.cache.identity

    def decide(self, feed: "Feed") -> Iterator["TurnCorrectness"]:
        """Continue the agent from the candidates of turns until their positives are chosen; yields each such turn.

        `feed(wait)` is called when there is room, and returns the next turns, or `None` after the last ones. Only
        without `wait` may it return an empty list, if no turn is ready yet. Turns do not wait for each other. Scores
        are cached as soon as their branches have ended, and not computed again.
        """
        return _Continuations(self, feed).decided()

    def cached(self, turn: SearchTurn, passage: Passage) -> Score | None:
        """The cached score."""
        return self.cache.get((*turn.id.key, passage.id, self._context(turn, passage)))

    def keep(self, turn: SearchTurn, passage: Passage, trajectory: Trajectory) -> Score:
        """Score a branch that has ended, and cache the score."""
        # A search that failed before the branch is the trajectory's; one that fails after it is a fault of the branch.
        searches = trajectory.searches[turn.search :]
        later_searches = (search for search in searches if search.turn != searches[0].turn)
        fault = next((search.fault for search in later_searches if search.fault), None)
        if trajectory.stop.is_fault:
            fault = trajectory.stop_detail or str(trajectory.stop)
        right = exact_match(trajectory.answer, turn.question.answers)
        detail = trajectory.answer if trajectory.answer is not None else str(trajectory.stop)
        value, detail = (float(right), detail) if fault is None else (None, "")
        score = Score(turn.id, passage.id, self._context(turn, passage), value, detail, fault)
        self.cache.keep([score])
        self.parts.tally.add(BRANCHES)
        self.parts.tally.fail("agent", fault)
        return score

    def _context(self, turn: SearchTurn, passage: Passage) -> str:
        """Digest of the run, the index of the search and the passage's text."""
        key = (turn.question.id, turn.trajectory.seed)
        if key not in self._digests:
            self._digests[key] = digest_of(",".join(map(str, turn.trajectory.ids)))
        return digest_of(self._digests[key], str(turn.search), passage.title, passage.text)[:16]


@dataclass(eq=False)
class TurnCorrectness:
    """A search turn with its candidates, and the scores of those that were continued."""

    turn: SearchTurn
    candidates: Sequence[Candidate]
    choice: PositiveChoice
    scores: dict[str, Score] = field(default_factory=dict)
    """By passage id."""

    def learn(self, index: int, score: Score) -> None:
        self.scores[score.passage_id] = score
        self.choice.learn(index, None if score.value is None else score.value == 1)


Feed: TypeAlias = Callable[[bool], Sequence[TurnCorrectness] | None]
"""Called with (wait): see `Correctness.decide`."""


class _Continuations:
    """Concurrent continuations of many turns."""

    def __init__(self, correctness: Correctness, feed: Feed) -> None:
        self.correctness, self.feed = correctness, feed
        parts = correctness.parts
        model = parts.agent.model
        self.alone = isinstance(model, ServedModel)
        """Whether each turn continues independently. With a model in this process, the turns of one run continue
        together, because their branches share its prefill."""
        options = {"concurrency": AHEAD * model.concurrency} if isinstance(model, ServedModel) else {}
        self.driver = Branching(parts.agent, parts.retriever, parts.limits, self._next, self._finish, **options)
        self.under_way: dict[int, tuple[TurnCorrectness, int]] = {}
        """By branch: its turn, and the index of its passage."""
        self.siblings: dict[int, _Siblings] = {}
        self.done: list[TurnCorrectness] = []

    def decided(self) -> Iterator[TurnCorrectness]:
        for _ in self.driver.steps():
            yield from self._take_done()
        yield from self._take_done()

    def _take_done(self) -> list[TurnCorrectness]:
        done, self.done = self.done, []
        return done

    def _next(self, wait: bool) -> list[Branch] | None:
        """Branches of the next turns. Turns whose scores are all cached are decided without a branch."""
        while turns := self.feed(wait):
            for undecided in turns:
                self.siblings.setdefault(id(undecided.turn.trajectory), _Siblings()).turns.append(undecided)
            if branches := [branch for undecided in turns for branch in self._branches(undecided)]:
                return branches
        return None if turns is None else []

    def _branches(self, undecided: TurnCorrectness) -> list[Branch]:
        """The branches that a turn needs next; without any it is decided."""
        while indices := undecided.choice.wanted():
            branches = []
            for index in indices:
                if (score := self.correctness.cached(undecided.turn, undecided.candidates[index].passage)) is not None:
                    undecided.learn(index, score)
                else:
                    branches.append(self._branch(undecided, index))
            if branches:
                return branches
        self.done.append(undecided)
        self.siblings[id(undecided.turn.trajectory)].turns.remove(undecided)
        return []

    def _branch(self, undecided: TurnCorrectness, index: int) -> Branch:
        trajectory = undecided.turn.trajectory
        # Turns with most candidates left come first, and the scorer's calls (rank 0) before every branch: otherwise the
        # last turns would run alone while other slots are idle.
        rank = 1 + len(undecided.candidates) - undecided.choice.most_left
        passages = (undecided.candidates[index].passage,)
        branch = Branch(trajectory, undecided.turn.search, passages, trajectory.seed, rank)
        self.under_way[id(branch)] = undecided, index
        self.siblings[id(trajectory)].open += 1
        return branch

    def _finish(self, branch: Branch, trajectory: Trajectory) -> None:
        """Score a branch, and add the next ones."""
        undecided, index = self.under_way.pop(id(branch))
        score = self.correctness.keep(undecided.turn, undecided.candidates[index].passage, trajectory)
        undecided.learn(index, score)
        siblings = self.siblings[id(branch.trajectory)]
        siblings.open -= 1
        if self.alone:
            # With `exhaustive` a turn has several branches: it goes on once the last of them has ended.
            if not any(other is undecided for other, _ in self.under_way.values()):
                self.driver.add(self._branches(undecided))
        elif not siblings.open:
            self.driver.add([branch for sibling in [*siblings.turns] for branch in self._branches(sibling)])
        if not siblings.turns:
            self.siblings.pop(id(branch.trajectory), None)


@dataclass(slots=True)
class _Siblings:
    """The undecided turns of one run, and the number of their open branches."""

    turns: list[TurnCorrectness] = field(default_factory=list)
    open: int = 0
