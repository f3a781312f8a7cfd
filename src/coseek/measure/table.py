"""Table: scores as Markdown, JSON and terminal tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from rich.table import Table as RichTable
from rich.text import Text

from coseek.core.errors import commonest
from coseek.core.files import Json, JsonObject
from coseek.core.text import counted, visible
from coseek.measure.abstention import Abstention
from coseek.measure.intervals import Difference, Interval, holm
from coseek.measure.question_groups import ALL, MICRO
from coseek.measure.score import JUDGED, Comparison, MetricSummary, Scores

# Verdict: the outcome of a paired comparison, in fixed words.
#
# A run is *better* or *worse* than another if the 95 % interval of the paired difference excludes 0 and the paired
# test gives p < .05, after Holm's correction for all comparisons of one line. Otherwise the outcome *cannot be told*: a
# small test does not show that there is no difference.

SIGNIFICANT = 0.05
_COUNTS = frozenset((
    "searches", "turns", "agent_tokens", "read_tokens", "passages", "context_passages", "context_tokens", "wall_s",
    "tokens_per_right",
))  # fmt: skip
"""Metrics that are shown with two decimals."""
NEUTRAL = _COUNTS | {
    "cost_usd", "unread_verdicts", "declined", "confidence", "truncated", "token_limit", "visits", "missed_visits",
    "forced",
}  # fmt: skip
"""Metrics of which more is neither better nor worse."""


class Outcome(StrEnum):
    """The three answers to "is it better?"."""

    BETTER = "better"
    WORSE = "worse"
    OPEN = "cannot be told"


@dataclass(frozen=True, slots=True)
class PairedClaim:
    """A comparison that a verdict is about."""

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
        mean = self.difference.difference
        sign = "+" if mean.mean > 0 else ""
        interval = "" if mean.low is None or mean.high is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
        size = f"({sign}{mean.mean:.3f}{interval}, {counted(mean.n, self.unit)})"
        if outcome is Outcome.OPEN:
            return f"{on}whether {self.run} is better than {self.against} in {self.metric} cannot be told {size}"
        return f"{on}{self.run} is {outcome} than {self.against} in {self.metric} {size}"


def outcomes(claims: Sequence[PairedClaim]) -> list[Outcome]:
    """The outcome of each claim, corrected for all of them."""
    corrected = holm([1.0 if claim.difference is None else claim.difference.p for claim in claims])
    return [_outcome(claim.difference, p) for claim, p in zip(claims, corrected, strict=True)]


def verdict(claims: Sequence[PairedClaim]) -> str:
    """One line for all claims; empty without any."""
    if not claims:
        return ""
    sentences = [claim.sentence(outcome) for claim, outcome in zip(claims, outcomes(claims), strict=True)]
    return f"Verdict: {'; '.join(sentences)}."


def overall(claims: Sequence[PairedClaim]) -> Outcome:
    """The outcome of a comparison on several sets: better or worse if that holds on some set, and the opposite on no
    set."""
    found_outcomes = set(outcomes(claims))
    if Outcome.BETTER in found_outcomes and Outcome.WORSE not in found_outcomes:
        return Outcome.BETTER
    return Outcome.WORSE if Outcome.WORSE in found_outcomes and Outcome.BETTER not in found_outcomes else Outcome.OPEN


def claims_of(scores: Scores, metrics: Sequence[str], group: str = ALL) -> list[PairedClaim]:
    """A claim for each comparison, in the first compared metric that is not neutral."""
    claims: list[PairedClaim] = []
    for comparison in (item for item in scores.comparisons if item.group == group):
        metric = next((name for name in metrics if name not in NEUTRAL and name in comparison.metrics), None)
        if metric is not None:
            claims.append(PairedClaim(comparison.run, comparison.against, metric, comparison.metrics[metric]))
    return claims


def claims_between(scores: Scores, pairs: Iterable[tuple[str, str]], metric: str, where: str = "") -> list[PairedClaim]:
    """The claims of those pairs of runs that were compared, in the order of `pairs`."""
    compared = {(item.run, item.against): item.metrics.get(metric) for item in scores.comparisons if item.group == ALL}
    return [PairedClaim(*pair, metric, compared[pair], where) for pair in pairs if pair in compared]


def _outcome(difference: Difference | None, p: float) -> Outcome:
    if difference is None or p >= SIGNIFICANT:
        return Outcome.OPEN
    low, high = difference.difference.low, difference.difference.high
    if low is not None and low > 0:
        return Outcome.BETTER
    return Outcome.WORSE if high is not None and high < 0 else Outcome.OPEN


MAIN = (
    *("em", "cover_em", "f1", "recall", "budgeted_recall", "recall_per_search", "answer_hit"),
    *("searches", "agent_tokens"),
)
"""Default metrics of a table, which shows those that were computed."""
PAIRED = ("em", "f1", "recall", "searches", "agent_tokens")
"""Default metrics of a comparison."""
ABSTENTION = (
    ("answered", "answered"),
    ("right when answered", "right_when_answered"),
    ("tokens per right answer", "tokens_per_right"),
    ("declined, unanswerable", "declined_unanswerable"),
    ("invented", "invented"),
    ("declined, answerable", "declined_answerable"),
)
"""Columns of the table of abstention, and the measures that they show."""
_COUNTED = ("run", "group", "questions", "rows", "faults", "missing")
"""Fields of a summary in JSON, before its metrics."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of plain text, with notes below."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row!r}")

    def markdown(self) -> str:
        """A Markdown table with escaped cells."""
        lines = [_line(self.columns), _line(["---"] * len(self.columns)), *map(_line, self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"

    def rich(self, title: str = "") -> RichTable:
        """A terminal table. Cells are plain text without markup.

        A table with many columns and few rows is transposed, and intervals are put below their means.
        """
        if len(self.columns) > 6 and len(self.rows) + 1 < len(self.columns):  # transposing makes it narrower
            columns, *rows = zip(self.columns, *self.rows, strict=True)
            return Table(columns, tuple(rows), self.notes).rich(title)
        notes = _text("\n".join(self.notes)) if self.notes else None
        table = RichTable(title=_text(title) if title else None, caption=notes)
        for number, column in enumerate(self.columns):
            table.add_column(_text(column), justify="left" if number == 0 else "right")
        for row in self.rows:
            first, *other_cells = row
            stacked = (cell.replace(" [", "\n[").replace(" (", "\n(") for cell in other_cells)
            table.add_row(*map(_text, (first, *stacked)))
        return table


def _text(text: str) -> Text:
    """A cell without markup. Invisible characters are escaped here, since they count in the width of a column."""
    return Text(visible(text))


def main_table(scores: Scores, metrics: Sequence[str] = MAIN) -> Table:
    """One row per run: means over all questions with intervals."""
    chosen = [summary for summary in scores.summaries if summary.group == ALL]
    silent = JUDGED if any(summary.fault_reasons.no_reply for summary in chosen) else ()
    shown = [name for name in metrics if name in silent or any(name in summary.metrics for summary in chosen)]
    rows = [(summary.run, str(summary.questions), *(_mean_of(summary, name) for name in shown)) for summary in chosen]
    return Table(("run", "questions", *shown), tuple(rows), (*notes_on_missing(chosen, shown), *scores.unmatched))


def score_tables(scores: Scores, metrics: Sequence[str] = MAIN) -> list[Table]:
    """The means, the first metric by group, what is declined, and the differences from the first run."""
    tables = {**grouped_tables(scores, metrics[0]), **abstention_tables(scores)}.values()
    return [main_table(scores, metrics), *tables, *([comparison_table(scores, metrics)] if scores.comparisons else [])]


def group_table(scores: Scores, metric: str = "em") -> Table:
    """One row per run, one column per group of questions (by hops, by kind) that is not a data set."""
    groups = dict.fromkeys(summary.group for summary in scores.summaries)
    return _columns(scores, metric, {group: group for group in groups if group not in scores.by_dataset})


def dataset_table(scores: Scores, metric: str = "em") -> Table:
    """One row per run, one column per data set, and the macro and micro means."""
    table = _columns(scores, metric, {**{group: group for group in scores.by_dataset}, ALL: MICRO})
    return replace(table, notes=("macro: every data set weighs the same; micro: every question.",))


def grouped_tables(scores: Scores, metric: str, heading: str = "By group") -> dict[str, Table]:
    """Heading → table of a metric by data set and by group, if there are several."""
    tables = {"By data set": dataset_table(scores, metric)} if scores.by_dataset else {}
    by_group = group_table(scores, metric)
    return {**tables, heading: by_group} if len(by_group.columns) > 2 else tables


def _columns(scores: Scores, metric: str, groups: Mapping[str, str]) -> Table:
    """One row per run, one column per group, under its title."""
    runs = dict.fromkeys(summary.run for summary in scores.summaries)
    rows = [(run, *(_mean_of(scores.of(run, group), metric) for group in groups)) for run in runs]
    return Table((metric, *groups.values()), tuple(rows))


def abstention_tables(scores: Scores) -> dict[str, Table]:
    """Heading → table of declined questions and of calibration; empty if there is nothing to decline."""
    if not scores.abstention:
        return {}
    columns = ("run", "questions", "unanswerable", *(name for name, _ in ABSTENTION), "calibration error")
    rows, bins = [], []
    for run, abstention in scores.abstention.items():
        cells = [str(abstention.questions), str(abstention.unanswerable)]
        cells += [_cell(getattr(abstention, field), field) for _, field in ABSTENTION]
        error = abstention.calibration_error
        rows.append((run, *cells, "–" if error is None else f"{error:.3f}"))
        for bin_ in abstention.bins:
            shares = (f"{share:.3f}" for share in (bin_.confidence, bin_.right))
            bins.append((run, f"{bin_.low:.3f}–{bin_.high:.3f}", f"{bin_.answers:g}", *shares))
    note = "Right is strict EM; answers to unanswerable questions are wrong. Confidence: of the turn that answers."
    tables = {"Declining": Table(columns, tuple(rows), (note,))}
    calibrated = Table(("run", "confidence", "answers", "mean confidence", "right"), tuple(bins))
    return {**tables, "Calibration": calibrated} if bins else tables


def comparison_table(scores: Scores, metrics: Sequence[str] = PAIRED, group: str = ALL) -> Table:
    """One row per comparison and metric: difference of the two runs, interval and p-values.

    `p` is of the paired randomisation test, `McNemar` of the exact test for binary metrics. With more than one row a
    column has p-values corrected for all rows (Holm).
    """
    results: list[tuple[str, str, Difference]] = []
    notes: list[str] = []
    for comparison in (item for item in scores.comparisons if item.group == group):
        names = [name for name in metrics if name in comparison.metrics]
        results += [(f"{comparison.run} − {comparison.against}", name, comparison.metrics[name]) for name in names]
        notes += _unpaired_notes(comparison)
    corrected = holm([difference.p for _, _, difference in results])
    binary = any(difference.mcnemar is not None for _, _, difference in results)
    has_several = len(results) > 1
    rows = []
    for (pair, name, difference), p in zip(results, corrected, strict=True):
        interval = difference.difference
        cell = ("+" if interval.mean > 0 else "") + _cell(interval, name)
        p_values = [difference.p, *([p] if has_several else []), *([difference.mcnemar] if binary else [])]
        rows.append((pair, name, str(interval.n), cell, *map(_p, p_values)))
    if sentence := verdict(claims_of(scores, metrics, group)):
        notes.insert(0, sentence)
    if has_several:
        notes.append(f"p (Holm): corrected for the {len(results)} comparisons of this table.")
    extra_columns = (("p (Holm)",) if has_several else ()) + (("McNemar",) if binary else ())
    return Table(("runs", "metric", "questions", "difference", "p", *extra_columns), tuple(rows), tuple(notes))


def scores_json(scores: Scores) -> JsonObject:
    """All scores in full precision."""
    summaries: list[Json] = [
        {**{name: getattr(row, name) for name in _COUNTED}, "metrics": metrics_json(row)} for row in scores.summaries
    ]
    comparisons: list[Json] = [
        {
            **{name: getattr(row, name) for name in ("run", "against", "group")},
            "metrics": {
                name: {**difference_json(value), "only_against": value.only_a, "only_run": value.only_b}
                for name, value in row.metrics.items()
            },
        }
        for row in scores.comparisons
    ]
    stops: JsonObject = {run: dict(counts) for run, counts in scores.stops.items()}
    abstention: JsonObject = {run: _abstention_json(abstention) for run, abstention in scores.abstention.items()}
    tree: JsonObject = {"summaries": summaries, "comparisons": comparisons, "stops": stops}
    return {**tree, "abstention": abstention} if abstention else tree


def _abstention_json(abstention: Abstention) -> JsonObject:
    measures: dict[str, Interval | None] = {field: getattr(abstention, field) for _, field in ABSTENTION}
    bins: list[Json] = [
        {name: getattr(bin_, name) for name in ("low", "high", "answers", "confidence", "right")}
        for bin_ in abstention.bins
    ]
    counts: JsonObject = {"questions": abstention.questions, "unanswerable": abstention.unanswerable}
    intervals: JsonObject = {name: interval_json(value) for name, value in measures.items()}
    return {**counts, **intervals, "calibration_error": abstention.calibration_error, "bins": bins}


def metrics_json(summary: MetricSummary) -> JsonObject:
    """The means of a summary as JSON."""
    return {name: interval_json(value) for name, value in summary.metrics.items()}


def show(interval: Interval | None, decimals: int = 3) -> str:
    """`0.512 [0.470, 0.555]`; a dash for a missing value; `≥ 0.667 [0.000, 1.000] (1 of 3 unread)` for a lower bound
    with missing verdicts."""
    if interval is None:
        return "–"
    return interval.text(decimals)


def _mean_of(summary: MetricSummary, metric: str) -> str:
    is_lost = metric in JUDGED and metric not in summary.metrics and summary.fault_reasons.no_reply
    return "– (no verdict)" if is_lost else _cell(summary.metrics.get(metric), metric)


def _cell(interval: Interval | None, metric: str) -> str:
    return show(interval, 6 if metric == "cost_usd" else 2 if metric in _COUNTS else 3)


def _p(p: float | None) -> str:
    if p is None:
        return "–"
    return "< .001" if p < 0.001 else f"{p:.3f}"


def notes_on_missing(summaries: Sequence[MetricSummary], metrics: Sequence[str] = ()) -> list[str]:
    """Notes on faults and missing values that the means leave out."""
    notes = ["Means with 95 % bootstrap intervals over questions."] if summaries else []
    for summary in summaries:
        if summary.faults:
            reason = (
                f" {commonest_reason}." if (commonest_reason := commonest(summary.fault_reasons.trajectories)) else ""
            )
            notes.append(f"{summary.run}: {summary.faults} trajectories have a fault; they are in no mean.{reason}")
        missing = {
            "the judge did not reply": summary.fault_reasons.no_reply,
            "unreadable verdicts": summary.fault_reasons.unreadable,
        }
        for label, reasons in missing.items():
            if commonest_reason := commonest(reasons):
                notes.append(f"{summary.run}: {label}, {commonest_reason}; the same command asks again.")
        if summary.missing:
            notes.append(f"{summary.run}: {summary.missing} questions are missing.")
        for name in metrics:
            mean = summary.metrics.get(name)
            if name in JUDGED and mean is not None and mean.most is not None:
                notes.append(
                    f"{summary.run}: {mean.unread} of {mean.n} verdicts are missing and count as wrong, so "
                    f"{name} is a lower bound; it is {mean.most:.3f} at most."
                )
    return notes


def _unpaired_notes(comparison: Comparison) -> list[str]:
    """Notes on questions of only one run, from the first metric (the same for all metrics except gold passages)."""
    unjudged = (difference for name, difference in comparison.metrics.items() if name not in JUDGED)
    first = next(unjudged, next(iter(comparison.metrics.values()), None))
    if first is None:
        return [f"{comparison.run} shares no question with {comparison.against}."]
    notes = []
    if comparison.unread:
        notes.append(
            f"{comparison.run}: {comparison.unread} questions lack a readable verdict in one of the runs; they are "
            "left out of judged metrics."
        )
    if first.only_a or first.only_b:
        notes.append(
            f"{comparison.run}: compared on {first.difference.n} shared questions; {first.only_a} only in "
            f"{comparison.against}, {first.only_b} only in {comparison.run}."
        )
    return notes


def interval_json(interval: Interval | None) -> Json:
    """A mean with its interval as JSON."""
    if interval is None:
        return None
    tree: JsonObject = {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n}
    return {**tree, "unread": interval.unread, "most": interval.most} if interval.unread else tree


def difference_json(paired: Difference) -> JsonObject:
    """A difference with its interval and p-values as JSON."""
    return {**cast(JsonObject, interval_json(paired.difference)), "p": paired.p, "mcnemar": paired.mcnemar}


def _line(cells: Sequence[str]) -> str:
    escaped_cells = (cell.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped_cells)} |"
