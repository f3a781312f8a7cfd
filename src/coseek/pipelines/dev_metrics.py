"""Dev metrics: mean reward, exact match and recall of a policy in training on the dev questions."""

from collections.abc import Sequence
from statistics import fmean

from coseek.core.errors import DataError
from coseek.data.answers import exact_match
from coseek.data.trajectory import Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.measure.question_groups import MACRO, datasets_of
from coseek.measure.retrieval import run_recall
from coseek.rewards.reward import Reward


def dev_metrics(runs: Sequence[Trajectory], scoring: EpisodeScorer) -> dict[str, float]:
    """Mean reward, strict EM and gold-passage recall of the runs without a fault; metrics that no question has are left
    out. With several data sets also of each (`exact_match/nq`), and their macro mean (`exact_match/macro`)."""
    whole = [run for run in runs if run.fault is None]
    if not whole:
        raise DataError("every run of the dev questions has a fault; see to the retriever first")
    rewards = scoring(whole)
    named: dict[str, list[float | None]] = {
        "reward": [one.value if isinstance(one, Reward) else None for one in rewards],
        "exact_match": [
            float(exact_match(run.answer, run.question.answers)) if run.question.answers else None for run in whole
        ],
        "recall": [run_recall(run) for run in whole],
    }
    sets = {group: set(idents) for group, idents in datasets_of(run.question for run in whole).items()}
    metrics: dict[str, float] = {}
    for name, values in named.items():
        known = [(run.question.id, value) for run, value in zip(whole, values, strict=True) if value is not None]
        groups = {group: [value for ident, value in known if ident in idents] for group, idents in sets.items()}
        means = {f"{name}/{group}": fmean(found) for group, found in groups.items() if found}
        if means and len(means) == len(sets):
            means[f"{name}/{MACRO}"] = fmean(means.values())
        metrics |= {**({name: fmean(value for _, value in known)} if known else {}), **means}
    return metrics
