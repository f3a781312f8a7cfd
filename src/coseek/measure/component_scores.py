"""Component scores: a frozen generator's answers from an agent's passages, compared with the agent's own answers.

Answers and verdicts are arguments; this module calls no model.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from coseek.data.grade_cache import GeneratedAnswer
from coseek.data.trajectory import Trajectory
from coseek.measure.question_groups import ALL
from coseek.measure.retrieval import PassageBudget
from coseek.measure.score import MetricSummary, ScoredRow, ScoredRun, Scores, Verdicts, collect, score_trajectory
from coseek.measure.table import Table, left_out, show

GENERATOR_FAULT = "generator_error"
"""Stop reason of a trajectory with a fault of the generator."""

Answers: TypeAlias = Mapping[tuple[str, int], GeneratedAnswer]
"""A generator's answers by question id and seed."""

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

    A fault of the generator is counted and in no mean. A trajectory without a generated answer is left out, so that its
    question counts as missing.
    """

    def rows() -> Iterator[ScoredRow]:
        for trajectory in trajectories:
            question, entry = trajectory.question, answers.get((trajectory.question.id, trajectory.seed))
            if (fault := trajectory.fault) is not None:
                yield question, str(fault[0]), None
            elif entry is not None and entry.fault is not None:
                yield question, GENERATOR_FAULT, None
            elif entry is not None:
                answered = replace(
                    trajectory, answer=entry.answer, exact=False
                )  # the agent was not sure of this answer
                scores = score_trajectory(answered, verdicts, budget, asked=True)
                shown = {
                    "context_passages": float(len(entry.passage_ids)),
                    "context_tokens": float(entry.context_tokens),
                }
                yield question, str(trajectory.stop), {**scores, **shown}

    return collect(name, rows())


def component_table(
    own: Scores, component: Scores, metrics: Sequence[str] = ("em",), group: str = ALL, generator: str = "generator"
) -> Table:
    """One row per run: scores of its own answers and of the generator's, and the size of the generator's context.

    `component` holds the runs under the same names. The own score of an agent without answers is a dash.
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
