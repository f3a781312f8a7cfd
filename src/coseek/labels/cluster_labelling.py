"""Cluster labelling: labels made by the processes of a cluster, row for row those of one machine.

A process opens the label maker with a scratch folder in place of the label folder, and returns rows and scores. The
caller alone writes the label folder, so a kill of either loses only what was under way.
"""

import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar, cast

from coseek.agents.search_turns import SearchTurn
from coseek.core.cluster import Cluster, check_same, shares_of
from coseek.data.question import Question
from coseek.data.run import RowKey, Run, RunRows
from coseek.graders.call_counts import CallCounts
from coseek.labels.label_folder import LineFile, absorb_lines
from coseek.labels.labelling import Tell
from coseek.labels.maker import Labelled, LabelMaker, RolloutMaker
from coseek.labels.resources import LabelResources, by_run

Opener: TypeAlias = Callable[[Path], tuple[LabelMaker, LabelResources]]
"""Opens the maker of a label folder. It can be pickled."""
R = TypeVar("R")
SCORES, OWN_RUN = "scores", "run"


@dataclass(frozen=True, slots=True)
class Made(Generic[R]):
    """What a process made of an item."""

    rows: R
    scores: dict[str, bytes]
    """New lines of the files in `scores`, by name."""
    counts: Counter[str]


@dataclass(frozen=True)
class LabelJob:
    """Labels search turns."""

    opener: Opener
    folder: Path
    """The label folder: its scores are known to a process that sees it."""
    identity: str
    """The maker's."""

    def open(self) -> Callable[[Sequence[SearchTurn]], Made[list[Labelled]]]:
        there = _OpenMaker(self)
        return lambda turns: there.made([*there.maker.label(turns)])


@dataclass(frozen=True)
class RolloutJob:
    """Makes rows of a maker's own run."""

    label: LabelJob
    questions: tuple[Question, ...]

    def open(self) -> Callable[[Sequence[RowKey]], Made[RunRows]]:
        there = _OpenMaker(self.label)
        run = there.folder / OWN_RUN

        def answer(rows: Sequence[RowKey]) -> Made[RunRows]:
            shutil.rmtree(run, ignore_errors=True)
            cast(RolloutMaker, there.maker).roll_out(self.questions, lambda *_: None, frozenset(rows))
            return there.made(Run(run).sent())

        return answer


class _OpenMaker:
    """A maker in a process, with its scratch folder."""

    def __init__(self, job: LabelJob) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="coseek-labels-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        absorb_lines(job.folder / SCORES, self.folder / SCORES)
        self.maker, self._parts = job.opener(self.folder)
        check_same(self.maker.identity, job.identity, "a part that labels depend on")
        self._sent: dict[str, int] = {}
        self._fresh()

    def made(self, rows: R) -> Made[R]:
        counts, self._parts.tally.counts = self._parts.tally.counts, Counter()
        return Made(rows, self._fresh(), counts)

    def _fresh(self) -> dict[str, bytes]:
        """The first line of every file of scores, which names the grader, and those that were not returned before."""
        found = {}
        for path in (self.folder / SCORES).glob("*.jsonl"):
            with path.open("rb") as file:
                head = file.readline()
                file.seek(max(len(head), self._sent.get(path.name, 0)))
                found[path.name] = head + file.read()
                self._sent[path.name] = file.tell()
        return found


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
        runs = [*by_run(turns, 1)]
        items = [[turn for run in some for turn in run] for some in shares_of(runs, self.cluster)]
        keep = _keeper(self.job.folder, self.tally)
        for _, made in self.cluster.map(self.job, items):
            keep(made)
            yield from made.rows

    def roll_out(self, maker: RolloutMaker, questions: Sequence[Question], tell: Tell) -> Run:
        """`RolloutMaker.roll_out` over the cluster; returns the run, with its rows by question, then by seed."""
        left, keep = maker.left(questions), _keeper(self.job.folder, self.tally)
        run = Run(self.job.folder / OWN_RUN)
        parts, ended = [*shares_of(left, self.cluster)], 0
        with run.open_for_append(order=[question.id for question in questions]) as file:
            for number, made in self.cluster.map(RolloutJob(self.job, tuple(questions)), parts):
                keep(made)
                run.take(file, made.rows)
                tell(ended := ended + len(parts[number]), len(left))
        return run


def _keeper(folder: Path, tally: CallCounts) -> Callable[[Made[R]], None]:
    """A function that stores the scores and counts the calls of what was made."""
    files: dict[str, LineFile] = {}

    def keep(made: Made[R]) -> None:
        for name, lines in made.scores.items():
            files[name] = files.get(name) or LineFile(folder / SCORES / name)
            files[name].add(lines.splitlines(keepends=True))
        for name, count in made.counts.items():
            tally.add(name, count)

    return keep
