"""Global answer correctness: whether the agent reaches the right answer from this one passage.

GAC(p) = EM(A(p), gold), where A(p) is the agent's answer when its run continues from the search with p as the only
result (Agentic-R, eq. 2 and 3). Turns before the search count against the agent's limits, as in the run. A branch
without an answer is wrong. A branch with a fault has no score and is repeated at the next start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coseek.agents.branching import Branch, branch
from coseek.agents.grammar import Action
from coseek.agents.search_turns import SearchTurn
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Trajectory
from coseek.graders.call_counts import FAULT
from coseek.labels.resources import LabelResources
from coseek.labels.score_cache import Score, ScoreCache
from coseek.measure.answers import exact_match

GAC = "gac"
BRANCHES = "branches"
"""Name in the counts."""

Wanted: TypeAlias = tuple[SearchTurn, Passage]


@dataclass(frozen=True)
class Correctness:
    """Continues the agent from passages, and caches the scores."""

    parts: LabelResources
    kept: ScoreCache[Score]
    _runs: dict[tuple[str, int], str] = field(default_factory=dict, repr=False)
    """Digests of runs, cached because runs have many tokens."""

    @classmethod
    def of(cls, parts: LabelResources) -> "Correctness":
        """Raises `SettingError` for an agent that writes no answer."""
        protocol = parts.agent.protocol
        if protocol.tag_for(Author.AGENT, Action.ANSWER) is None:
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
        return self.kept.cache.identity

    def tell(self, wanted: Sequence[Wanted]) -> list[Score]:
        """1 or 0 for each passage, in order; `None` for a fault. Known scores are not computed again."""
        keys = [(*turn.id.key, passage.id, self._context(turn, passage)) for turn, passage in wanted]
        known = {key: score for key in keys if (score := self.kept.get(key)) is not None}
        left = [place for place, key in enumerate(keys) if key not in known]
        fresh = dict(zip(left, self._continued([wanted[place] for place in left]), strict=True))
        return [fresh[place] if place in fresh else known[key] for place, key in enumerate(keys)]

    def _continued(self, wanted: Sequence[Wanted]) -> list[Score]:
        """Continue the agent from each passage. A score is cached as soon as its branch has ended."""
        branches = [Branch(turn.trajectory, turn.search, (passage,), turn.trajectory.seed) for turn, passage in wanted]
        turns = {id(one): turn for one, (turn, _) in zip(branches, wanted, strict=True)}
        scores: dict[int, Score] = {}

        def keep(ended: Branch, run: Trajectory) -> None:
            score = self._score(turns[id(ended)], ended.passages[0], run)
            scores[id(ended)] = score
            self.kept.keep([score])
            self.parts.tally.add(BRANCHES)
            self.parts.tally.add(FAULT + "agent", score.fault is not None)

        branch(self.parts.agent, self.parts.retriever, branches, self.parts.limits, on_done=keep)
        return [scores[id(one)] for one in branches]

    def _score(self, turn: SearchTurn, passage: Passage, run: Trajectory) -> Score:
        context = self._context(turn, passage)
        if run.stop.is_fault:
            return Score(turn.id, passage.id, context, None, fault=run.stop_detail or str(run.stop))
        # A search that failed before the branch belongs to the run; one that fails after it is a fault of the branch.
        later = (one for one in run.searches[turn.search :] if one.turn != run.searches[turn.search].turn)
        if lost := next((one.fault for one in later if one.fault is not None), None):
            return Score(turn.id, passage.id, context, None, fault=lost)
        right = exact_match(run.answer, turn.question.answers)
        detail = run.answer if run.answer is not None else str(run.stop)
        return Score(turn.id, passage.id, context, float(right), detail)

    def _context(self, turn: SearchTurn, passage: Passage) -> str:
        """Digest of the run, the index of the search and the passage's text."""
        key = (turn.question.id, turn.trajectory.seed)
        if key not in self._runs:
            self._runs[key] = digest_of(",".join(map(str, turn.trajectory.ids)))
        return digest_of(self._runs[key], str(turn.search), passage.title, passage.text)[:16]
