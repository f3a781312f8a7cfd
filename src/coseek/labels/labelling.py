"""Labelling: labels from runs, turn by turn, into a folder that can be resumed."""

import shutil
import tempfile
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Generic, TypeAlias, TypeVar, cast

from coseek.agents.search_turns import SearchTurn, TurnId
from coseek.core.cluster import Cluster, check_same, shares_of
from coseek.core.errors import DataError, commonest
from coseek.core.files import JsonObject
from coseek.core.record import OMIT_EMPTY, Record
from coseek.data.question import Question
from coseek.data.run import RowKey, Run, RunRows
from coseek.graders.structured_output import WHY, CallCounts
from coseek.labels.label_folder import LabelFolder, LineFile, absorb_lines
from coseek.labels.label_set import trajectory_digest
from coseek.labels.maker import Labelled, LabelMaker, RolloutMaker
from coseek.labels.resources import LabelResources, by_trajectory

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
    reason: Annotated[str, OMIT_EMPTY] = ""
    """The most frequent reason of the faults of this start, with its number."""

    def _written(self, record: JsonObject) -> JsonObject:
        return {**record, "seconds": round(self.seconds, 1)}


def make_labels(
    labels: LabelFolder,
    maker: LabelMaker,
    turns: Iterable[SearchTurn],
    tally: CallCounts,
    tell: Tell = lambda *_: None,
    digests: Callable[[], Mapping[RowKey, str]] = dict,
) -> LabelSummary:
    """Label the turns without labels; `turns` are read twice. Rows are appended as they are known and sorted by turn at
    the end, so that the files do not depend on timing. `digests`: see `LabelFolder.recover`."""
    started_s = time.perf_counter()
    order = check_distinct(turns)
    missing = unlabelled(labels, order, digests)
    labelled_before = len(order) - len(missing)
    remaining = (turn for turn in turns if turn.id in missing)
    label_turns(labels, maker, remaining, len(missing), lambda done, _: tell(labelled_before + done, len(order)))
    labels.arrange([*order])
    return summary(labels, [*order], tally, time.perf_counter() - started_s)


def unlabelled(
    labels: LabelFolder, order: Mapping[TurnId, str], digests: Callable[[], Mapping[RowKey, str]]
) -> dict[TurnId, None]:
    """The turns without a label in the folder, which is mended after a kill, in order."""
    labelled = labels.recover(order, digests)
    return dict.fromkeys(turn for turn in order if turn not in labelled)


def label_turns(
    labels: LabelFolder, maker: LabelMaker, turns: Iterable[SearchTurn], count: int, tell: Tell = lambda *_: None
) -> None:
    """Label these `count` turns. Rows are appended as they are known, with the digest of their trajectory."""
    tell(0, count)
    labelled_turns: set[TurnId] = set()
    digests: dict[TurnId, str] = {}

    def read_turns() -> Iterator[SearchTurn]:
        for turn, digest in _with_digests(turns):
            digests[turn.id] = digest
            yield turn

    with labels.appending() as append:
        for label in maker.label(read_turns()):
            append(replace(label, trajectory=digests[label.turn]))
            labelled_turns.add(label.turn)
            tell(len(labelled_turns), count)
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
                "cannot be told apart; label the runs one by one, or make one with another --seed (import logs at once)"
            )
        order[turn.id] = digest
    return order


def _with_digests(turns: Iterable[SearchTurn]) -> Iterator[tuple[SearchTurn, str]]:
    """Each turn with the digest of its trajectory, computed once for turns that come together."""
    last_trajectory, digest = None, ""
    for turn in turns:
        if turn.trajectory is not last_trajectory:
            last_trajectory, digest = turn.trajectory, trajectory_digest(turn.trajectory)
        yield turn, digest


def summary(labels: LabelFolder, order: Sequence[TurnId], tally: CallCounts, seconds: float = 0.0) -> LabelSummary:
    """Counts of a folder and of this start."""
    sets = Counter(row.turn for row in labels.sets())
    dropped = dict(Counter(row.reason for row in labels.dropped()).most_common())
    counts = {name: count for name, count in sorted(tally.counts.items()) if count and not name.startswith(WHY)}
    faults = Counter({name.removeprefix(WHY): count for name, count in tally.counts.items() if name.startswith(WHY)})
    left = len(order) - len(sets) - sum(dropped.values())
    return LabelSummary(len(order), len(sets), sets.total(), dropped, left, counts, seconds, commonest(faults))


# Cluster labelling: labels made by the processes of a cluster, row for row those of one machine.
#
# A process opens the label maker with a scratch folder in place of the label folder, and returns rows and scores. The
# caller alone writes the label folder, so a kill of either loses only what was under way.

Opener: TypeAlias = Callable[[Path], tuple[LabelMaker, LabelResources]]
"""Opens the maker of a label folder. It can be pickled."""
R = TypeVar("R")
SCORES, OWN_RUN = "scores", "run"
"""Folders in a label folder: of scores, and of the run of a method that makes its own."""


@dataclass(frozen=True, slots=True)
class JobResult(Generic[R]):
    """The result of one item, from a process of the cluster."""

    rows: R
    scores: dict[str, bytes]
    """New lines of the files in `scores`, by name."""
    counts: Counter[str]


@dataclass(frozen=True)
class LabelJob:
    """Labels search turns."""

    opener: Opener
    folder: Path
    """The label folder, whose scores a process reuses if it can read it."""
    identity: str
    """Identity of the label maker, checked against that of the maker opened in the process."""

    def open(self) -> Callable[[Sequence[SearchTurn]], JobResult[list[Labelled]]]:
        open_maker = _OpenMaker(self)
        return lambda turns: open_maker.result([*open_maker.maker.label(turns)])


@dataclass(frozen=True)
class RolloutJob:
    """Makes rows of a maker's own run."""

    label: LabelJob
    questions: tuple[Question, ...]

    def open(self) -> Callable[[Sequence[RowKey]], JobResult[RunRows]]:
        open_maker = _OpenMaker(self.label)
        run = open_maker.folder / OWN_RUN

        def answer(rows: Sequence[RowKey]) -> JobResult[RunRows]:
            shutil.rmtree(run, ignore_errors=True)
            cast(RolloutMaker, open_maker.maker).roll_out(self.questions, lambda *_: None, frozenset(rows))
            return open_maker.result(Run(run).sent())

        return answer


class _OpenMaker:
    """A maker in a process, with its scratch folder."""

    def __init__(self, job: LabelJob) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="coseek-labels-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        absorb_lines(job.folder / SCORES, self.folder / SCORES)
        self.maker, self._parts = job.opener(self.folder)
        check_same(self.maker.identity, job.identity, "a part that labels depend on")
        self._offsets: dict[str, int] = {}
        self._new_lines()

    def result(self, rows: R) -> JobResult[R]:
        counts, self._parts.tally.counts = self._parts.tally.counts, Counter()
        return JobResult(rows, self._new_lines(), counts)

    def _new_lines(self) -> dict[str, bytes]:
        """The first line of every file of scores, which names the grader, and those that were not returned before."""
        lines = {}
        for path in (self.folder / SCORES).glob("*.jsonl"):
            with path.open("rb") as file:
                header = file.readline()
                file.seek(max(len(header), self._offsets.get(path.name, 0)))
                lines[path.name] = header + file.read()
                self._offsets[path.name] = file.tell()
        return lines


@dataclass(frozen=True)
class ClusterMaker:
    """A `LabelMaker` whose labels a cluster makes."""

    cluster: Cluster
    job: LabelJob
    tally: CallCounts

    @property
    def identity(self) -> str:
        return self.job.identity

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        groups = [*by_trajectory(turns, 1)]
        items = [[turn for group in share for turn in group] for share in shares_of(groups, self.cluster)]
        keep = _keeper(self.job.folder, self.tally)
        for _, result in self.cluster.map(self.job, items):
            keep(result)
            yield from result.rows

    def roll_out(self, maker: RolloutMaker, questions: Sequence[Question], tell: Tell) -> Run:
        """`RolloutMaker.roll_out` over the cluster; returns the run, with its rows by question, then by seed."""
        left, keep = maker.left(questions), _keeper(self.job.folder, self.tally)
        run = Run(self.job.folder / OWN_RUN)
        shares, ended = [*shares_of(left, self.cluster)], 0
        with run.open_for_append(order=[question.id for question in questions]) as file:
            for number, result in self.cluster.map(RolloutJob(self.job, tuple(questions)), shares):
                keep(result)
                run.append_rows(file, result.rows)
                tell(ended := ended + len(shares[number]), len(left))
        return run


def _keeper(folder: Path, tally: CallCounts) -> Callable[[JobResult[R]], None]:
    """Returns a function that stores the scores of a result and adds up its counts."""
    files: dict[str, LineFile] = {}

    def keep(result: JobResult[R]) -> None:
        for name, lines in result.scores.items():
            files[name] = files.get(name) or LineFile(folder / SCORES / name)
            files[name].add(lines.splitlines(keepends=True))
        for name, count in result.counts.items():
            tally.add(name, count)

    return keep
