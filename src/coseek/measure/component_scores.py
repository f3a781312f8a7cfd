"""Component scores: a frozen generator's answers from an agent's passages, against the agent's own and naive RAG.

Answers and verdicts are arguments; this module calls no model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias

import numpy as np

from coseek.core.files import Json, JsonObject
from coseek.data.grade_cache import GeneratedAnswer
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.measure.abstention import Faults
from coseek.measure.intervals import Difference, paired_difference
from coseek.measure.plots import Series, Svg, line_plot
from coseek.measure.question_groups import ALL, macro_groups
from coseek.measure.retrieval import PassageBudget
from coseek.measure.score import (
    MetricSummary,
    ScoredRow,
    ScoredRun,
    Scores,
    Verdicts,
    collect,
    comparable_values,
    macro_summaries,
    score_trajectory,
    summaries_of,
    summarise,
)
from coseek.measure.table import (
    Table,
    dataset_table,
    difference_json,
    metrics_json,
    notes_on_missing,
    scores_json,
    show,
)

GENERATOR_FAULT = "generator_error"
"""Stop reason of a trajectory with a fault of the generator."""

Answers: TypeAlias = Mapping[tuple[str, int], GeneratedAnswer]
"""A generator's answers by question id and seed."""

GIVEN = ("context_passages", "context_tokens")
"""Metrics of the generator's context."""
SUFFIX = " → generator"
"""Suffix of the name of a run that is measured as a component."""


def component_run(
    name: str,
    trajectories: Iterable[Trajectory],
    answers: Answers,
    verdicts: Verdicts | None = None,
    budget: PassageBudget | None = None,
) -> ScoredRun:
    """A run with the generator's answers instead of the agent's own.

    A fault of the generator is counted and left out of every mean. A trajectory without a generated answer is left out,
    so its question counts as missing.
    """
    fault_reasons = Faults()

    def rows() -> Iterator[ScoredRow]:
        for trajectory in trajectories:
            question, entry = trajectory.question, answers.get((trajectory.question.id, trajectory.seed))
            if (fault := trajectory.fault) is not None:
                yield question, str(fault[0]), None
            elif entry is not None and entry.fault is not None:
                fault_reasons.trajectories[f"{GENERATOR_FAULT}: {entry.fault}; the same command tries again"] += 1
                yield question, GENERATOR_FAULT, None
            elif entry is not None:
                # Not exact: the agent was not sure of this answer.
                answered = replace(trajectory, answer=entry.answer, exact=False)
                fault_reasons.add(answered, verdicts)
                scores = score_trajectory(answered, verdicts, budget, asked=True)
                scores["context_passages"] = float(len(entry.passage_ids))
                scores["context_tokens"] = float(entry.context_tokens)
                yield question, str(trajectory.stop), scores

    return replace(collect(name, rows()), fault_reasons=fault_reasons)


def component_table(own: Scores, component: Scores, metrics: Sequence[str] = ("em",)) -> Table:
    """One row per run: scores of its own answers and of the generator's, and the size of the generator's context.

    `component` holds the runs under the same names. The own score of an agent without answers is a dash.
    """
    rows = []
    summaries: list[MetricSummary] = []
    for agent in (summary for summary in own.summaries if summary.group == ALL):
        generator = component.of(agent.run)
        summaries += [agent, replace(generator, run=generator.run + SUFFIX)]
        cells = [agent.run, str(generator.questions)]
        answered = agent.metrics.get("answered")
        has_answers = answered is not None and answered.mean > 0
        for metric in metrics:
            cells += [show(agent.metrics.get(metric)) if has_answers else "–", show(generator.metrics.get(metric))]
        cells += [show(generator.metrics.get(name), 1) for name in ("context_passages", "context_tokens")]
        rows.append(tuple(cells))
    answers = (f"{metric}, {source}" for metric in metrics for source in ("own answer", "generator"))
    columns = ("run", "questions", *answers, "passages", "tokens")
    return Table(columns, tuple(rows), tuple(notes_on_missing(summaries, metrics)))


def serving_scores(
    runs: Sequence[Sequence[ScoredRun]], questions: Iterable[Question], metrics: Sequence[str], seed: int
) -> Scores:
    """Scores of the servings of each run (s3, table 6): every serving against the run's first, and those of later runs
    against the same serving of the first run."""
    pairs = [(serving, servings[0]) for servings in runs for serving in servings[1:]]
    pairs += [pair for servings in runs[1:] for pair in zip(servings, runs[0], strict=True)]
    metric_names = [*metrics, "context_passages", "context_tokens"]
    return summaries_of(list(chain(*runs)), questions, (), metric_names, seed, pairs=pairs)


# Combination gain: a generator's accuracy with an agent's passages against naive RAG with as many passages.
#
# Naive RAG by number of passages is a curve; the agent's passages with the same generator are one point (QAgent,
# figure 5). The matched comparison is RAG with, for each question, as many passages as the agent served.


@dataclass(frozen=True)
class CombinationGain:
    """The curve of naive RAG and the agent's point, with one generator."""

    metric: str
    rag: Mapping[int, ScoredRun]
    """Naive RAG by number of passages."""
    matched: ScoredRun
    """Naive RAG with as many passages per question as the agent served."""
    agent: ScoredRun
    idents: Sequence[str]
    """Ids of the requested questions."""
    seed: int = 0
    datasets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Data set → the ids of its questions, where there are several."""

    @property
    def runs(self) -> list[ScoredRun]:
        """The curve by ascending k, the matched point, the agent."""
        return [*(self.rag[k] for k in sorted(self.rag)), self.matched, self.agent]

    @property
    def rows(self) -> list[MetricSummary]:
        """The means of every run."""
        metrics = (self.metric, "context_passages", "context_tokens", "all_gold@5", "recall", "answer_hit")
        return [summarise(run, ALL, [self.idents], metrics, self.seed) for run in self.runs]

    @property
    def by_dataset(self) -> Scores:
        """The metric of every run by data set, with the macro and micro means."""
        groups, metrics = {ALL: self.idents, **self.datasets}, (self.metric,)
        means = [summarise(run, name, [ids], metrics, self.seed) for run in self.runs for name, ids in groups.items()]
        means += macro_summaries(self.runs, self.datasets, metrics, self.seed)
        return Scores(tuple(means), by_dataset=(*self.datasets, *macro_groups(self.datasets)))

    def gain(self, other: ScoredRun) -> Difference | None:
        """Paired difference agent − other on their common questions; of a judged metric, where both have a verdict."""
        theirs, ours = (comparable_values(run, self.metric, self.idents) for run in (other, self.agent))
        return paired_difference(theirs, ours, np.random.default_rng(self.seed))

    def table(self) -> Table:
        """One row per point: score, size of the generator's context, and the agent's gain over it."""
        gains = [self.gain(run) for run in self.runs[:-1]] + [None]
        shown_metrics = ((self.metric, 3), ("context_passages", 1), ("context_tokens", 1), ("recall", 3))
        rows = []
        for row, gain in zip(self.rows, gains, strict=True):
            means = (show(row.metrics.get(name), decimals) for name, decimals in shown_metrics)
            rows.append((row.run, str(row.questions), *means, show(gain.difference if gain else None)))
        columns = ("passages from", "questions", self.metric, "passages", "tokens", "recall", "agent above it by")
        return Table(columns, tuple(rows), tuple(notes_on_missing(self.rows, (self.metric,))))

    def tables(self) -> dict[str, Table]:
        """Heading → table: the points, and the metric by data set where there are several."""
        tables = {self.metric: self.table()}
        return {**tables, "By data set": dataset_table(self.by_dataset, self.metric)} if self.datasets else tables

    def plot(self) -> Svg:
        """The metric by passages: RAG's curve and the agent's point."""
        *curve, _, agent = self.rows
        return line_plot([self._line("naive RAG", curve), self._line("agent", [agent])], "passages", self.metric)

    def _line(self, name: str, rows: Sequence[MetricSummary]) -> Series:
        row_metrics = [row.metrics for row in rows if self.metric in row.metrics and "context_passages" in row.metrics]
        points = [(means["context_passages"].mean, means[self.metric]) for means in row_metrics]
        return Series.of(name, points, banded=len(points) > 1)

    def to_json(self) -> JsonObject:
        """The points, for programs."""
        points: list[Json] = []
        for row in self.rows:
            counts = {name: getattr(row, name) for name in ("run", "questions", "faults", "missing")}
            points.append({**counts, "metrics": metrics_json(row)})
        gain = self.gain(self.matched)
        tree: JsonObject = {"metric": self.metric, "points": points}
        tree["gain_at_equal_passages"] = None if gain is None else difference_json(gain)
        return {**tree, "by_dataset": scores_json(self.by_dataset)["summaries"]} if self.datasets else tree
