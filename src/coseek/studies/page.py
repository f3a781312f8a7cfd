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
"""The results that come with coseek, as `coseek study` wrote them."""
WORTH_SAYING = 0.1
"""Share of an arm's runs that a token limit ended, above which its page has a caveat."""


class StoredComparison(Settings):
    """A stored comparison of two arms."""

    expected: str
    """The expectation as a sentence."""
    metric: str
    """The metric of the numbers."""
    difference: Interval
    """The first arm's minus the other's."""
    seeds: tuple[float, ...]
    """The mean of each seed."""
    verdict: StudyVerdict
    """The verdict, in the fixed words."""
    questions_that_would_tell: int | None
    """Questions that would decide, if the difference stayed the same."""


class StoredResult(Settings):
    """A study's stored result: `NAME-ROAD.json`."""

    study: str
    """Its name."""
    at: Road
    """Its size."""
    seeds: tuple[int, ...]
    """The seeds of its commands."""
    verdict: StudyVerdict
    """Of all comparisons."""
    minutes: float
    """Duration of all commands, including those that another study had run already."""
    arms: dict[str, dict[str, Interval | None]]
    """Arm → metric → mean over the questions of all seeds."""
    comparisons: tuple[StoredComparison, ...]
    """The comparisons, in the order of the expectations."""
    commands: tuple[str, ...]
    """The commands, in folders with the names of the arms."""
    caveats: tuple[str, ...] = ()
    """Sentences about arms that lack questions or whose runs were cut."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The numbers of all arms under all seeds, and their comparisons."""

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
    """The same commands in folders with readable names."""

    @property
    def verdict(self) -> StudyVerdict:
        return overall(self.findings)

    @property
    def minutes(self) -> float:
        """Duration of all commands, including those that another study had run already; 0 if started by hand."""
        return sum(step.seconds for step in self.steps) / 60

    def means(self) -> Table:
        """One row per arm: its metrics over the questions of all seeds, and the paper's number if there is one."""
        printed, metrics = self.study.printed, self.study.metrics
        rows = [(arm, *(show(self._mean(seeds, metric)) for metric in metrics)) for arm, seeds in self.values.items()]
        if "metric" not in printed:
            return Table(("arm", *metrics), tuple(rows))
        with_paper = ((*row, str(printed.get(row[0], "–"))) for row in rows)
        return Table(("arm", *metrics, f"paper: {printed['metric']}"), tuple(with_paper))

    def caveats(self) -> list[str]:
        """A sentence for each arm that lacks questions of other arms (their runs ended with a fault), and for each arm
        of which many runs reached a token limit (it repeats itself, or its limits are tight)."""
        all_ids = [set[str]().union(*values) for values in zip(*self.values.values(), strict=True)]
        lacking, cut_notes = [], []
        for arm, seeds in self.values.items():
            if count := sum(len(ids - values.keys()) for ids, values in zip(all_ids, seeds, strict=True)):
                lacking.append(f"{arm} lacks {counted(count, 'question')} that another arm has.")
            share = self._mean(seeds, "token_limit")
            if share is not None and share.mean > WORTH_SAYING:
                cut_notes.append(f"A limit of tokens ended {share.mean:.0%} of the runs of {arm}.")
        return lacking + cut_notes

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
            needed_note = f", {counted(finding.needed, 'question')} would" if finding.needed else ""
            rows.append((
                str(finding.expected), f"{finding.metric} {show(finding.difference)}",
                ", ".join(f"{mean:+.3f}" for mean in finding.seeds), str(finding.difference.n),
                f"{finding.verdict}{needed_note}",
            ))  # fmt: skip
        return Table(("expected", "difference", "by seed", "questions", "verdict"), tuple(rows))

    def plot(self) -> Svg:
        metric = self.study.metrics[0]
        bars = [BarSeries(metric, tuple(self._mean(seeds, metric) for seeds in self.values.values()))]
        return bar_plot([*self.values], bars, metric)

    def lines(self) -> list[str]:
        """Sentences: paper, claim and verdict."""
        source = ", ".join(filter(None, [PAPERS.get(self.name.partition("/")[0]), self.study.place]))
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
        """The result as it is stored."""
        metrics = self.study.metrics
        comparisons = (
            StoredComparison(
                expected=str(finding.expected), metric=finding.metric, difference=finding.difference,
                seeds=finding.seeds, verdict=finding.verdict, questions_that_would_tell=finding.needed,
            )
            for finding in self.findings
        )  # fmt: skip
        return StoredResult(
            study=title_of(self.name),
            at=self.road,
            seeds=tuple(self.seeds),
            verdict=self.verdict,
            minutes=round(self.minutes, 1),
            arms={arm: {metric: self._mean(seeds, metric) for metric in metrics} for arm, seeds in self.values.items()},
            comparisons=tuple(comparisons),
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
    """The file of a study's result. A study of the user's is named like its file."""
    return folder / f"{title_of(name).replace('/', '.')}-{road}{suffix}"


def title_of(name: str) -> str:
    """The name of a study; for a file of the user's, its stem."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def listed(folder: Path) -> Table:
    """All studies: place in the paper, claim, minutes on two cores by road, and verdicts from `folder` or shipped."""
    rows = []
    for name in study_names():
        study = load_study(name)
        verdicts = [f"{road}: {result.verdict}" for road in study.at if (result := stored(folder, name, road))]
        costs = [road if minutes is None else f"{road} {minutes:g} min" for road, minutes in study.at.items()]
        rows.append((name, study.place, study.claim, ", ".join(costs), "; ".join(verdicts) or "–"))
    return Table(("study", "place", "claim", "sizes", "found"), tuple(rows))


def stored(folder: Path, name: str, road: str) -> StoredResult | None:
    """The stored result of a study: the user's in `folder`, else the one that comes with coseek."""
    paths = (result_path(base, name, road, ".json") for base in (folder, FOUND))
    path = next((path for path in paths if path.exists()), None)
    return None if path is None else load_settings(StoredResult, path)
