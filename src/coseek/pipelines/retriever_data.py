"""A retriever trained on a data set alone: its labels, and the table of results for whole questions.

OUT/data             the data set with questions, if the given one has none to train on
OUT/index            bm25, and dense with the trained encoder
OUT/hybrid.yaml      both together, for `coseek ask` and everything else that takes a retriever
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.errors import DataError
from coseek.core.files import write_yaml
from coseek.core.progress import Progress
from coseek.data.dataset import Dataset
from coseek.data.passage import Passage
from coseek.data.question import Question, load_questions
from coseek.data.trajectory import evidence_of
from coseek.labels.label_set import LabelSet
from coseek.measure.rankings import Metric
from coseek.measure.score import Scores
from coseek.measure.searched import Answered, RetrievalMeasure, SearchedQuestion, search_questions
from coseek.measure.table import PairedClaim, Table, claims_between, main_table, verdict
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent_run import check_gold
from coseek.pipelines.data_folder import make_questions, own_questions
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.dense import Dense, DenseSettings
from coseek.training.encoder.evaluation import BEFORE, BM25, HYBRID, PAIRS, TRAINED, HeldOut
from coseek.training.encoder.examples import is_held_out, passage_labels, question_labels, split_by_question
from coseek.training.encoder.recipe import DataLabelSettings, RetrieverRecipe

DEPTH = 20
"""Passages of a search."""
METRICS = ("recall@5", "all_gold@5", "mrr@10")
_PLENTY = 1_000_000
"""Token budget of the rule-based agent, which reads no tokens."""


@dataclass(frozen=True)
class RetrieverData:
    """The data set of a recipe `data.folder`, in the folder of a training."""

    recipe: RetrieverRecipe
    folder: Path
    progress: Progress

    @property
    def settings(self) -> DataLabelSettings:
        assert self.recipe.data is not None
        return self.recipe.data

    @cached_property
    def dataset(self) -> Dataset:
        """The data set with questions to train on, which are made if necessary."""
        settings, is_needed = self.settings, self.settings.sentences == 0
        source = settings.folder, self.folder / "data", settings.train, settings.synthesis
        return Dataset(make_questions(*source, self.progress.say, needed=is_needed))

    def labels(self, seed: int) -> tuple[list[LabelSet], HeldOut | None]:
        """Label sets for training and for evaluation."""
        data, settings, held_out = self.dataset, self.settings, self.recipe.held_out
        self.progress.say(f"labels: searching {len(data.corpus):,} passages for negatives with BM25")
        corpus, bm25 = data.corpus, Bm25.over(data.corpus)
        split_seed = self.recipe.seed if held_out.seed is None else held_out.seed
        train, held_labels = (
            question_labels(data.questions(split) if split in data.splits else [], corpus, bm25, settings.candidates)
            for split in (settings.train, settings.dev)
        )
        if settings.dev not in data.splits:
            train, held_labels = split_by_question(train, held_out.share, split_seed)
        golds = {ident for label in held_labels for ident in label.question.gold_ids}
        rows = random.Random(f"{self.recipe.seed}/passages").sample(
            range(len(corpus)), min(len(corpus), settings.sentences)
        )
        passages_apart, passages = list[Passage](), list[Passage]()
        for passage in (corpus[position] for position in sorted(rows)):
            if not is_held_out(passage, held_out.share, split_seed):
                passages.append(passage)
            elif passage.id not in golds:
                passages_apart.append(passage)
        train += passage_labels(passages, bm25, settings.candidates, self.recipe.seed)
        labels_apart = passage_labels(passages_apart, bm25, settings.candidates, self.recipe.seed)
        groups = {"questions": held_labels, "passages": labels_apart}
        if not train:
            raise DataError(
                f"{data.folder} gives no labels: no question of its split {settings.train!r} has gold passages, and no "
                "passage is long enough for a query of its own words; give more documents"
            )
        self.progress.say(f"labels: {len(train):,} to train on, {sum(map(len, groups.values())):,} held out")
        if held_out.share == 0 or not any(groups.values()):
            return train, None
        # A held-out passage is in the pool without the words of its query, so not also with them.
        altered_ids = {label.positive for label in groups["passages"]}
        other_passages = [passage for passage in corpus if passage.id not in altered_ids]
        return train, HeldOut.of(groups, other_passages, held_out, seed)

    # --- the table

    def question_sets(self) -> dict[str, list[Question]]:
        """Name → questions with gold passages: the test split, the user's questions, and further files."""
        data, settings = self.dataset, self.settings
        sets = {settings.test: data.questions(settings.test)} if settings.test in data.splits else {}
        sets |= own_questions(settings.folder, data.folder, settings.train)
        for name in settings.questions:
            path = Path(name)
            sets[name] = Dataset(path).questions("test") if path.is_dir() else load_questions(path)
        judged = {name: [question for question in questions if question.gold_ids] for name, questions in sets.items()}
        return {name: questions for name, questions in judged.items() if questions}

    def tables(self, start: Path, trained: Path) -> dict[str, tuple[Table, Scores]]:
        """Set of questions → results of BM25, of the encoder before and after, of the hybrid and of the rules."""
        indexes = self.folder / "index"
        if not (indexes / "bm25").exists():
            build_index(self.dataset.folder, "bm25", indexes / "bm25")
        if not (indexes / "trained").exists():
            build_index(self.dataset.folder, "dense", indexes / "trained", {"encoder": str(trained)})
        write_yaml(self.folder / "hybrid.yaml", {"retriever": "hybrid", "parts": ["index/bm25", "index/trained"]})
        sets, bm25 = self.question_sets(), open_index(indexes / "bm25")
        for name, questions in sets.items():
            check_gold(questions, bm25, name)
        if not sets:
            return {}
        searched: dict[str, Retriever] = {
            BM25: bm25,
            BEFORE: Dense.over(self.dataset.corpus, DenseSettings(encoder=str(start))),
            TRAINED: open_index(indexes / "trained"),
            HYBRID: open_retriever(self.folder / "hybrid.yaml"),
        }
        self.progress.stage("table", len(sets) * (len(searched) + 2))
        return {name: self._table(questions, searched, number) for number, (name, questions) in enumerate(sets.items())}

    def _table(
        self, questions: Sequence[Question], retrievers: dict[str, Retriever], number: int
    ) -> tuple[Table, Scores]:
        measuring = RetrievalMeasure(tuple(map(Metric.named, METRICS)))
        rows: dict[str, Iterator[Answered]] = {
            name: (answer for batch in search_questions(retriever, questions, DEPTH) for answer in batch)
            for name, retriever in retrievers.items()
        }
        rows |= {f"rules over {name}": by_rules(retrievers[name], questions) for name in (BM25, HYBRID)}
        runs = []
        for column, (name, answers) in enumerate(rows.items(), start=1):
            runs.append(measuring.measure(name, answers))
            self.progress.advance(number * len(rows) + column, name)
        by_name = {run.name: run for run in runs}
        pairs = [*((run, runs[0]) for run in runs[1:]), (by_name[TRAINED], by_name[BEFORE])]
        pairs.append((by_name[HYBRID], by_name[TRAINED]))
        scores = measuring.compare(runs, questions, ("hops",), self.recipe.seed, pairs)
        table = main_table(scores, METRICS)
        return replace(table, notes=(verdict(question_claims(scores)), *table.notes)), scores


def question_claims(scores: Scores, where: str = "") -> list[PairedClaim]:
    """Claims: whether training helped, and whether the trained encoder and the hybrid are better than BM25."""
    return claims_between(scores, PAIRS, METRICS[0], where)


def by_rules(retriever: Retriever, questions: Sequence[Question]) -> Iterator[Answered]:
    """The evidence of the rule-based agent, best first."""
    protocol = load_protocol("search-r1")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    sizes = {"max_turn_tokens": _PLENTY, "max_observation_tokens": _PLENTY, "max_tokens": 100 * _PLENTY}
    limits = Limits(passages_per_search=5, **sizes)
    agent = Agent(protocol, ScriptedAgentModel(RuleAgent(), protocol, tokenizer))
    for trajectory in rollout(agent, retriever, questions, list(range(len(questions))), limits):
        ids = evidence_of(trajectory)
        yield trajectory.question, SearchedQuestion(ids, tuple(-float(rank) for rank in range(len(ids))), None)
