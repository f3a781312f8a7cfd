"""Results: metrics of a trained encoder on held-out turns, beside BM25 and the encoder before training."""

from collections.abc import Mapping

import numpy as np

from coseek.core.counted import counted
from coseek.core.files import Json, JsonObject
from coseek.measure.intervals import Difference, bootstrap_mean, paired_difference
from coseek.measure.table import Table
from coseek.measure.verdict import PairedClaim, verdict
from coseek.training.encoder.evaluation import EvaluationResult, HeldOut
from coseek.training.encoder.recipe import RetrieverRecipe

ALL = "all"
BM25, BEFORE, TRAINED, HYBRID = "BM25", "before", "trained", "BM25 + trained"
"""Names of the searchers."""
PAIRS = ((TRAINED, BEFORE), (TRAINED, BM25), (HYBRID, BM25), (HYBRID, TRAINED))
"""Pairs of searchers that a verdict compares."""


def results_table(found: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> Table:
    """Make a table with one row per searcher and group, one column per metric, and last the change by training.

    The interval of a mean is a bootstrap over turns. Turns of one question are not independent, so with many turns per
    question the interval is too narrow. Compare agents with `coseek score`.
    """
    metrics = [*(f"recall@{depth}" for depth in recipe.held_out.k), "mrr"]
    rows: list[tuple[str, ...]] = []
    for group, turns in places(held_out).items():
        for name, one in found.items():
            cells = [
                str(bootstrap_mean([one.values(metric)[turn] for turn in turns], np.random.default_rng(recipe.seed)))
                for metric in metrics
            ]
            rows.append((name, group, str(len(turns)), *cells))
    if BEFORE in found and TRAINED in found:
        everything = places(held_out)[ALL]
        changes = (change(found, metric, recipe.seed) for metric in metrics)
        cells = ["–" if one is None else str(one.difference) for one in changes]
        rows.append(("trained − before", ALL, str(len(everything)), *cells))
    note = f"{counted(len(held_out.pool), 'passage')} are searched; no question of these turns was trained on."
    said = verdict(claims(found, recipe.seed))
    return Table(("searcher", "turns of", "turns", *metrics), tuple(rows), tuple(filter(None, (said, note))))


def claims(found: Mapping[str, EvaluationResult], seed: int) -> list[PairedClaim]:
    """Whether training helped, and what the trained encoder and both together are beside BM25."""
    return [
        PairedClaim(run, against, "mrr", change(found, "mrr", seed, run, against), unit="turn")
        for run, against in PAIRS
        if run in found and against in found
    ]


def places(held_out: HeldOut) -> dict[str, list[int]]:
    """Return group → indices of its turns. The group of all turns comes first."""
    groups: dict[str, list[int]] = {ALL: list(range(len(held_out.labels)))}
    start = 0
    for name, labels in held_out.groups.items():
        if len(held_out.groups) > 1:
            groups[name] = list(range(start, start + len(labels)))
        start += len(labels)
    return groups


def change(
    found: Mapping[str, EvaluationResult], metric: str, seed: int, run: str = TRAINED, against: str = BEFORE
) -> Difference | None:
    """The paired difference of two searchers over all turns."""
    before, after = (
        {str(turn): value for turn, value in enumerate(found[name].values(metric))} for name in (against, run)
    )
    return paired_difference(before, after, np.random.default_rng(seed))


def results_json(found: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> JsonObject:
    """Return the metrics of each searcher, for programs."""
    metrics: dict[str, Json] = {}
    for name, one in found.items():
        metrics[name] = {
            metric.removeprefix("held/"): value for metric, value in one.metrics(held_out, recipe.held_out.k).items()
        }
    return {"turns": len(held_out.labels), "passages": len(held_out.pool), "searchers": metrics}
