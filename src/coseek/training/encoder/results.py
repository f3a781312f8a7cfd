"""Results: what a trained encoder finds for held-out turns, beside BM25 and what it began as."""

from collections.abc import Mapping

import numpy as np

from coseek.core.files import Json, JsonObject
from coseek.measure.intervals import bootstrap_mean, paired_difference
from coseek.measure.table import Table
from coseek.training.encoder.evaluation import EvaluationResult, HeldOut
from coseek.training.encoder.recipe import RetrieverRecipe

ALL = "all"


def results_table(found: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> Table:
    """One line a searcher and group, a column a metric; the last lines say how far training moved the means.

    The interval of a mean is a bootstrap over turns. Turns of one question are not independent, so where questions
    have many turns it is narrower than the truth: a comparison of agents belongs to `coseek score`.
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
    if "before" in found and "trained" in found:
        everything = places(held_out)[ALL]
        cells = [_moved(found, metric, recipe.seed) for metric in metrics]
        rows.append(("trained − before", ALL, str(len(everything)), *cells))
    note = f"{len(held_out.pool)} passages are searched; no question of these turns was trained on."
    return Table(("searcher", "turns of", "turns", *metrics), tuple(rows), (note,))


def places(held_out: HeldOut) -> dict[str, list[int]]:
    """Group → places of its turns; all of them first."""
    groups: dict[str, list[int]] = {ALL: list(range(len(held_out.labels)))}
    start = 0
    for name, labels in held_out.groups.items():
        if len(held_out.groups) > 1:
            groups[name] = list(range(start, start + len(labels)))
        start += len(labels)
    return groups


def _moved(found: Mapping[str, EvaluationResult], metric: str, seed: int) -> str:
    before, after = (
        {str(turn): value for turn, value in enumerate(found[name].values(metric))} for name in ("before", "trained")
    )
    moved = paired_difference(before, after, np.random.default_rng(seed))
    return str(moved.difference) if moved is not None else "–"


def results_json(found: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> JsonObject:
    """The readings of each searcher, for programs."""
    readings: dict[str, Json] = {}
    for name, one in found.items():
        readings[name] = {
            reading.removeprefix("held/"): value for reading, value in one.readings(held_out, recipe.held_out.k).items()
        }
    return {"turns": len(held_out.labels), "passages": len(held_out.pool), "searchers": readings}
