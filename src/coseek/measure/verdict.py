"""Verdict: what a paired comparison says, in fixed words.

A run is *better* or *worse* than another if the 95 % interval of the paired difference excludes 0 and the paired test
gives p < .05, after Holm's correction for all comparisons of one line. Everything else *cannot be told*: a small test
says nothing, not "no difference".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coseek.core.text import counted
from coseek.measure.intervals import Difference, holm
from coseek.measure.question_groups import ALL
from coseek.measure.score import Scores

SIGNIFICANT = 0.05
NEUTRAL = frozenset(
    ("searches", "turns", "agent_tokens", "read_tokens", "passages", "context_passages", "context_tokens", "wall_s")
    + ("cost_usd", "unread_verdicts", "declined", "confidence", "truncated", "missed_visits")
)
"""Metrics of which more is neither better nor worse."""


class Outcome(StrEnum):
    """The three answers to "is it better?"."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "cannot be told"


@dataclass(frozen=True, slots=True)
class PairedClaim:
    """A comparison whose outcome is asked for."""

    run: str
    against: str
    metric: str
    difference: Difference | None
    """`None` if the runs share no question with this metric."""
    where: str = ""
    """The set of questions, if there are several."""
    unit: str = "question"

    def sentence(self, outcome: Outcome) -> str:
        """`on test, after is better than before in em (+0.243 [0.200, 0.288], 400 questions)`."""
        on = f"on {self.where}, " if self.where else ""
        if self.difference is None:
            return f"{on}whether {self.run} is better than {self.against} in {self.metric} cannot be told (none shared)"
        found = self.difference.difference
        sign = "+" if found.mean > 0 else ""
        interval = "" if found.low is None or found.high is None else f" [{found.low:.3f}, {found.high:.3f}]"
        size = f"({sign}{found.mean:.3f}{interval}, {counted(found.n, self.unit)})"
        if outcome is Outcome.OPEN:
            return f"{on}whether {self.run} is better than {self.against} in {self.metric} cannot be told {size}"
        return f"{on}{self.run} is {outcome} than {self.against} in {self.metric} {size}"


def outcomes(claims: Sequence[PairedClaim]) -> list[Outcome]:
    """The outcome of each claim, corrected for all of them."""
    corrected = holm([1.0 if one.difference is None else one.difference.p for one in claims])
    return [_outcome(one.difference, p) for one, p in zip(claims, corrected, strict=True)]


def verdict(claims: Sequence[PairedClaim]) -> str:
    """One line for all claims; empty without any."""
    if not claims:
        return ""
    said = [claim.sentence(outcome) for claim, outcome in zip(claims, outcomes(claims), strict=True)]
    return f"Verdict: {'; '.join(said)}."


def overall(claims: Sequence[PairedClaim]) -> Outcome:
    """One outcome for a comparison on several sets: better or worse if some set says so and none the opposite."""
    found = set(outcomes(claims))
    if Outcome.BETTER in found and Outcome.WORSE not in found:
        return Outcome.BETTER
    return Outcome.WORSE if Outcome.WORSE in found and Outcome.BETTER not in found else Outcome.OPEN


def claims_of(scores: Scores, metrics: Sequence[str], group: str = ALL) -> list[PairedClaim]:
    """A claim for each comparison, in the first of the metrics that has a better end and was compared."""
    found: list[PairedClaim] = []
    for comparison in (one for one in scores.comparisons if one.group == group):
        metric = next((name for name in metrics if name not in NEUTRAL and name in comparison.metrics), None)
        if metric is not None:
            found.append(PairedClaim(comparison.run, comparison.against, metric, comparison.metrics[metric]))
    return found


def claims_between(scores: Scores, pairs: Iterable[tuple[str, str]], metric: str, where: str = "") -> list[PairedClaim]:
    """The claims of those pairs of runs that were compared, in the order of `pairs`."""
    compared = {(one.run, one.against): one.metrics.get(metric) for one in scores.comparisons if one.group == ALL}
    return [PairedClaim(*pair, metric, compared[pair], where) for pair in pairs if pair in compared]


def _outcome(difference: Difference | None, p: float) -> Outcome:
    if difference is None or p >= SIGNIFICANT:
        return Outcome.OPEN
    low, high = difference.difference.low, difference.difference.high
    if low is not None and low > 0:
        return Outcome.BETTER
    return Outcome.WORSE if high is not None and high < 0 else Outcome.OPEN
