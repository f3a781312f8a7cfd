"""Evaluation: the retrieval metrics of an encoder on held-out turns.

A turn's rank is the position of its positive in the exact ranking of all passages, from 1. Ties are broken by the order
of the pool, as in an index. Metrics are means over turns:

    recall@k   share of turns whose positive is in the top k
    mrr        mean of 1 / rank
    gold@k     share of the question's gold passages in the top k, over questions with gold passages
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.base.model import BaseModel

from coseek.core.files import Json, JsonObject
from coseek.core.text import counted
from coseek.data.passage import Corpus, Passage
from coseek.labels.label_set import LabelSet
from coseek.measure.intervals import Difference, bootstrap_mean, paired_difference
from coseek.measure.table import PairedClaim, Table, verdict
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.dense import Dense, DenseSettings
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.late_interaction import MaxSimSearch, TokenEncoder, padded
from coseek.retrieval.retrievers.sparse import word_weights
from coseek.retrieval.vectors.embedding_retriever import passage_text
from coseek.retrieval.vectors.encoder import Encoder, EncoderCard, Vectors
from coseek.retrieval.vectors.store import VectorStore
from coseek.training.encoder.examples import QueryText
from coseek.training.encoder.recipe import HeldOutSettings, RetrieverRecipe

Ranks: TypeAlias = NDArray[np.int64]

BATCH = 64
"""Texts per batch."""
ALL = "all"
"""The group of all turns."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out turns, in named groups, and the pool of passages that is searched."""

    groups: Mapping[str, Sequence[LabelSet]]
    pool: Sequence[Passage]

    @classmethod
    def of(
        cls, groups: Mapping[str, Sequence[LabelSet]], others: Sequence[Passage], settings: HeldOutSettings, seed: int
    ) -> "HeldOut":
        """Sample at most `turns` turns, and a pool of at most `passages` passages. Of a search with labels by several
        methods, the first label counts.

        The pool holds the turns' positives and gold passages, filled up with a sample of `others`. Passages with equal
        texts are one passage, with the id of the first.
        """
        rng = random.Random(f"{seed}/held out")
        first: dict[tuple[object, ...], tuple[str, LabelSet]] = {}
        for name, labels in groups.items():
            for label in labels:
                # Imported labels name no trajectory, and two folders of them may number different queries alike.
                origin = label.trajectory or label.query.text
                first.setdefault((name, label.turn, origin, label.copy), (name, label))
        turns = list(first.values())
        sampled: dict[str, list[LabelSet]] = {name: [] for name in groups}
        for index in sorted(rng.sample(range(len(turns)), min(len(turns), settings.turns))):
            name, label = turns[index]
            sampled[name].append(label)
        labels = [label for group in sampled.values() for label in group]
        gold_ids = {ident for label in labels for ident in label.question.gold_ids}
        required = [label.passage(label.positive) for label in labels]
        required += [passage for passage in others if passage.id in gold_ids]
        required_texts = {passage_text(passage) for passage in required}
        by_text = {passage_text(passage): passage for passage in reversed(others)}
        fillers = [passage for text, passage in by_text.items() if text not in required_texts]
        room = max(0, settings.passages - len(required_texts))
        pool = [*required, *(rng.sample(fillers, room) if room < len(fillers) else fillers)]
        rng.shuffle(pool)  # ties are broken by the pool's order, so it must be random
        distinct = {passage_text(passage): passage for passage in reversed(pool)}
        return cls({name: group for name, group in sampled.items() if group}, list(distinct.values()))

    @property
    def labels(self) -> list[LabelSet]:
        return [label for labels in self.groups.values() for label in labels]

    @property
    def turns(self) -> dict[str, list[int]]:
        """Indices of turns in `labels`: all of them, then those of each group if there are several."""
        turns = {ALL: list(range(len(self.labels)))}
        start = 0
        for name, labels in self.groups.items() if len(self.groups) > 1 else ():
            turns[name] = list(range(start, start + len(labels)))
            start += len(labels)
        return turns


def ranks_of(scores_QU: NDArray[np.float32], row_Q: Ranks) -> Ranks:
    """Return the rank of one row per query by descending score, from 1; ties in the order of rows. Shape Q."""
    score_Q1 = np.take_along_axis(scores_QU, row_Q[:, None], axis=1)
    above_QU = scores_QU > score_Q1
    tied_QU = (scores_QU == score_Q1) & (np.arange(scores_QU.shape[1]) < row_Q[:, None])
    return cast(Ranks, 1 + above_QU.sum(axis=1) + tied_QU.sum(axis=1))


@dataclass(frozen=True)
class EvaluationResult:
    """Ranks that one searcher gives the held-out turns, in the order of `HeldOut.labels`."""

    ranks: Ranks
    """Ranks of the positives."""
    gold: tuple[tuple[int, ...], ...]
    """Ranks of the question's gold passages that are in the pool."""

    def metrics(self, held_out: HeldOut, k: Sequence[int]) -> dict[str, float]:
        """Return the means over all turns, and over each group's turns if there are several groups."""
        metrics: dict[str, float] = {}
        for group, turns in held_out.turns.items():
            prefix = "held" if group == ALL else f"held/{group}"
            metrics |= {f"{prefix}/{name}": value for name, value in self._means(turns, k).items()}
        return metrics

    def _means(self, turns: Sequence[int], k: Sequence[int]) -> dict[str, float]:
        ranks = self.ranks[turns]
        means = {f"recall@{depth}": float((ranks <= depth).mean()) for depth in k}
        means["mrr"] = float((1.0 / ranks).mean())
        gold = [self.gold[turn] for turn in turns if self.gold[turn]]
        for depth in k if gold else ():
            means[f"gold@{depth}"] = fmean(fmean(rank <= depth for rank in gold_ranks) for gold_ranks in gold)
        return means

    def to_json(self) -> JsonObject:
        return {
            "ranks": cast(list[Json], self.ranks.tolist()),
            "gold": [cast(list[Json], [*ranks]) or None for ranks in self.gold],
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "EvaluationResult":
        gold = cast("list[list[int] | None]", row["gold"])
        return cls(np.array(row["ranks"], dtype=np.int64), tuple(tuple(ranks or ()) for ranks in gold))

    def values(self, name: str) -> list[float]:
        """Return `mrr` or `recall@K` of each turn."""
        if name == "mrr":
            return [1.0 / rank for rank in self.ranks.tolist()]
        depth = int(name.removeprefix("recall@"))
        return [float(rank <= depth) for rank in self.ranks.tolist()]


class EncoderEvaluator(BaseEvaluator):
    """Evaluates an encoder on held-out turns. The library's trainer may call it."""

    def __init__(self, held_out: HeldOut, card: EncoderCard, query_text: QueryText, k: Sequence[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.primary_metric = "held/mrr"
        self.held_out, self._card, self._k = held_out, card, k
        self._queries = [query_text(label.query) for label in held_out.labels]
        self._texts = [passage_text(passage) for passage in held_out.pool]
        self._row_by_text = {text: row for row, text in enumerate(self._texts)}
        self._row_by_id = {passage.id: row for row, passage in enumerate(held_out.pool)}

    def __call__(
        self, model: BaseModel, output_path: str | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Return the metrics of the model."""
        return self.evaluate(model).metrics(self.held_out, self._k)

    def evaluate(self, model: BaseModel) -> EvaluationResult:
        """Evaluate the model with the prompts, lengths and normalisation of the card, as in retrieval."""
        if isinstance(model, MultiVectorEncoder):
            return self._result(self._maxsim_scores(TokenEncoder(model)))
        if isinstance(model, SparseEncoder):
            return self._result(self._sparse_scores(model))
        card, encoder = self._card, Encoder(cast(SentenceTransformer, model))
        passages_UD = encoder.encode(
            self._texts, card.passage_prompt, card.passage_tokens, BATCH, normalise=card.normalise
        )
        queries_QD = encoder.encode(
            self._queries, card.query_prompt, card.query_tokens, BATCH, normalise=card.normalise
        )
        return self._result(queries_QD @ passages_UD.T)

    def _maxsim_scores(self, encoder: TokenEncoder) -> Vectors:
        card = self._card
        passages_U = encoder.encode(self._texts, "document", card.passage_prompt, card.passage_tokens, BATCH)
        queries_Q = encoder.encode(self._queries, "query", card.query_prompt, card.query_tokens, BATCH)
        ends_U = np.cumsum([len(vectors_TD) for vectors_TD in passages_U])
        store = VectorStore.of(np.concatenate(passages_U))
        return MaxSimSearch(store, ends_U, str(encoder.model.device)).scores(padded(queries_Q))

    def _sparse_scores(self, model: SparseEncoder) -> Vectors:
        card = self._card
        passages_UV = word_weights(model, self._texts, "document", card.passage_prompt, card.passage_tokens, BATCH)
        queries_QV = word_weights(model, self._queries, "query", card.query_prompt, card.query_tokens, BATCH)
        return cast(Vectors, (queries_QV @ passages_UV.T).toarray())

    def baselines(self) -> dict[str, EvaluationResult]:
        """Evaluate the baselines of the table: BM25, which reads the query alone. Passages that it does not return
        rank last."""
        return {BM25: self._result(self._bm25_scores)}

    @cached_property
    def _bm25_scores(self) -> Vectors:
        return self._search_scores(Bm25.over(self._corpus), [label.query.text for label in self.held_out.labels])

    def hybrid(self, folder: Path) -> EvaluationResult:
        """Evaluate BM25 and the encoder in a folder, together as `hybrid` fuses them."""
        parts: list[Retriever] = [Bm25.over(self._corpus), Dense.over(self._corpus, DenseSettings(encoder=str(folder)))]
        hybrid = Hybrid(parts, HybridSettings(parts=["bm25", "dense"], depth=len(self._corpus)))
        return self._result(self._search_scores(hybrid, [label.query for label in self.held_out.labels]))

    @cached_property
    def _corpus(self) -> Corpus:
        """Return the pool, with rows as ids."""
        return Corpus([Passage(str(row), each.title, each.text) for row, each in enumerate(self.held_out.pool)])

    def _search_scores(self, retriever: Retriever, queries: Sequence[QueryLike]) -> Vectors:
        """Return the scores of all passages, shape Q × U; −1 for those that the retriever does not return."""
        scores_QU = np.full((len(queries), len(self._corpus)), -1.0, dtype=np.float32)
        for scores_U, hits in zip(scores_QU, retriever.search(queries, len(self._corpus)), strict=True):
            for hit in hits:
                scores_U[int(hit.passage.id)] = hit.score
        return scores_QU

    def _result(self, scores_QU: Vectors) -> EvaluationResult:
        labels = self.held_out.labels
        positives = [self._row_by_text[passage_text(label.passage(label.positive))] for label in labels]
        gold: list[tuple[int, ...]] = []
        for scores_U, label in zip(scores_QU, labels, strict=True):
            rows = [self._row_by_id[ident] for ident in label.question.gold_ids if ident in self._row_by_id]
            scores_GU = np.broadcast_to(scores_U, (len(rows), len(scores_U)))
            gold.append(tuple(ranks_of(scores_GU, np.array(rows, dtype=np.int64)).tolist()))
        return EvaluationResult(ranks_of(scores_QU, np.array(positives, dtype=np.int64)), tuple(gold))


# Results: metrics of a trained encoder on held-out turns, beside BM25 and the encoder before training.

BM25, BEFORE, TRAINED, HYBRID, ORACLE = "BM25", "before", "trained", "BM25 + trained", "oracle ranking"
"""Names of the searchers."""
PAIRS = ((TRAINED, BEFORE), (TRAINED, BM25), (HYBRID, BM25), (HYBRID, TRAINED))
"""Pairs of searchers that a verdict compares."""


def results_table(results: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> Table:
    """Make a table with one row per searcher and group, one column per metric, and last the change by training.

    The interval of a mean is a bootstrap over turns. Turns of one question are not independent, so with many turns per
    question the interval is too narrow. Compare agents with `coseek score`.
    """
    metrics = [*(f"recall@{depth}" for depth in recipe.held_out.k), "mrr"]
    rows: list[tuple[str, ...]] = []
    for group, turns in held_out.turns.items():
        for name, result in results.items():
            cells: list[str] = []
            for metric in metrics:
                values = [result.values(metric)[turn] for turn in turns]
                cells.append(str(bootstrap_mean(values, np.random.default_rng(recipe.seed))))
            rows.append((name, group, str(len(turns)), *cells))
    if BEFORE in results and TRAINED in results:
        changes = [change(results, metric, recipe.seed) for metric in metrics]
        cells = ["–" if difference is None else str(difference.difference) for difference in changes]
        rows.append(("trained − before", ALL, str(len(held_out.labels)), *cells))
    note = f"{counted(len(held_out.pool), 'passage')} are searched; no question of these turns was trained on."
    notes = (verdict(claims(results, recipe.seed)), note)
    return Table(("searcher", "turns of", "turns", *metrics), tuple(rows), tuple(filter(None, notes)))


def claims(results: Mapping[str, EvaluationResult], seed: int) -> list[PairedClaim]:
    """Return the claims of the verdict: whether training helped, and how encoder and hybrid compare with BM25."""
    return [
        PairedClaim(name, against, "mrr", change(results, "mrr", seed, name, against), unit="turn")
        for name, against in PAIRS
        if name in results and against in results
    ]


def change(
    results: Mapping[str, EvaluationResult], metric: str, seed: int, name: str = TRAINED, against: str = BEFORE
) -> Difference | None:
    """Return the paired difference of two searchers over all turns."""
    before, after = (
        {str(turn): value for turn, value in enumerate(results[result].values(metric))} for result in (against, name)
    )
    return paired_difference(before, after, np.random.default_rng(seed))


def results_json(results: Mapping[str, EvaluationResult], held_out: HeldOut, recipe: RetrieverRecipe) -> JsonObject:
    """Return the metrics of each searcher, for programs."""
    searchers: dict[str, Json] = {}
    for name, result in results.items():
        metrics = result.metrics(held_out, recipe.held_out.k)
        searchers[name] = {metric.removeprefix("held/"): value for metric, value in metrics.items()}
    return {"turns": len(held_out.labels), "passages": len(held_out.pool), "searchers": searchers}
