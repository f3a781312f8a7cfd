"""Score: metrics of finished runs by question and group, and paired comparisons of runs.

Missing values are of three kinds, and none is a 0. A *fault* (a part failed) is left out of every mean and counted. A
*missing* question has no trajectory without a fault; it is counted. An undefined metric (recall without gold passages,
EM where normalisation leaves nothing of the gold answers) is left out of that metric only.

A verdict that a judge did not give is unknown. Means of judged metrics are then lower bounds (accepted answers over all
answers), and are marked as such.

The unit is the question: trajectories of one question (seeds) are averaged first, because they are not independent.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from coseek.agents.protocol import known_protocol
from coseek.agents.tag import Action
from coseek.core.errors import DataError, UnknownName
from coseek.data.answers import can_match, cover_match, exact_match, f1
from coseek.data.question import Question, questions_by_id, unmatched_notes
from coseek.data.trajectory import LAST_WORD, MISSING, PAGE, Author, StopReason, Trajectory
from coseek.measure import retrieval
from coseek.measure.abstention import Abstention, Faults, QuestionOutcome, abstention_of, confidence, outcome_of
from coseek.measure.intervals import Difference, Interval, macro_mean, paired_difference
from coseek.measure.question_groups import ALL, check_groups, datasets_of, groups_of, macro_groups

if TYPE_CHECKING:
    from coseek.data.grade_cache import Verdict

EVIDENCE_CUTS = (5, 10)
"""Depths k of the evidence metrics."""
JUDGED = ("judge_acc", "gen_acc")
"""The metrics that need a judge."""
UNREAD = "unread_verdicts"
SCORED_APART = "score runs of different data sets apart"

Verdicts: TypeAlias = Mapping[tuple[str, str], "Verdict"]
"""A judge's verdicts by question id and response."""


def score_trajectory(
    trajectory: Trajectory,
    verdicts: Verdicts | None = None,
    budget: retrieval.PassageBudget | None = None,
    asked: bool = False,
) -> dict[str, float]:
    """Every metric that is defined for this trajectory, by name (`METRICS`).

    Judged metrics need `verdicts`, `budgeted_recall` needs a `budget` of passages. `asked`: a generator was asked for
    the answer, so a missing answer is wrong even if the protocol only searches. Raises `ValueError` for a fault.
    """
    if (fault := trajectory.fault) is not None:
        raise ValueError(f"question {trajectory.question.id!r} has a {fault[0]}: a fault is counted, not scored")
    question = trajectory.question
    scores: dict[str, float] = {
        "searches": len(trajectory.searches),
        "turns": sum(segment.author is Author.AGENT for segment in trajectory.segments),
        "passages": len(retrieval.served(trajectory)),
        "answered": trajectory.answered,
        "valid": trajectory.valid,
        "truncated": trajectory.truncated,
        "token_limit": trajectory.stop is StopReason.TOKEN_LIMIT,
    }
    if trajectory.has_ids:
        scores["agent_tokens"] = trajectory.agent_tokens
        scores["read_tokens"] = len(trajectory.ids) - trajectory.agent_tokens
    scores.update(_segment_metrics(trajectory))
    if "wall_s" in trajectory.timings:
        scores["wall_s"] = trajectory.timings["wall_s"]
    if trajectory.cost_usd is not None:
        scores["cost_usd"] = trajectory.cost_usd
    if (stated_confidence := confidence(trajectory)) is not None:
        scores["confidence"] = stated_confidence
    if can_match(question.answers):
        scores["answer_hit"] = retrieval.answer_hit(trajectory)
    # An imported run has a protocol with answers. Unless its log names another one, a completed search has no answer.
    completed = bool(trajectory.messages) and trajectory.stop is StopReason.COMPLETE
    answers = asked or trajectory.answer is not None or (answers_itself(trajectory.agent_protocol) and not completed)
    if answers:
        scores["declined"] = trajectory.declined
    if "answer_hit" in scores and answers:
        scores["em"] = exact_match(trajectory.answer, question.answers)
        scores["cover_em"] = cover_match(trajectory.answer, question.answers)
        scores["f1"] = f1(trajectory.answer, question.answers)
        if scores["answer_hit"]:
            scores["utilisation"] = scores["cover_em"]
    if question.answers and answers and verdicts is not None:
        scores.update(judged(question, trajectory.answer, verdicts))
    scores.update({name: value for name, value in _recalls(trajectory, budget).items() if value is not None})
    return {name: float(scores[name]) for name in METRICS if name in scores}


def answers_itself(protocol: str) -> bool:
    """Whether agents of this protocol write an answer, unlike those that only search (s3, DeepRetrieval). True for an
    unknown protocol."""
    loaded = known_protocol(protocol)
    return loaded is None or Action.ANSWER in loaded.grammar.agent_tags


def _segment_metrics(trajectory: Trajectory) -> Iterator[tuple[str, float]]:
    """Metrics of what the environment showed besides search results."""
    tags = [segment.tag for segment in trajectory.segments]
    visits, protocol = tags.count(PAGE) + tags.count(MISSING), known_protocol(trajectory.agent_protocol)
    if visits or (protocol is not None and protocol.visits and not trajectory.messages):
        yield "visits", visits
    if visits:
        yield "missed_visits", tags.count(MISSING) / visits
    if LAST_WORD in tags or (protocol is not None and protocol.file.last_word):
        yield "forced", LAST_WORD in tags


def judged(question: Question, answer: str | None, verdicts: Verdicts) -> dict[str, float]:
    """`judge_acc` and `gen_acc` of an answer: GenAcc = cover-EM ∨ judge accepts (s3, eq. 3), and on a question
    for the judge alone (`Question.judge_only`) its verdict.

    An empty answer is wrong without a judge. Without a verdict there is no `judge_acc`, and a `gen_acc` only if
    cover-EM is 1. `unread_verdicts` counts such answers: a mean over the others would be biased towards right
    answers.
    """
    if not (answer or "").strip():
        return {"judge_acc": 0.0, "gen_acc": 0.0, UNREAD: 0.0}
    verdict = verdicts.get((question.id, answer or ""))
    right = None if verdict is None else verdict.right
    is_covered = cover_match(answer, question.answers) and not question.judge_only
    if right is None:
        return {"gen_acc": 1.0, UNREAD: 1.0} if is_covered else {UNREAD: 1.0}
    return {"judge_acc": float(right), "gen_acc": float(is_covered or right), UNREAD: 0.0}


METRICS: dict[str, str] = {
    "em": "strict EM: the whole answer equals a gold answer",
    "cover_em": "cover-EM: the answer contains a gold answer",
    "f1": "word F1 against the nearest gold answer",
    "gen_acc": "GenAcc: the answer contains a gold answer, or the judge accepts it",
    "judge_acc": "the judge accepts the answer",
    UNREAD: "answers without a readable verdict of the judge",
    "recall": "share of gold passages retrieved in the run",
    "budgeted_recall": "share of gold passages in the first tokens (`--budget`) of the run's evidence",
    "recall_per_search": "share of gold passages retrieved by one search, mean over the run's searches",
    "recall@5": "share of gold passages among the first five of the run's evidence",
    "recall@10": "share of gold passages among the first ten of the run's evidence",
    "all_gold@5": "every gold passage is among the first five of the run's evidence",
    "all_gold@10": "every gold passage is among the first ten of the run's evidence",
    "answer_hit": "a retrieved passage contains a gold answer",
    "utilisation": "cover-EM where a retrieved passage contains a gold answer; undefined elsewhere",
    "searches": "searches per question",
    "turns": "turns of the agent",
    "agent_tokens": "tokens generated by the agent",
    "read_tokens": "tokens read by the agent, prompt included",
    "passages": "distinct passages retrieved",
    "visits": "pages of documents that the agent asked for",
    "missed_visits": "share of a run's visits that asked for a page which is not there",
    "context_passages": "passages in the generator's context",
    "context_tokens": "tokens of the passages in the generator's context",
    "wall_s": "seconds from question to end, while other runs share the machine",
    "cost_usd": "price of the model's server in dollars",
    "answered": "runs with an answer",
    "declined": "runs that decline to answer",
    "confidence": "geometric mean probability of the tokens of the turn that answers",
    "valid": "runs in the protocol's format",
    "truncated": "runs that a limit ended",
    "token_limit": "runs that a limit of tokens ended",
    "forced": "runs that were asked for their last word at a limit",
}
"""Every metric with its definition, in the order of the tables. All but the counts lie in [0, 1]."""


@dataclass(frozen=True, slots=True)
class QuestionScores:
    """Metrics of one question of one run, averaged over its trajectories without a fault."""

    question: Question
    metrics: Mapping[str, float]
    rows: int
    """Number of averaged trajectories; 0 without metrics if all have a fault."""
    faults: int
    unknown: Mapping[str, float] = field(default_factory=dict)
    """Judged metric → share of the trajectories without a value, if any. `metrics` counts them as wrong; a metric
    without any value is not in `metrics`."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """Scores of a run by question."""

    name: str
    questions: Mapping[str, QuestionScores]
    stops: Mapping[str, int]
    """Number of trajectories by stop reason."""
    fault_reasons: Faults = field(default_factory=Faults)


class Means(dict[str, Interval]):
    """Metric → mean. The `KeyError` of a missing metric lists the others."""

    def __missing__(self, metric: str) -> Interval:
        raise KeyError(f"{metric} has no value; there is {', '.join(self) or 'none, since every search or run failed'}")


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The means of one run over one group of questions."""

    run: str
    group: str
    questions: int
    """Questions with at least one trajectory without a fault."""
    rows: int
    faults: int
    missing: int
    """Requested questions without such a trajectory."""
    metrics: Mapping[str, Interval]
    fault_reasons: Faults = field(default_factory=Faults)
    """Of the whole run."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Paired differences between `run` and the run `against`, on their common questions."""

    run: str
    against: str
    group: str
    metrics: Mapping[str, Difference]
    unread: int = 0
    """Common questions without a readable verdict in either run; left out of judged metrics."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Result of `score_runs`."""

    summaries: tuple[MetricSummary, ...]
    comparisons: tuple[Comparison, ...] = ()
    stops: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Run → stop reason → trajectories."""
    by_dataset: tuple[str, ...] = ()
    """The groups that are data sets, then their macro means; empty for questions of one data set."""
    abstention: Mapping[str, Abstention] = field(default_factory=dict)
    """By run; empty where every question is answerable and no run declines one."""
    unmatched: tuple[str, ...] = ()
    """Notes on the questions that metrics of the answer leave out."""

    def of(self, run: str, group: str = ALL) -> MetricSummary:
        """The means of a run over a group. Raises `KeyError` for an unknown pair."""
        for summary in self.summaries:
            if (summary.run, summary.group) == (run, group):
                return summary
        raise KeyError((run, group))


def score_run(
    name: str,
    trajectories: Iterable[Trajectory],
    verdicts: Verdicts | None = None,
    budget: retrieval.PassageBudget | None = None,
) -> ScoredRun:
    """Score a run. Trajectories are read once and not stored."""

    fault_reasons = Faults()

    def rows() -> Iterator[ScoredRow]:
        for trajectory in trajectories:
            if (fault := trajectory.fault) is not None:
                fault_reasons.trajectories[
                    f"{': '.join(filter(None, fault))}; `coseek run` with --resume tries again"
                ] += 1
                yield trajectory.question, str(fault[0]), None
            else:
                fault_reasons.add(trajectory, verdicts)
                yield trajectory.question, str(trajectory.stop), score_trajectory(trajectory, verdicts, budget)

    return replace(collect(name, rows()), fault_reasons=fault_reasons)


ScoredRow: TypeAlias = tuple[Question, str, Mapping[str, float] | None]
"""Question, stop reason and metrics of one trajectory; metrics are `None` for a fault."""


def collect(name: str, rows: Iterable[ScoredRow]) -> ScoredRun:
    """Group scored trajectories by question."""
    by_question: dict[str, tuple[Question, list[Mapping[str, float]], int]] = {}
    stops: dict[str, int] = {}
    for question, stop, metrics in rows:
        _, scores, faults = by_question.get(question.id, (question, [], 0))
        stops[stop] = stops.get(stop, 0) + 1
        if metrics is None:
            faults += 1
        else:
            scores.append(metrics)
        by_question[question.id] = (question, scores, faults)
    return ScoredRun(
        name,
        {
            ident: QuestionScores(question, _averages(rows), len(rows), faults, _unknown_shares(rows))
            for ident, (question, rows, faults) in by_question.items()
        },
        stops,
    )


def score_runs(
    runs: Mapping[str, Iterable[Trajectory]],
    *,
    by: Sequence[str] = ("hops",),
    questions: Iterable[Question] | None = None,
    metrics: Sequence[str] = tuple(METRICS),
    seed: int = 0,
) -> Scores:
    """Summaries of every run over all questions and each group, and comparisons of every later run with the first.

    `by` holds names of `GROUPS`. `questions` are the requested ones; default: the questions of all runs.
    """
    check_metrics(metrics)
    check_groups(by)
    scored_runs = [score_run(name, trajectories) for name, trajectories in runs.items()]
    return summaries_of(scored_runs, list(questions or ()) or questions_of(scored_runs), by, metrics, seed)


def questions_of(runs: Iterable[ScoredRun]) -> list[Question]:
    """The questions of all runs."""
    questions = questions_by_id((row.question for run in runs for row in run.questions.values()), SCORED_APART)
    if not questions:
        raise DataError("there is nothing to score: the runs hold no trajectories")
    return list(questions.values())


def check_metrics(metrics: Iterable[str]) -> None:
    """Raise `UnknownName` for an unknown metric."""
    for name in metrics:
        if name not in METRICS:
            raise UnknownName("metric", name, METRICS)


def summaries_of(
    scored: Sequence[ScoredRun],
    asked: Iterable[Question],
    by: Sequence[str],
    metrics: Sequence[str],
    seed: int,
    in_domain: Collection[str] = (),
    pairs: Iterable[tuple[ScoredRun, ScoredRun]] | None = None,
) -> Scores:
    """Means of scored runs over all of `asked`, by data set and by group, and comparisons of (run, baseline) `pairs`.

    By default every later run is compared with the first. `in_domain` names data sets; if not empty, questions are also
    grouped into in-domain and out-of-domain. Raises `DataError` for different questions that share an id.
    """
    questions = list(asked)
    questions_by_id([*questions, *(row.question for run in scored for row in run.questions.values())], SCORED_APART)
    groups, datasets = groups_of(questions, by, in_domain), datasets_of(questions)
    means = [summarise(run, group, [idents], metrics, seed) for run in scored for group, idents in groups.items()]
    means += macro_summaries(scored, datasets, metrics, seed)
    compared_pairs = [(run, scored[0]) for run in scored[1:]] if pairs is None else pairs
    return Scores(
        tuple(means),
        tuple(
            compare(against, run, group, idents, metrics, seed)
            for run, against in compared_pairs
            for group, idents in groups.items()
        ),
        {run.name: run.stops for run in scored},
        (*datasets, *macro_groups(datasets)),
        _abstention(scored, questions, seed),
        tuple(unmatched_notes(questions)),
    )


def _abstention(scored: Sequence[ScoredRun], questions: Sequence[Question], seed: int) -> dict[str, Abstention]:
    """The abstention of every run over `asked`; empty where there is nothing to decline and no run declines."""
    outcomes: dict[str, list[QuestionOutcome]] = {}
    for run in scored:
        rows = [row for question in questions if (row := run.questions.get(question.id)) is not None and row.rows]
        outcomes[run.name] = [outcome for row in rows if (outcome := outcome_of(row.question, row.metrics)) is not None]
    if not any(outcome.declined > 0 or not outcome.answerable for group in outcomes.values() for outcome in group):
        return {}
    return {name: abstention_of(group, seed) for name, group in outcomes.items() if group}


def summarise(
    run: ScoredRun, group: str, sets: Sequence[Sequence[str]], metrics: Sequence[str], seed: int
) -> MetricSummary:
    """The means of a run over sets of question ids, equally weighted: a group of questions is one set, a macro mean has
    several. A metric that a set lacks has no mean."""
    rows = [[run.questions[ident] for ident in idents if ident in run.questions] for idents in sets]
    scored_rows = [[row for row in set_rows if row.rows] for set_rows in rows]
    # A new generator for each mean, so that equal values get the same interval in every table.
    silent = (
        JUDGED if run.fault_reasons.no_reply and not (run.fault_reasons.unreadable or run.fault_reasons.read) else ()
    )
    means = {name: _mean(scored_rows, name, np.random.default_rng(seed)) for name in metrics if name not in silent}
    return MetricSummary(
        run=run.name,
        group=group,
        questions=sum(map(len, scored_rows)),
        rows=sum(row.rows for set_rows in scored_rows for row in set_rows),
        faults=sum(row.faults for set_rows in rows for row in set_rows),
        missing=sum(map(len, sets)) - sum(map(len, scored_rows)),
        metrics=Means({name: mean for name, mean in means.items() if mean is not None}),
        fault_reasons=run.fault_reasons,
    )


def macro_summaries(
    runs: Iterable[ScoredRun], datasets: Mapping[str, Sequence[str]], metrics: Sequence[str], seed: int
) -> list[MetricSummary]:
    """The macro means of runs over data sets (name → question ids)."""
    return [
        summarise(run, group, [datasets[name] for name in names], metrics, seed)
        for run in runs
        for group, names in macro_groups(datasets).items()
    ]


def _mean(sets: Sequence[Sequence[QuestionScores]], metric: str, rng: np.random.Generator) -> Interval | None:
    """The mean of a metric over the questions that have it; a lower bound if verdicts are missing."""
    # A question whose verdict is missing counts as 0.
    values = [
        [row.metrics.get(metric, 0.0) for row in rows if metric in row.metrics or metric in row.unknown]
        for rows in sets
    ]
    unknown_shares = [[row.unknown[metric] for row in rows if metric in row.unknown] for rows in sets]
    mean, unread = macro_mean(values, rng), sum(map(len, unknown_shares))
    if mean is None or not unread:
        return mean
    unknown_share = fmean(sum(shares) / len(group) for shares, group in zip(unknown_shares, values, strict=True))
    return replace(mean, unread=unread, most=mean.mean + unknown_share)


def compare(
    first: ScoredRun, other: ScoredRun, group: str, idents: Sequence[str], metrics: Sequence[str], seed: int
) -> Comparison:
    """`other` − `first` for each metric, on their common questions of a group."""
    pairs = {name: (comparable_values(first, name, idents), comparable_values(other, name, idents)) for name in metrics}
    paired_differences = {name: paired_difference(a, b, np.random.default_rng(seed)) for name, (a, b) in pairs.items()}
    differences = {name: difference for name, difference in paired_differences.items() if difference is not None}
    shared_ids = [ident for ident in idents if ident in first.questions and ident in other.questions]
    unread = sum(_is_unread(first.questions[ident]) or _is_unread(other.questions[ident]) for ident in shared_ids)
    return Comparison(other.name, first.name, group, differences, unread)


def comparable_values(run: ScoredRun, metric: str, idents: Sequence[str]) -> dict[str, float]:
    """Values of a metric by question. Questions without a verdict are left out of judged metrics, also if cover-EM
    decides GenAcc: otherwise only right answers would remain."""
    rows = ((ident, run.questions[ident]) for ident in idents if ident in run.questions)
    known_rows = ((ident, row) for ident, row in rows if not (metric in JUDGED and _is_unread(row)))
    return {ident: row.metrics[metric] for ident, row in known_rows if metric in row.metrics}


def _is_unread(row: QuestionScores) -> bool:
    return row.metrics.get(UNREAD, 0.0) > 0


def _averages(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    by_metric = {name: [row[name] for row in rows if name in row] for name in METRICS}
    means = {name: fmean(values) for name, values in by_metric.items() if values}
    for name, share in _unknown_shares(rows).items():
        if name in means:
            means[name] *= 1 - share
    return means


def _unknown_shares(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Judged metric → share of the judged rows without it, if any."""
    judged_rows = [row for row in rows if UNREAD in row]
    shares = {name: fmean(name not in row for row in judged_rows) for name in JUDGED if judged_rows}
    return {name: share for name, share in shares.items() if share}


def _recalls(trajectory: Trajectory, budget: retrieval.PassageBudget | None) -> dict[str, float | None]:
    per_search = retrieval.search_recalls(trajectory)
    recalls = {
        "recall": retrieval.run_recall(trajectory),
        "budgeted_recall": None if budget is None else retrieval.budgeted_recall(trajectory, budget),
        "recall_per_search": fmean(per_search) if per_search else None,
    }
    for k in EVIDENCE_CUTS:
        recalls[f"recall@{k}"] = retrieval.recall_at(trajectory, k)
        recalls[f"all_gold@{k}"] = retrieval.all_gold_at(trajectory, k)
    return recalls
