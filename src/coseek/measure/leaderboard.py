"""Leaderboard: systems by data sets. In-domain data sets are marked and averaged separately."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from coseek.core.files import Json, JsonObject
from coseek.measure.intervals import Interval
from coseek.measure.question_groups import MICRO, macro_groups
from coseek.measure.report import TableSection, report_html
from coseek.measure.score import ScoredRun, macro_of, unknown_of, values_of
from coseek.measure.table import Table, interval_json, show


@dataclass(frozen=True, slots=True)
class LeaderboardCell:
    """One system on one data set."""

    values: tuple[float, ...]
    """The metric by question."""
    faults: int
    """Trajectories with a fault; in no mean."""
    missing: int
    """Questions that only other systems answered."""
    unknown: tuple[float, ...] = ()
    """For questions with missing verdicts, the shares of those trajectories; counted as wrong."""

    def mean(self, seed: int) -> Interval | None:
        return macro_of([(self.values, self.unknown)], np.random.default_rng(seed))


@dataclass(frozen=True)
class Leaderboard:
    """One metric of every system on every data set."""

    metric: str
    cells: Mapping[tuple[str, str], LeaderboardCell]
    """By system and data set; a system may lack data sets."""
    in_domain: Collection[str] = ()
    """Data sets that the systems were trained on."""
    by: tuple[str, ...] = ()
    """Notes on judge and generator."""
    seed: int = 0
    asked: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Data set → the ids of the questions that any system was asked."""

    @property
    def datasets(self) -> list[str]:
        """In-domain data sets first, then by name."""
        return sorted({dataset for _, dataset in self.cells}, key=lambda name: (name not in self.in_domain, name))

    @property
    def systems(self) -> list[str]:
        """By mean over all data sets, descending; systems that lack a data set come last."""

        def rank(system: str) -> tuple[bool, float, str]:
            mean = self.average(system, self.datasets)
            return mean is None, -mean.mean if mean else -self._mean_of_sets(system), system

        return sorted({system for system, _ in self.cells}, key=rank)

    def _mean_of_sets(self, system: str) -> float:
        means = [cell.mean(self.seed) for (name, _), cell in self.cells.items() if name == system]
        values = [mean.mean for mean in means if mean is not None]
        return math.fsum(values) / len(values) if values else -math.inf

    def average(self, system: str, datasets: Sequence[str], micro: bool = False) -> Interval | None:
        """Macro mean over data sets, or the mean over all their questions; `None` unless the system has all sets."""
        cells = [self.cells[system, dataset] for dataset in datasets if (system, dataset) in self.cells]
        pairs: list[tuple[Sequence[float], Sequence[float]]] = [(cell.values, cell.unknown) for cell in cells]
        if len(pairs) < len(datasets):
            return None
        if micro:
            values, unknown = ([value for numbers in side for value in numbers] for side in zip(*pairs, strict=True))
            pairs = [(values, unknown)]
        return macro_of(pairs, np.random.default_rng(self.seed))

    @property
    def averages(self) -> dict[str, list[str]]:
        """Data sets of each average: macro means (in domain and out of domain if there are both), and the micro mean.
        Empty for one data set."""
        inside = [name for name in self.datasets if name in self.in_domain]
        outside = [name for name in self.datasets if name not in self.in_domain]
        parts = {"macro in domain": inside, "macro out of domain": outside} if inside and outside else {}
        whole = macro_groups({name: self.asked.get(name, ()) for name in self.datasets})
        return {**parts, **whole, MICRO: self.datasets} if whole else {}

    def averages_of(self, system: str) -> dict[str, Interval | None]:
        """Every average of a system."""
        return {name: self.average(system, sets, name == MICRO) for name, sets in self.averages.items()}

    def table(self) -> Table:
        """One row per system. In-domain data sets are marked with a star."""
        names = [f"{name} *" if name in self.in_domain else name for name in self.datasets]
        rows = [
            (
                system,
                *(self._cell(system, dataset) for dataset in self.datasets),
                *map(show, self.averages_of(system).values()),
            )
            for system in self.systems
        ]
        return Table((f"{self.metric}", *names, *self.averages), tuple(rows), tuple(self.notes()))

    def _cell(self, system: str, dataset: str) -> str:
        cell = self.cells.get((system, dataset))
        return show(cell.mean(self.seed) if cell else None)

    def notes(self) -> list[str]:
        """Notes below the table."""
        notes = ["Means with 95 % bootstrap intervals over questions; –: not run."]
        if len(self.datasets) > 1:
            notes.append("macro: every data set weighs the same; micro: every question.")
        if any(name in self.in_domain for name in self.datasets):
            notes.append("* in domain: trained systems were trained on this set.")
        notes += self.by
        for (system, dataset), cell in sorted(self.cells.items()):
            if cell.faults:
                notes.append(f"{system} on {dataset}: {cell.faults} trajectories have a fault; they are in no mean.")
            if cell.missing:
                notes.append(f"{system} on {dataset}: {cell.missing} questions are missing.")
            if cell.unknown:
                notes.append(
                    f"{system} on {dataset}: {len(cell.unknown)} of {len(cell.values)} verdicts could not be read "
                    f"and count as wrong, so {self.metric} is a lower bound."
                )
        return notes

    def to_json(self) -> JsonObject:
        """All values in full precision."""
        cells: list[Json] = [
            {
                "system": system,
                "dataset": dataset,
                "in_domain": dataset in self.in_domain,
                "faults": cell.faults,
                "missing": cell.missing,
                "value": _json(cell.mean(self.seed)),
            }
            for (system, dataset), cell in sorted(self.cells.items())
        ]
        averages: JsonObject = {
            system: {name: _json(mean) for name, mean in self.averages_of(system).items()} for system in self.systems
        }
        return {"metric": self.metric, "places": cells, "averages": averages, "by": list(self.by)}

    def html(self) -> str:
        """A self-contained HTML page."""
        return report_html(f"Leaderboard: {self.metric}", [TableSection(self.metric, self.table())])


def leaderboard(
    runs: Mapping[tuple[str, str], ScoredRun],
    metric: str,
    in_domain: Collection[str] = (),
    by: Sequence[str] = (),
    seed: int = 0,
) -> Leaderboard:
    """Leaderboard of runs by system and data set. The questions of a data set are those of all systems on it."""
    asked: dict[str, set[str]] = {}
    for (_, dataset), run in runs.items():
        asked.setdefault(dataset, set()).update(run.questions)
    cells: dict[tuple[str, str], LeaderboardCell] = {}
    for (system, dataset), run in runs.items():
        rows = run.questions.values()
        unknown = tuple(unknown_of(rows, metric))
        missing = len(asked[dataset]) - sum(row.rows > 0 for row in rows)
        faults = sum(row.faults for row in rows)
        cells[system, dataset] = LeaderboardCell(tuple(values_of(rows, metric)), faults, missing, unknown)
    return Leaderboard(metric, cells, frozenset(in_domain), tuple(by), seed, asked)


def _json(interval: Interval | None) -> Json:
    return None if interval is None else interval_json(interval)
