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
from coseek.studies.verdict import ArmComparison, StudyVerdict, Values, compare, overall

FOUND = Path(__file__).parent / "found"
"""The results that come with coseek, as `coseek study` wrote them."""
WORTH_SAYING = 0.1
"""Share of an arm's runs that a token limit ended, above which its page has a caveat."""


class StudyResult(Settings):
    """A study's result, stored as `NAME-ROAD.json`."""

    study: str
    """Its name."""
    at: Road
    """Its size."""
    seeds: tuple[int, ...]
    """The seeds of its commands."""
    verdict: StudyVerdict
    """Of all comparisons."""
    minutes: float
    """Duration of all commands, including those that another study had run already; 0 if started by hand."""
    arms: dict[str, dict[str, Interval | None]]
    """Arm → metric → mean over the questions of all seeds."""
    comparisons: tuple[ArmComparison, ...]
    """The comparisons, in the order of the expectations."""
    commands: tuple[str, ...]
    """The commands, in folders with the names of the arms."""
    caveats: tuple[str, ...] = ()
    """Sentences about arms that lack questions or whose runs were cut."""

    @classmethod
    def of(
        cls,
        name: str,
        study: Study,
        road: Road,
        values: Mapping[str, Sequence[Values]],
        seeds: Sequence[int],
        steps: Sequence[StudyStep],
        typed: Sequence[StudyStep],
    ) -> "StudyResult":
        """Compare the arms. `values` are their numbers under each seed, `steps` all commands, `typed` the same ones in
        folders with readable names."""
        comparisons = tuple(
            compare(expected, expected.metric or study.metrics[0], values[expected.one], values[expected.other])
            for expected in study.expect
        )
        return cls(
            study=title_of(name),
            at=road,
            seeds=tuple(seeds),
            verdict=overall(comparisons),
            minutes=round(sum(step.seconds for step in steps) / 60, 1),
            arms={arm: {metric: _mean(own, metric) for metric in study.metrics} for arm, own in values.items()},
            comparisons=comparisons,
            commands=tuple(step.line() for step in typed),
            caveats=tuple(_caveats(values)),
        )


def _mean(seeds: Sequence[Values], metric: str) -> Interval | None:
    by_question: dict[str, list[float]] = {}
    for values in seeds:
        for ident, row in values.items():
            if metric in row:
                by_question.setdefault(ident, []).append(row[metric])
    return bootstrap_mean([fmean(values) for values in by_question.values()], np.random.default_rng(0))


def _caveats(values: Mapping[str, Sequence[Values]]) -> list[str]:
    """A sentence for each arm that lacks questions of other arms (their runs ended with a fault), and for each arm of
    which many runs reached a token limit (it repeats itself, or its limits are tight)."""
    all_ids = [set[str]().union(*of_seed) for of_seed in zip(*values.values(), strict=True)]
    lacking, cut_notes = [], []
    for arm, seeds in values.items():
        if count := sum(len(ids - own.keys()) for ids, own in zip(all_ids, seeds, strict=True)):
            lacking.append(f"{arm} lacks {counted(count, 'question')} that another arm has.")
        share = _mean(seeds, "token_limit")
        if share is not None and share.mean > WORTH_SAYING:
            cut_notes.append(f"A limit of tokens ended {share.mean:.0%} of the runs of {arm}.")
    return lacking + cut_notes


@dataclass(frozen=True, slots=True)
class StudyPage:
    """The page of a result: its tables, its figure and its sentences."""

    name: str
    """As typed: the name of a study that comes with coseek, or a file."""
    study: Study
    result: StudyResult

    def means(self) -> Table:
        """One row per arm: its metrics over the questions of all seeds, and the paper's number if there is one."""
        printed, metrics = self.study.printed, self.study.metrics
        rows = [(arm, *map(show, means.values())) for arm, means in self.result.arms.items()]
        if "metric" not in printed:
            return Table(("arm", *metrics), tuple(rows))
        with_paper = ((*row, str(printed.get(row[0], "–"))) for row in rows)
        return Table(("arm", *metrics, f"paper: {printed['metric']}"), tuple(with_paper))

    def comparisons(self) -> Table:
        rows = []
        for each in self.result.comparisons:
            by_seed = ", ".join(f"{mean:+.3f}" for mean in each.seeds)
            needed = each.questions_that_would_tell
            needed_note = f", {counted(needed, 'question')} would" if needed else ""
            difference = f"{each.metric} {show(each.difference)}"
            rows.append((each.expected, difference, by_seed, str(each.difference.n), f"{each.verdict}{needed_note}"))
        return Table(("expected", "difference", "by seed", "questions", "verdict"), tuple(rows))

    def plot(self) -> Svg:
        metric, arms = self.study.metrics[0], self.result.arms
        return bar_plot([*arms], [BarSeries(metric, tuple(means[metric] for means in arms.values()))], metric)

    def lines(self) -> list[str]:
        """Sentences: paper, claim and verdict."""
        result = self.result
        source = ", ".join(filter(None, [PAPERS.get(self.name.partition("/")[0]), self.study.place]))
        size = f"{result.at} size, {counted(len(result.seeds), 'seed')}"
        if result.minutes:
            size += f", {result.minutes:.0f} minutes"
        return [
            f"{source}: {self.study.claim}",
            f"**{str(result.verdict).capitalize()}** ({size}).",
            *filter(None, [self.study.notes]),
            *result.caveats,
        ]

    def markdown(self) -> str:
        commands = "\n".join(self.result.commands)
        parts = [
            f"# {self.result.study}", *self.lines(), self.means().markdown(), self.comparisons().markdown(),
            f"Written by `coseek study {self.name} --at {self.result.at}`, whose commands are:",
            f"```sh\n{commands}\n```",
        ]  # fmt: skip
        return "\n\n".join(parts) + "\n"

    def write(self, folder: Path) -> Path:
        """`NAME-ROAD.json`, `.md` and `.html`. Returns the path of the page in Markdown."""
        page = result_path(folder, self.name, self.result.at, ".md")
        write_json(page.with_suffix(".json"), self.result.model_dump(mode="json"))
        with atomic_write(page) as file:
            file.write(self.markdown())
        sections = [
            text_section("Claim", "\n\n".join(self.lines()).replace("**", "")),
            table_section("Arms", self.means()),
            plot_section("Figure", self.plot(), "95 % bootstrap intervals over questions."),
            table_section("Comparisons", self.comparisons()),
        ]
        write_report(page.with_suffix(".html"), self.result.study, sections)
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


def stored(folder: Path, name: str, road: str) -> StudyResult | None:
    """The stored result of a study: the user's in `folder`, else the one that comes with coseek."""
    paths = (result_path(base, name, road, ".json") for base in (folder, FOUND))
    path = next((path for path in paths if path.exists()), None)
    return None if path is None else load_settings(StudyResult, path)
