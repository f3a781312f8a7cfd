"""Score: what finished runs are worth, question by question, group by group, and run against run.

Three kinds of nothing are kept apart. A *fault* (a part failed) says nothing about the agent: it is left out of every
mean and counted. A *missing* question was never run, or only with faults: it is counted too. A metric that a question
cannot have (recall without gold passages) is left out of that metric alone. None of the three is ever a 0.

What a judge left unknown is neither: the answer is there and nobody knows whether it is right. Means of judged metrics
are then lower bounds (known to be right, over all answers), and are called so wherever they are shown.

The unit is the question: several runs of one question (seeds) are averaged first, so that intervals are not made
narrow by asking the same thing twice.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean
from typing import TypeAlias

import numpy as np

from coseek.agents.grammar import Action
from coseek.agents.protocol import load_protocol
from coseek.core.errors import DataError, UnknownName, UserError
from coseek.data.grade_cache import Verdict
from coseek.data.question import Question
from coseek.data.trajectory import Author, Trajectory
from coseek.measure import retrieval
from coseek.measure.answers import cover_match, exact_match, f1
from coseek.measure.intervals import Difference, Interval, bootstrap_mean, paired_difference

ALL = "all"
"""Name of the group that every question is in."""
IN_DOMAIN, OUT_OF_DOMAIN = "in domain", "out of domain"
"""Groups of the questions from data sets that something was trained on, and of the others."""

EVIDENCE_CUTS = (5, 10)
"""How many passages of a run's evidence are looked at."""
JUDGED = ("judge_acc", "gen_acc")
"""The metrics that need a judge."""
UNREAD = "unread_verdicts"

Verdicts: TypeAlias = Mapping[tuple[str, str], Verdict]
"""What a judge said, by question id and response."""


def score_trajectory(trajectory: Trajectory, verdicts: Verdicts | None = None) -> dict[str, float]:
    """Every metric that this run has; the names are those of `METRICS`. Not to be asked of a fault.

    The judged ones need a judge's `verdicts`.
    """
    if trajectory.stop.is_fault:
        raise ValueError(
            f"question {trajectory.question.id!r} ended by {trajectory.stop}: a fault is counted, not scored"
        )
    question = trajectory.question
    scores: dict[str, float] = {
        "searches": len(trajectory.searches),
        "turns": sum(segment.author is Author.AGENT for segment in trajectory.segments),
        "agent_tokens": trajectory.agent_tokens,
        "read_tokens": len(trajectory.ids) - trajectory.agent_tokens,
        "passages": len(retrieval.served(trajectory)),
        "answered": trajectory.answer is not None,
        "valid": trajectory.valid,
        "truncated": trajectory.truncated,
    }
    if "wall_s" in trajectory.timings:
        scores["wall_s"] = trajectory.timings["wall_s"]
    if trajectory.cost_usd is not None:
        scores["cost_usd"] = trajectory.cost_usd
    if question.answers:
        scores["answer_hit"] = retrieval.answer_hit(trajectory)
    if question.answers and (trajectory.answer is not None or answers_itself(trajectory.protocol)):
        scores["em"] = exact_match(trajectory.answer, question.answers)
        scores["cover_em"] = cover_match(trajectory.answer, question.answers)
        scores["f1"] = f1(trajectory.answer, question.answers)
        if verdicts is not None:
            scores.update(judged(question, trajectory.answer, verdicts))
    scores.update({name: value for name, value in _recalls(trajectory).items() if value is not None})
    return {name: float(scores[name]) for name in METRICS if name in scores}


@cache
def answers_itself(protocol: str) -> bool:
    """Whether agents of this protocol write an answer. Those that only search (s3, DeepRetrieval) owe none.

    A protocol that is none of ours is taken to answer.
    """
    try:
        return load_protocol(protocol).tag_for(Author.AGENT, Action.ANSWER) is not None
    except UserError:
        return True


def judged(question: Question, answer: str | None, verdicts: Verdicts) -> dict[str, float]:
    """`judge_acc` and `gen_acc` of an answer: GenAcc = cover-EM ∨ judge says yes (s3, eq. 3).

    An empty answer is wrong and is shown to no judge. Where the judge failed there is no `judge_acc`, and a `gen_acc`
    only if cover-EM settles it alone: a fault of the judge is never a no. `unread_verdicts` says so: without it, means
    would be those of the answers that are easy to judge, which are the right ones.
    """
    if not (answer or "").strip():
        return {"judge_acc": 0.0, "gen_acc": 0.0, UNREAD: 0.0}
    verdict = verdicts.get((question.id, answer or ""))
    right = None if verdict is None else verdict.right
    covered = cover_match(answer, question.answers)
    if right is None:
        return {"gen_acc": 1.0, UNREAD: 1.0} if covered else {UNREAD: 1.0}
    return {"judge_acc": float(right), "gen_acc": float(covered or right), UNREAD: 0.0}


METRICS: dict[str, str] = {
    "em": "strict EM: the whole answer is a gold answer",
    "cover_em": "cover-EM: the answer holds a gold answer",
    "f1": "word F1 against the nearest gold answer",
    "gen_acc": "GenAcc: the answer holds a gold answer, or the judge says yes",
    "judge_acc": "the judge says yes",
    UNREAD: "answers of which the judge gave no verdict that could be read",
    "recall": "gold passages found in the run",
    "recall_per_search": "gold passages found by one search, mean over the run's searches",
    "recall@5": "gold passages among the first five of the run's evidence",
    "recall@10": "gold passages among the first ten of the run's evidence",
    "all_gold@5": "every gold passage is among the first five of the run's evidence",
    "all_gold@10": "every gold passage is among the first ten of the run's evidence",
    "answer_hit": "a gold answer stands in a retrieved passage",
    "searches": "searches a question",
    "turns": "turns the agent wrote",
    "agent_tokens": "tokens the agent wrote",
    "read_tokens": "tokens the agent was given, prompt included",
    "passages": "distinct passages served",
    "context_passages": "passages the generator was shown",
    "context_tokens": "tokens of the passages the generator was shown",
    "wall_s": "seconds from question to end, among others that ran at the same time",
    "cost_usd": "dollars that the model's server asked for",
    "answered": "runs that ended with an answer",
    "valid": "runs in the protocol's form",
    "truncated": "runs that a budget ended",
}
"""Every metric with what it means, in the order of the tables. All but the counts lie in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One question of one run: its metrics, averaged over the runs of it that ended without a fault."""

    question: Question
    metrics: Mapping[str, float]
    rows: int
    """Trajectories behind the averages; 0 when all ended by a fault, and then there are no metrics."""
    faults: int
    unknown: Mapping[str, float] = field(default_factory=dict)
    """Judged metric → share of the trajectories of which it is not known, where there are such. In `metrics` they count
    as not right; a metric of which nothing is known is not in `metrics`."""


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run, question by question."""

    name: str
    questions: Mapping[str, Scored]
    stops: Mapping[str, int]
    """How many trajectories ended for which reason."""


@dataclass(frozen=True, slots=True)
class MetricSummary:
    """The means of one run over one group of questions."""

    run: str
    group: str
    questions: int
    """Questions with at least one trajectory that is no fault."""
    rows: int
    faults: int
    missing: int
    """Questions that were to be answered and have no such trajectory."""
    metrics: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against the first one, on the questions that both have."""

    run: str
    against: str
    group: str
    metrics: Mapping[str, Difference]
    unread: int = 0
    """Questions of both that lack a readable verdict on either side: no judged metric compares them."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What `score_runs` found."""

    summaries: tuple[MetricSummary, ...]
    comparisons: tuple[Comparison, ...] = ()
    stops: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Run → stop reason → trajectories."""

    def of(self, run: str, group: str = ALL) -> MetricSummary:
        """One run's means over one group; `KeyError` when there is no such pair."""
        for summary in self.summaries:
            if (summary.run, summary.group) == (run, group):
                return summary
        raise KeyError((run, group))


def score_run(name: str, trajectories: Iterable[Trajectory], verdicts: Verdicts | None = None) -> ScoredRun:
    """Score a run; the trajectories are read once and not kept."""

    def rows() -> Iterator[ScoredRow]:
        for trajectory in trajectories:
            fault = trajectory.stop.is_fault
            scores = None if fault else score_trajectory(trajectory, verdicts)
            yield trajectory.question, str(trajectory.stop), scores

    return collect(name, rows())


ScoredRow: TypeAlias = tuple[Question, str, Mapping[str, float] | None]
"""One trajectory's question, how it ended, and its metrics; `None` for a fault."""


def collect(name: str, rows: Iterable[ScoredRow]) -> ScoredRun:
    """Scored trajectories as a run: those of one question together."""
    found: dict[str, tuple[Question, list[Mapping[str, float]], int]] = {}
    stops: dict[str, int] = {}
    for question, stop, metrics in rows:
        _, scores, faults = found.get(question.id, (question, [], 0))
        stops[stop] = stops.get(stop, 0) + 1
        if metrics is None:
            faults += 1
        else:
            scores.append(metrics)
        found[question.id] = (question, scores, faults)
    return ScoredRun(
        name,
        {
            ident: Scored(question, _averages(rows), len(rows), faults, _unknown(rows))
            for ident, (question, rows, faults) in found.items()
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
    """Summaries of every run over all questions and over each group, and every later run paired with the first.

    `by` holds names of `GROUPS`. `questions` says what was to be answered; without it, whatever any run answered.
    """
    check_metrics(metrics)
    check_groups(by)
    scored = [score_run(name, trajectories) for name, trajectories in runs.items()]
    return summaries_of(scored, list(questions or ()) or questions_of(scored), by, metrics, seed)


def questions_of(runs: Iterable[ScoredRun]) -> list[Question]:
    """Whatever any of the runs was asked."""
    asked = {ident: row.question for run in runs for ident, row in run.questions.items()}
    if not asked:
        raise DataError("there is nothing to score: the runs hold no trajectories")
    return list(asked.values())


def check_metrics(metrics: Iterable[str]) -> None:
    """Refuse a metric that there is not."""
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
) -> Scores:
    """Runs that were scored question by question: their means over all of `asked` and by group, and paired.

    `in_domain` names data sets; where it names any, the questions are also parted into those of them and others.
    """
    groups = groups_of(asked, by, in_domain)
    return Scores(
        tuple(summarise(run, group, idents, metrics, seed) for run in scored for group, idents in groups.items()),
        tuple(
            compare(scored[0], run, group, idents, metrics, seed)
            for run in scored[1:]
            for group, idents in groups.items()
        ),
        {run.name: run.stops for run in scored},
    )


def summarise(run: ScoredRun, group: str, idents: Sequence[str], metrics: Sequence[str], seed: int) -> MetricSummary:
    """The means of a run over the questions of a group."""
    rows = [run.questions[ident] for ident in idents if ident in run.questions]
    scored = [row for row in rows if row.rows]
    # Each mean has a generator of its own: the same values get the same interval in every table they stand in.
    means = {name: mean_of(scored, name, np.random.default_rng(seed)) for name in metrics}
    return MetricSummary(
        run=run.name,
        group=group,
        questions=len(scored),
        rows=sum(row.rows for row in scored),
        faults=sum(row.faults for row in rows),
        missing=len(idents) - len(scored),
        metrics={name: mean for name, mean in means.items() if mean is not None},
    )


def mean_of(rows: Sequence[Scored], metric: str, rng: np.random.Generator) -> Interval | None:
    """The mean of a metric over the questions that have it; a lower bound where verdicts could not be read."""
    values = values_of(rows, metric)
    unknown = [row.unknown[metric] for row in rows if metric in row.unknown]
    mean = bootstrap_mean(values, rng)
    if mean is None or not unknown:
        return mean
    return replace(mean, unread=len(unknown), most=mean.mean + sum(unknown) / len(values))


def values_of(rows: Iterable[Scored], metric: str) -> list[float]:
    """A metric question by question; 0 for what a judge left unknown."""
    return [row.metrics.get(metric, 0.0) for row in rows if metric in row.metrics or metric in row.unknown]


def compare(
    first: ScoredRun,
    other: ScoredRun,
    group: str,
    idents: Sequence[str],
    metrics: Sequence[str],
    seed: int,
) -> Comparison:
    """`other` − `first`, metric by metric, on the questions of a group that both have."""
    pairs = {name: (_values(first, name, idents), _values(other, name, idents)) for name in metrics}
    found = {name: paired_difference(a, b, np.random.default_rng(seed)) for name, (a, b) in pairs.items()}
    differences = {name: difference for name, difference in found.items() if difference is not None}
    shared = [ident for ident in idents if ident in first.questions and ident in other.questions]
    unread = sum(_is_unread(first.questions[ident]) or _is_unread(other.questions[ident]) for ident in shared)
    return Comparison(other.name, first.name, group, differences, unread)


def _by_hops(question: Question) -> str | None:
    return None if question.hops is None else f"{question.hops} hop" + ("s" if question.hops != 1 else "")


def _by_chain(question: Question) -> str | None:
    return "2+ hops" if question.hops is not None and question.hops > 1 else None


def _by_kind(question: Question) -> str | None:
    kind = question.meta.get("kind", question.meta.get("type"))  # HotpotQA and 2Wiki call it type
    return None if kind is None else str(kind)


def dataset_of(question: Question) -> str | None:
    """The data set that a question says it is of."""
    name = question.meta.get("dataset", question.meta.get("data_source"))  # rows of Search-R1 call it data_source
    return None if name is None else str(name)


GROUPS: dict[str, Callable[[Question], str | None]] = {
    "hops": _by_hops,
    "chain": _by_chain,
    "kind": _by_kind,
    "dataset": dataset_of,
}
"""Ways to group questions; a question for which the answer is `None` is in no group but `all`."""


def check_groups(by: Iterable[str]) -> None:
    """Refuse a way to group that there is not."""
    for name in by:
        if name not in GROUPS:
            raise UnknownName("group", name, GROUPS)


def groups_of(
    questions: Iterable[Question], by: Sequence[str], in_domain: Collection[str] = ()
) -> dict[str, list[str]]:
    """Group → the ids of its questions; `all` comes first."""
    everyone = list(questions)
    groups = {ALL: [question.id for question in everyone]}
    if in_domain:
        inside = {question.id: dataset_of(question) in in_domain for question in everyone}
        groups[IN_DOMAIN] = [ident for ident in inside if inside[ident]]
        groups[OUT_OF_DOMAIN] = [ident for ident in inside if not inside[ident]]
    for name in by:
        named = [(group, question.id) for question in everyone if (group := GROUPS[name](question)) is not None]
        for group, ident in sorted(named):
            groups.setdefault(group, []).append(ident)
    return groups


def _values(run: ScoredRun, metric: str, idents: Sequence[str]) -> dict[str, float]:
    """What is compared. Without a verdict a question is in no comparison of judges, whatever its words settle: else
    only the right ones would stay."""
    rows = ((ident, run.questions[ident]) for ident in idents if ident in run.questions)
    known = ((ident, row) for ident, row in rows if not (metric in JUDGED and _is_unread(row)))
    return {ident: row.metrics[metric] for ident, row in known if metric in row.metrics}


def _is_unread(row: Scored) -> bool:
    return row.metrics.get(UNREAD, 0.0) > 0


def _averages(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {name: [row[name] for row in rows if name in row] for name in METRICS}
    means = {name: fmean(values) for name, values in found.items() if values}
    for name, share in _unknown(rows).items():
        if name in means:
            means[name] *= 1 - share
    return means


def _unknown(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Judged metric → share of the judged rows that lack it, where there are such."""
    judged_rows = [row for row in rows if UNREAD in row]
    shares = {name: fmean(name not in row for row in judged_rows) for name in JUDGED if judged_rows}
    return {name: share for name, share in shares.items() if share}


def _recalls(trajectory: Trajectory) -> dict[str, float | None]:
    each = retrieval.search_recalls(trajectory)
    first: dict[str, float | None] = {}
    for k in EVIDENCE_CUTS:
        all_gold = retrieval.all_gold_at(trajectory, k)
        first |= {
            f"recall@{k}": retrieval.recall_at(trajectory, k),
            f"all_gold@{k}": None if all_gold is None else float(all_gold),
        }
    return {
        "recall": retrieval.run_recall(trajectory),
        "recall_per_search": fmean(each) if each else None,
        **first,
    }
