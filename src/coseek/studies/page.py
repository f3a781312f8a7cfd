"""A study's result: its JSON, its page in Markdown, and the list of all studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from coseek.core.files import atomic_write, write_json
from coseek.core.settings import Settings, load_settings
from coseek.core.text import counted
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.plots import BarSeries, Svg, bar_plot
from coseek.measure.report import plot_section, table_section, text_section, write_report
from coseek.measure.table import Table, show
from coseek.studies.study import PAPERS, Road, Study, StudyStep, load_study, study_names
from coseek.studies.verdict import ArmComparison, StudyVerdict, Values, overall

FOUND = Path(__file__).parent / "found"
"""Our own results, as `coseek study` wrote them."""
WORTH_SAYING = 0.1
"""Share of an arm's runs ended by a limit of tokens from which its page says so."""


class StoredComparison(Settings):
    """A finding as it is kept."""

    expected: str
    """What was expected, as a sentence."""
    metric: str
    """Of the numbers."""
    difference: Interval
    """The first arm's minus the other's."""
    seeds: tuple[float, ...]
    """The mean of each seed."""
    verdict: StudyVerdict
    """In the fixed words."""
    questions_that_would_tell: int | None
    """If the difference is what it is here."""

    @classmethod
    def of(cls, finding: ArmComparison) -> "StoredComparison":
        return cls(
            expected=str(finding.expected),
            metric=finding.metric,
            difference=finding.difference,
            seeds=finding.seeds,
            verdict=finding.verdict,
            questions_that_would_tell=finding.needed,
        )


class StoredResult(Settings):
    """A study's result as it is kept: `NAME-ROAD.json`."""

    study: str
    """Its name."""
    at: Road
    """Its size."""
    seeds: tuple[int, ...]
    """The seeds of its commands."""
    verdict: StudyVerdict
    """Of all comparisons."""
    minutes: float
    """Of all commands, those included that another study had run already."""
    arms: dict[str, dict[str, Interval | None]]
    """Arm → metric → mean over the questions of all seeds."""
    comparisons: tuple[StoredComparison, ...]
    """What was expected, in order."""
    commands: tuple[str, ...]
    """In folders with the names of the arms."""
    caveats: tuple[str, ...] = ()
    """Arms that lack questions or whose runs were cut, as sentences."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The numbers of all arms under all seeds, and what they say."""

    name: str
    study: Study
    road: Road
    seeds: Sequence[int]
    values: Mapping[str, Sequence[Values]]
    """Arm → its numbers under each seed."""
    findings: Sequence[ArmComparison]
    steps: Sequence[StudyStep]
    """All commands, for their time."""
    typed: Sequence[StudyStep]
    """The same in folders with the names of the arms, to be read."""

    @property
    def verdict(self) -> StudyVerdict:
        return overall(self.findings)

    @property
    def minutes(self) -> float:
        """Of all commands, those included that another study had run already; 0 where they were started by hand."""
        return sum(step.seconds for step in self.steps) / 60

    def means(self) -> Table:
        """A line for each arm: its metrics over the questions of all seeds, and the paper's number."""
        printed = self.study.printed
        beside = str(printed.get("metric", ""))
        rows = []
        for arm, seeds in self.values.items():
            cells = [show(self._mean(seeds, metric)) for metric in self.study.metrics]
            rows.append((arm, *cells, *([str(printed.get(arm, "–"))] if beside else [])))
        return Table(("arm", *self.study.metrics, *([f"paper: {beside}"] if beside else [])), tuple(rows))

    def caveats(self) -> list[str]:
        """A sentence for each arm that lacks questions which another arm has, since their runs ended by a fault, and
        for each of which many runs were cut, since it repeats itself or has tight limits."""
        lost = dict.fromkeys(self.values, 0)
        for number in range(len(self.seeds)):
            question_ids = {arm: self.values[arm][number].keys() for arm in self.values}
            every = set[str]().union(*question_ids.values())
            for arm, those in question_ids.items():
                lost[arm] += len(every - those)
        lacking = [
            f"{arm} lacks {counted(count, 'question')} that another arm has." for arm, count in lost.items() if count
        ]
        cut = {arm: self._mean(seeds, "token_limit") for arm, seeds in self.values.items()}
        return lacking + [
            f"A limit of tokens ended {share.mean:.0%} of the runs of {arm}."
            for arm, share in cut.items()
            if share is not None and share.mean > WORTH_SAYING
        ]

    def _mean(self, seeds: Sequence[Values], metric: str) -> Interval | None:
        by_question: dict[str, list[float]] = {}
        for values in seeds:
            for ident, row in values.items():
                if metric in row:
                    by_question.setdefault(ident, []).append(row[metric])
        return bootstrap_mean([fmean(values) for values in by_question.values()], np.random.default_rng(0))

    def comparisons(self) -> Table:
        rows = []
        for finding in self.findings:
            needed = f", {counted(finding.needed, 'question')} would" if finding.needed else ""
            rows.append((
                str(finding.expected), f"{finding.metric} {show(finding.difference)}",
                ", ".join(f"{mean:+.3f}" for mean in finding.seeds), str(finding.difference.n),
                f"{finding.verdict}{needed}",
            ))  # fmt: skip
        return Table(("expected", "difference", "by seed", "questions", "verdict"), tuple(rows))

    def plot(self) -> Svg:
        metric = self.study.metrics[0]
        bars = [BarSeries(metric, tuple(self._mean(seeds, metric) for seeds in self.values.values()))]
        return bar_plot([*self.values], bars, metric)

    def lines(self) -> list[str]:
        """Paper, claim and verdict, as sentences."""
        paper = PAPERS.get(self.name.partition("/")[0], "")
        source = f"{paper}, {self.study.place}" if paper else self.study.place
        size = f"{self.road} size, {counted(len(self.seeds), 'seed')}"
        if self.minutes:
            size += f", {self.minutes:.0f} minutes"
        return [
            f"{source}: {self.study.claim}",
            f"**{str(self.verdict).capitalize()}** ({size}).",
            *filter(None, [self.study.notes]),
            *self.caveats(),
        ]

    def stored(self) -> "StoredResult":
        """As it is kept."""
        return StoredResult(
            study=title_of(self.name),
            at=self.road,
            seeds=tuple(self.seeds),
            verdict=self.verdict,
            minutes=round(self.minutes, 1),
            arms={
                arm: {metric: self._mean(seeds, metric) for metric in self.study.metrics}
                for arm, seeds in self.values.items()
            },
            comparisons=tuple(map(StoredComparison.of, self.findings)),
            commands=tuple(step.line() for step in self.typed),
            caveats=tuple(self.caveats()),
        )

    def markdown(self) -> str:
        commands = "\n".join(step.line() for step in self.typed)
        parts = [
            f"# {title_of(self.name)}", *self.lines(), self.means().markdown(), self.comparisons().markdown(),
            f"Written by `coseek study {self.name} --at {self.road}`, whose commands are:", f"```sh\n{commands}\n```",
        ]  # fmt: skip
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> Path:
        """`NAME-ROAD.json`, `.md` and `.html`. Returns the path of the page in Markdown."""
        page = result_path(folder, self.name, self.road, ".md")
        write_json(page.with_suffix(".json"), self.stored().model_dump(mode="json"))
        with atomic_write(page) as file:
            file.write(self.markdown())
        sections = [
            text_section("Claim", "\n\n".join(self.lines()).replace("**", "")),
            table_section("Arms", self.means()),
            plot_section("Figure", self.plot(), "95 % bootstrap intervals over questions."),
            table_section("Comparisons", self.comparisons()),
        ]
        write_report(page.with_suffix(".html"), title_of(self.name), sections)
        return page


def result_path(folder: Path, name: str, road: str, suffix: str) -> Path:
    """Where a study's result is; that of a file of one's own is named as the file."""
    return folder / f"{title_of(name).replace('/', '.')}-{road}{suffix}"


def title_of(name: str) -> str:
    """The name of a study, of a file of one's own without its path."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def listed(folder: Path) -> Table:
    """All studies: place in the paper, claim, sizes with minutes on two cores, verdicts in `folder`, else ours."""
    rows = []
    for name in study_names():
        study = load_study(name)
        verdicts = [f"{road}: {result.verdict}" for road in study.at if (result := stored(folder, name, road))]
        costs = [road if minutes is None else f"{road} {minutes:g} min" for road, minutes in study.at.items()]
        rows.append((name, study.place, study.claim, ", ".join(costs), "; ".join(verdicts) or "–"))
    return Table(("study", "place", "claim", "sizes", "found"), tuple(rows))


def stored(folder: Path, name: str, road: str) -> StoredResult | None:
    """The result of an earlier run of a study: one's own, else ours, which comes with coseek."""
    paths = (result_path(base, name, road, ".json") for base in (folder, FOUND))
    path = next((path for path in paths if path.exists()), None)
    return None if path is None else load_settings(StoredResult, path)
