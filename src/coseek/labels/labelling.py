"""Labelling: labels from runs, turn by turn, into a folder that can be resumed."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coseek.agents.search_turns import SearchTurn, TurnId
from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.record import Record
from coseek.data.run import RowKey, Run
from coseek.graders.call_counts import CallCounts
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import trajectory_digest
from coseek.labels.maker import LabelMaker

Tell = Callable[[int, int], None]
"""Called with (turns done, total)."""


@dataclass(frozen=True)
class LabelSummary(Record):
    """Counts of one start of label making."""

    turns: int
    labelled: int
    """Turns with a label."""
    sets: int
    """Label sets; more than labelled turns where a turn has several positives."""
    dropped: Mapping[str, int]
    """Turns without a label, by reason."""
    left: int
    """Turns that failed; the next start repeats them."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Calls, retries, branches and faults of this start."""
    seconds: float = 0.0
    """Duration of this start."""

    def _written(self, row: JsonObject) -> JsonObject:
        return {**row, "seconds": round(self.seconds, 1)}


def make_labels(
    labels: LabelFolder,
    maker: LabelMaker,
    turns: Iterable[SearchTurn],
    tally: CallCounts,
    tell: Tell | None = None,
    runs: Callable[[], Mapping[RowKey, str]] = dict,
) -> LabelSummary:
    """Label the turns without labels; `turns` are read twice. Rows are appended as they are known and sorted by turn at
    the end, so that the files do not depend on timing. `runs`: see `LabelFolder.recover`."""
    began = time.perf_counter()
    order = check_distinct(turns)
    left = unlabelled(labels, order, runs)
    over = len(order) - len(left)

    def told(done: int, _: int) -> None:
        if tell is not None:
            tell(over + done, len(order))

    label_turns(labels, maker, (turn for turn in turns if turn.id in left), len(left), told)
    labels.arrange([*order])
    return summary(labels, [*order], tally, time.perf_counter() - began)


def unlabelled(
    labels: LabelFolder, order: Mapping[TurnId, str], runs: Callable[[], Mapping[RowKey, str]]
) -> dict[TurnId, None]:
    """The turns without a label in the folder, which is mended after a kill, in order."""
    done = labels.recover(order, runs)
    return dict.fromkeys(turn for turn in order if turn not in done)


def label_turns(
    labels: LabelFolder, maker: LabelMaker, turns: Iterable[SearchTurn], count: int, tell: Tell = lambda *_: None
) -> None:
    """Label these `count` turns. Rows are appended as they are known, with the digest of their trajectory."""
    tell(0, count)
    labelled: set[TurnId] = set()
    digests: dict[TurnId, str] = {}

    def noted() -> Iterator[SearchTurn]:
        for turn, digest in _with_digests(turns):
            digests[turn.id] = digest
            yield turn

    with labels.appending() as append:
        for row in maker.label(noted()):
            append(replace(row, trajectory=digests[row.turn]))
            labelled.add(row.turn)
            tell(len(labelled), count)
    tell(count, count)


def digests_of(runs: Iterable[Run]) -> dict[RowKey, str]:
    """The digest of every trajectory of runs."""
    stored = (trajectory for run in runs for trajectory in run.trajectories())
    return {(trajectory.question.id, trajectory.seed): trajectory_digest(trajectory) for trajectory in stored}


def check_distinct(turns: Iterable[SearchTurn]) -> dict[TurnId, str]:
    """The turns, each with the digest of its trajectory. Raises `DataError` for a duplicate."""
    order: dict[TurnId, str] = {}
    for turn, digest in _with_digests(turns):
        if turn.id in order:
            raise DataError(
                f"question {turn.question.id!r} has two trajectories with the seed {turn.trajectory.seed}, which "
                "cannot be told apart; make one of the runs with another --seed"
            )
        order[turn.id] = digest
    return order


def _with_digests(turns: Iterable[SearchTurn]) -> Iterator[tuple[SearchTurn, str]]:
    """Each turn with the digest of its trajectory, computed once for turns that come together."""
    last, digest = None, ""
    for turn in turns:
        if turn.trajectory is not last:
            last, digest = turn.trajectory, trajectory_digest(turn.trajectory)
        yield turn, digest


def summary(labels: LabelFolder, order: Sequence[TurnId], tally: CallCounts, seconds: float = 0.0) -> LabelSummary:
    """Counts of a folder and of this start."""
    sets = Counter(row.turn for row in labels.sets())
    dropped = Counter(row.reason for row in labels.dropped())
    counts = {name: count for name, count in sorted(tally.counts.items()) if count}
    left = len(order) - len(sets) - dropped.total()
    return LabelSummary(len(order), len(sets), sets.total(), dict(dropped.most_common()), left, counts, seconds)
