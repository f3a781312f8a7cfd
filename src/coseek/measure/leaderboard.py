"""Leaderboard: systems by data sets. Sets that systems were trained on are marked and averaged apart."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coseek.core.files import Json, JsonObject
from coseek.measure.intervals import Interval, macro_mean
from coseek.measure.report import TableSection, report_html
from coseek.measure.score import ScoredRun, values_of
from coseek.measure.table import Table, interval_json, show


@dataclass(frozen=True, slots=True)
class LeaderboardCell:
    """One system on one data set."""

    values: tuple[float, ...]
    """The metric, question by question."""
    faults: int
    """Trajectories that ended by a fault of a part: they are in no mean."""
    missing: int
    """Questions that another system answered here, and this one did not."""
    unknown: tuple[float, ...] = ()
    """For questions whose verdict could not be read, the shares of their trajectories: they count as not right."""

    def mean(self, seed: int) -> Interval | None:
        return bounded(macro_mean([self.values], np.random.default_rng(seed)), [self])


@dataclass(frozen=True)
class Leaderboard:
    """Every system on every data set, in one metric."""

    metric: str
    places: Mapping[tuple[str, str], LeaderboardCell]
    """By system and data set; a system need not have been run on all."""
    in_domain: Collection[str] = ()
    """Data sets that the systems were trained on."""
    by: tuple[str, ...] = ()
    """What the numbers rest on besides the runs: the judge, the generator."""
    seed: int = 0

    @property
    def datasets(self) -> list[str]:
        """Those in domain first, then by name."""
        return sorted({dataset for _, dataset in self.places}, key=lambda name: (name not in self.in_domain, name))

    @property
    def systems(self) -> list[str]:
        """The best mean over all sets first; systems that lack a set come behind those that have all."""

        def rank(system: str) -> tuple[bool, float, str]:
            mean = self.average(system, self.datasets)
            return mean is None, -mean.mean if mean else -self._some(system), system

        return sorted({system for system, _ in self.places}, key=rank)

    def _some(self, system: str) -> float:
        means = [place.mean(self.seed) for (name, _), place in self.places.items() if name == system]
        found = [mean.mean for mean in means if mean is not None]
        return math.fsum(found) / len(found) if found else -math.inf

    def average(self, system: str, datasets: Sequence[str]) -> Interval | None:
        """Mean of the data sets' means, each set weighing the same; `None` unless the system has all of them."""
        places = [self.places[system, dataset] for dataset in datasets if (system, dataset) in self.places]
        values = [place.values for place in places]
        if len(values) < len(datasets):
            return None
        return bounded(macro_mean(values, np.random.default_rng(self.seed)), places)

    @property
    def averages(self) -> dict[str, list[str]]:
        """What is averaged: all sets, and those in and out of domain where there are both."""
        inside = [name for name in self.datasets if name in self.in_domain]
        outside = [name for name in self.datasets if name not in self.in_domain]
        parts = {"mean in domain": inside, "mean out of domain": outside} if inside and outside else {}
        return {**parts, **({"mean": self.datasets} if len(self.datasets) > 1 else {})}

    def table(self) -> Table:
        """One line a system. A data set in domain bears a star."""
        names = [f"{name} *" if name in self.in_domain else name for name in self.datasets]
        rows = [
            (
                system,
                *(self._cell(system, dataset) for dataset in self.datasets),
                *(show(self.average(system, datasets)) for datasets in self.averages.values()),
            )
            for system in self.systems
        ]
        return Table((f"{self.metric}", *names, *self.averages), tuple(rows), tuple(self.notes()))

    def _cell(self, system: str, dataset: str) -> str:
        place = self.places.get((system, dataset))
        return show(place.mean(self.seed) if place else None)

    def notes(self) -> list[str]:
        """What a reader must know to trust the table."""
        notes = ["Means with 95 % bootstrap intervals over questions; – stands for what was not run."]
        if any(name in self.in_domain for name in self.datasets):
            notes.append("* in domain: systems that were trained were trained on this set.")
        notes += self.by
        for (system, dataset), place in sorted(self.places.items()):
            if place.faults:
                notes.append(
                    f"{system} on {dataset}: {place.faults} trajectories ended by a fault; they are in no mean."
                )
            if place.missing:
                notes.append(f"{system} on {dataset}: {place.missing} questions are missing.")
            if place.unknown:
                notes.append(
                    f"{system} on {dataset}: {len(place.unknown)} of {len(place.values)} verdicts could not be read "
                    f"and count as not right, so {self.metric} is a lower bound."
                )
        return notes

    def to_json(self) -> JsonObject:
        """Everything, with full precision, for programs."""
        places: list[Json] = [
            {
                "system": system,
                "dataset": dataset,
                "in_domain": dataset in self.in_domain,
                "faults": place.faults,
                "missing": place.missing,
                "value": _json(place.mean(self.seed)),
            }
            for (system, dataset), place in sorted(self.places.items())
        ]
        averages: JsonObject = {
            system: {name: _json(self.average(system, sets)) for name, sets in self.averages.items()}
            for system in self.systems
        }
        return {"metric": self.metric, "places": places, "averages": averages, "by": list(self.by)}

    def html(self) -> str:
        """A page that stands alone."""
        return report_html(f"Leaderboard: {self.metric}", [TableSection(self.metric, self.table())])


def bounded(mean: Interval | None, places: Sequence[LeaderboardCell]) -> Interval | None:
    """A mean over data sets, each weighing the same, with what is unknown of it."""
    unread = sum(len(place.unknown) for place in places)
    if mean is None or not unread:
        return mean
    more = math.fsum(math.fsum(place.unknown) / len(place.values) for place in places) / len(places)
    return replace(mean, unread=unread, most=mean.mean + more)


def leaderboard(
    runs: Mapping[tuple[str, str], ScoredRun],
    metric: str,
    in_domain: Collection[str] = (),
    by: Sequence[str] = (),
    seed: int = 0,
) -> Leaderboard:
    """Runs by system and data set. What any system was asked on a set, every system on that set is held to."""
    asked: dict[str, set[str]] = {}
    for (_, dataset), run in runs.items():
        asked.setdefault(dataset, set()).update(run.questions)
    places: dict[tuple[str, str], LeaderboardCell] = {}
    for (system, dataset), run in runs.items():
        rows = run.questions.values()
        unknown = tuple(row.unknown[metric] for row in rows if metric in row.unknown)
        missing = len(asked[dataset]) - sum(row.rows > 0 for row in rows)
        faults = sum(row.faults for row in rows)
        places[system, dataset] = LeaderboardCell(tuple(values_of(rows, metric)), faults, missing, unknown)
    return Leaderboard(metric, places, frozenset(in_domain), tuple(by), seed)


def _json(interval: Interval | None) -> Json:
    return None if interval is None else interval_json(interval)
