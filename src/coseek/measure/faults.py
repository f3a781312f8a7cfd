"""Faults: why trajectories and answers of a run have no score, for the notes below its table. Knows no score."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from coseek.data.grade_cache import Verdict
from coseek.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Faults:
    """Each reason with its number."""

    trajectories: Counter[str] = field(default_factory=Counter)
    no_reply: Counter[str] = field(default_factory=Counter)
    """Of verdicts for which the judge's model wrote nothing."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Of verdicts that could not be read."""
    read: Counter[bool] = field(default_factory=Counter)
    """The verdicts that there are."""

    def add(self, trajectory: Trajectory, verdicts: Mapping[tuple[str, str], Verdict] | None) -> None:
        """Count the verdict on an answer, or the reason why it is missing."""
        verdict = (verdicts or {}).get((trajectory.question.id, trajectory.answer or ""))
        if verdict is not None and verdict.right is not None:
            self.read[verdict.right] += 1
        elif verdict is not None and verdict.fault:
            (self.unreadable if verdict.text else self.no_reply)[verdict.fault] += 1


def commonest(reasons: Counter[str]) -> str:
    """The most frequent reason with its number; "" for none."""
    return "".join(f"{count} of {reasons.total()}: {reason}" for reason, count in reasons.most_common(1))
