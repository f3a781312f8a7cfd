"""Component: an agent measured by what a frozen generator makes of its passages, beside its own answers.

What the generator said and what the judge said is handed in; nothing here asks a model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from coseek.data.grade_cache import GeneratedAnswer
from coseek.data.trajectory import Trajectory
from coseek.measure.score import ALL, MetricSummary, ScoredRow, ScoredRun, Scores, Verdicts, collect, score_trajectory
from coseek.measure.table import Table, left_out, show

GENERATOR_FAULT = "generator_error"
"""How a trajectory counts whose passages the generator could not answer from."""

Answers: TypeAlias = Mapping[tuple[str, int], GeneratedAnswer]
"""What a generator answered, by question id and seed."""

SUFFIX = " → generator"
"""Behind a run's name where it is measured as a component."""


def component_run(
    name: str, trajectories: Iterable[Trajectory], answers: Answers, verdicts: Verdicts | None = None
) -> ScoredRun:
    """A run with the generator's answer in the place of the agent's own. All that the agent did stays as it was.

    A generator's fault says nothing about the passages: it is counted and is in no mean. A trajectory that the
    generator was never asked about is not there, so its question counts as missing.
    """

    def rows() -> Iterator[ScoredRow]:
        for trajectory in trajectories:
            question, entry = trajectory.question, answers.get((trajectory.question.id, trajectory.seed))
            if trajectory.stop.is_fault:
                yield question, str(trajectory.stop), None
            elif entry is not None and entry.fault is not None:
                yield question, GENERATOR_FAULT, None
            elif entry is not None:
                scores = score_trajectory(replace(trajectory, answer=entry.answer), verdicts)
                shown = {
                    "context_passages": float(len(entry.passage_ids)),
                    "context_tokens": float(entry.context_tokens),
                }
                yield question, str(trajectory.stop), {**scores, **shown}

    return collect(name, rows())


def component_table(
    own: Scores, component: Scores, metrics: Sequence[str] = ("em",), group: str = ALL, generator: str = "generator"
) -> Table:
    """One line a run: its own answers, the generator's from its passages, and what the generator was given.

    `component` holds the runs under the same names. An agent that writes no answers has a dash for its own.
    """
    columns = ["run", "questions"]
    for metric in metrics:
        columns += [f"{metric}, own answer", f"{metric}, {generator}"]
    columns += ["passages", "tokens"]
    rows = []
    parts: list[MetricSummary] = []
    for whole in (one for one in own.summaries if one.group == group):
        part = component.of(whole.run, group)
        parts += [whole, replace(part, run=part.run + SUFFIX)]
        cells = [whole.run, str(part.questions)]
        for metric in metrics:
            answers = whole.metrics.get("answered")
            wrote = answers is not None and answers.mean > 0
            cells += [show(whole.metrics.get(metric)) if wrote else "–", show(part.metrics.get(metric))]
        cells += [show(part.metrics.get(name), 1) for name in ("context_passages", "context_tokens")]
        rows.append(tuple(cells))
    return Table(tuple(columns), tuple(rows), tuple(left_out(parts, metrics)))
