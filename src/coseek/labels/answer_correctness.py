"""Global answer correctness: does the agent reach the answer when this one passage is all that a search showed it?

GAC(p) = EM(A(p), gold), where A(p) is what the agent answers after its run up to and including the search, p alone in
the place of what the search found, and whatever it writes and searches from there (Agentic-R, eq. 2 and 3). The agent
itself reads several passages a search: that it is given one here is the paper's rule. Turns that the run has
taken count against the agent's budget, as they did in the run. A branch that ends without an answer is wrong; one in
which a part failed says nothing, and is continued again at the next start.
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
"""Name in the tally."""

Wanted: TypeAlias = tuple[SearchTurn, Passage]


@dataclass(frozen=True)
class Correctness:
    """The agent, which goes on from passages, and what came of it so far."""

    parts: LabelResources
    kept: ScoreCache[Score]
    _runs: dict[tuple[str, int], str] = field(default_factory=dict, repr=False)
    """Digests of runs, which are many tokens long."""

    @classmethod
    def of(cls, parts: LabelResources) -> "Correctness":
        """Refuses an agent that writes no answer."""
        protocol = parts.agent.protocol
        if protocol.tag_for(Author.AGENT, Action.ANSWER) is None:
            raise SettingError(
                f"an agent of the protocol {protocol.name} writes no answer, so nobody can say whether a passage leads "
                "to the right one; choose gac=false"
            )
        card: JsonObject = {"agent": parts.agent_identity, "retriever": parts.retriever.identity}
        identity = digest_of(GAC, parts.agent_identity, parts.retriever.identity)
        return cls(parts, parts.sheet(GAC, Score, identity, card))

    @property
    def identity(self) -> str:
        """A digest of all that correctness depends on besides what the agent has read."""
        return self.kept.sheet.identity

    def tell(self, wanted: Sequence[Wanted]) -> list[Score]:
        """1 or 0 for each passage, in order; `None` for a fault. What is known is not asked again."""
        keys = [(*turn.id.key, passage.id, self._context(turn, passage)) for turn, passage in wanted]
        known = {key: score for key in keys if (score := self.kept.get(key)) is not None}
        left = [place for place, key in enumerate(keys) if key not in known]
        fresh = dict(zip(left, self._continued([wanted[place] for place in left]), strict=True))
        return [fresh[place] if place in fresh else known[key] for place, key in enumerate(keys)]

    def _continued(self, wanted: Sequence[Wanted]) -> list[Score]:
        """Let the agent go on from each; every score is kept as soon as its branch has ended."""
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
        # What failed before the branch is part of its past, as it was when the agent searched; later it is a fault.
        later = (one for one in run.searches[turn.search :] if one.turn != run.searches[turn.search].turn)
        if lost := next((one.fault for one in later if one.fault is not None), None):
            return Score(turn.id, passage.id, context, None, fault=lost)
        right = exact_match(run.answer, turn.question.answers)
        detail = run.answer if run.answer is not None else str(run.stop)
        return Score(turn.id, passage.id, context, float(right), detail)

    def _context(self, turn: SearchTurn, passage: Passage) -> str:
        """Digest of the run, the place of the search and the passage's words."""
        key = (turn.question.id, turn.trajectory.seed)
        if key not in self._runs:
            self._runs[key] = digest_of(",".join(map(str, turn.trajectory.ids)))
        return digest_of(self._runs[key], str(turn.search), passage.title, passage.text)[:16]
