"""Examples: label sets as training examples, and their order over the updates; label sets made from a data set alone,
without a run or a model. Does not import torch.

Of a question with a gold path (`coseek data synthesize`) every step is a search, asked as a question of its own and in
the words `name phrase`, and the question itself is the search that opens: its positive is the first passage of the
path. Of any other question each gold passage is a positive. A passage alone gives one query: a sentence or its heading,
which the positive then lacks, so that finding it takes more than the same words (an inverse cloze task, Lee et al.
2019). Negatives are what BM25 finds besides, without gold passages and without any that hold what the search is for.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError
from coseek.data.documents.reading import TITLE_STEP
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question, gold_path
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import Candidate, LabelSet
from coseek.retrieval.lexical.analyzer import has_words, words
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.hybrid import sentence_of
from coseek.retrieval.vectors.embedding_retriever import passage_text

Seen: TypeAlias = Callable[[Query], str]
"""Query → the text that the encoder's view makes of it."""


@dataclass(frozen=True, slots=True)
class ExamplePassage:
    """A passage of an example."""

    id: str
    text: str

    @classmethod
    def of(cls, passage: Passage) -> "ExamplePassage":
        return cls(passage.id, passage_text(passage))


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """A search query with its labelled passages."""

    turn: tuple[str, ...]
    """Key of the turn, for display; examples of one turn share it."""
    question: str
    """The question of the trajectory; examples of one question share it."""
    query: str
    """Input of the encoder: the query in its view, without the prompt. A positive of one example is never a negative of
    another with the same question or the same query (`batch.py`)."""
    positive: ExamplePassage
    negatives: tuple[ExamplePassage, ...]
    """In the order of the label set."""
    candidates: tuple[ExamplePassage, ...] = ()
    """Passages of `targets`; empty without targets."""
    targets: tuple[float, ...] = ()

    @classmethod
    def of(cls, label: LabelSet, seen: Seen) -> "TrainingExample":
        passages = {candidate.passage.id: ExamplePassage.of(candidate.passage) for candidate in label.candidates}
        return cls(
            turn=label.turn.key,
            question=label.question.question,
            query=seen(label.query),
            positive=passages[label.positive],
            negatives=tuple(passages[ident] for ident in label.negatives),
            candidates=tuple(passages.values()) if label.targets is not None else (),
            targets=label.targets or (),
        )


def read_labels(folders: Iterable[str]) -> list[LabelSet]:
    """Read all label sets of the label folders, in their order. Raises `DataError` for an empty folder."""
    labels: list[LabelSet] = []
    for name in folders:
        found = list(LabelFolder(Path(name)).sets())
        if not found:
            raise DataError(
                f"{name} holds no label sets; its dropped.jsonl gives the reason for each turn without labels; turns "
                "that faults left unlabelled are not listed there, and `coseek label --resume` tries them again"
            )
        labels += found
    return labels


def split_by_question(labels: Sequence[LabelSet], share: float, seed: int) -> tuple[list[LabelSet], list[LabelSet]]:
    """Split into (training, held-out) label sets. All turns of a question go to one side.

    The side depends on the question's text and the seed alone: not on other questions, their order, or ids.
    """

    def held(text: str) -> bool:
        digest = hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") < share * 2**64

    out = {text: held(text) for text in {label.question.question for label in labels}}
    train = [label for label in labels if not out[label.question.question]]
    return train, [label for label in labels if out[label.question.question]]


@dataclass(frozen=True, eq=False)
class ExampleOrder:
    """The examples of each update, a pure function of the seed and the update's number, so no state is saved.

    Every epoch shuffles the examples anew. An update may span two epochs.
    """

    rows: Sequence[TrainingExample]
    batch_size: int
    negatives: int
    """Maximum negatives per example; from more, a new sample is drawn every epoch."""
    seed: int

    def steps(self, epochs: float) -> int:
        """Return the number of updates in `epochs` epochs."""
        return max(1, round(epochs * len(self.rows) / self.batch_size))

    def batch(self, step: int) -> list[TrainingExample]:
        """Return the examples of update `step`, from 0. Each occurs once, even if there are fewer than `batch_size`."""
        chosen: dict[int, int] = {}
        for position in range(step * self.batch_size, (step + 1) * self.batch_size):
            epoch, place = divmod(position, len(self.rows))
            chosen.setdefault(self._shuffled(epoch)[place], epoch)
        return [self._row(number, epoch) for number, epoch in chosen.items()]

    @lru_cache(maxsize=4)  # noqa: B019 (an order lives as long as its training)
    def _shuffled(self, epoch: int) -> list[int]:
        numbers = list(range(len(self.rows)))
        random.Random(f"{self.seed}/epoch/{epoch}").shuffle(numbers)
        return numbers

    def _row(self, number: int, epoch: int) -> TrainingExample:
        row = self.rows[number]
        if len(row.negatives) <= self.negatives:
            return row
        rng = random.Random(f"{self.seed}/negatives/{epoch}/{number}")
        places = sorted(rng.sample(range(len(row.negatives)), self.negatives))
        kept = tuple(row.negatives[place] for place in places)
        return TrainingExample(row.turn, row.question, row.query, row.positive, kept, row.candidates, row.targets)


_LEAST_WORDS = 8
"""Words that a passage must keep when its sentence is taken out."""


@dataclass(frozen=True, slots=True)
class LabelledSearch:
    """A query, the passage that it is to find, and what no negative may hold."""

    question: Question
    number: int
    """Its number among the searches of the question."""
    query: str
    positive: Passage
    sought: tuple[str, ...] = ()


def question_labels(questions: Sequence[Question], corpus: Corpus, bm25: Bm25, candidates: int) -> list[LabelSet]:
    """The label sets of questions; those without gold passages give none."""
    searches = [search for question in questions for search in _searches(question, corpus)]
    return _labels(searches, bm25, candidates)


def passage_labels(passages: Sequence[Passage], bm25: Bm25, candidates: int, seed: int) -> list[LabelSet]:
    """At most one label set a passage, of its own words. Passages that are too short give none."""
    headings = Counter(passage.title.rpartition(TITLE_STEP)[2] for passage in bm25.corpus)
    searches = [found for one in passages if (found := _own_words(one, headings, seed)) is not None]
    return _labels(searches, bm25, candidates)


def is_held_out(passage: Passage, share: float, seed: int) -> bool:
    """Whether the document of a passage is held out: that depends on its name and the seed alone."""
    hashed = hashlib.blake2b(f"{seed}/{document_of(passage)}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "big") < share * 2**64


def document_of(passage: Passage) -> str:
    """What a passage was cut from: its file, else its title, else itself."""
    path = passage.meta.get("path")
    return f"path {path}" if isinstance(path, str) else f"title {' '.join(words(passage.title)) or passage.id}"


def _searches(question: Question, corpus: Corpus) -> Iterator[LabelledSearch]:
    if not question.answerable or not question.gold_ids:
        return
    path = gold_path(question)
    if not path:
        for number, ident in enumerate(question.gold_ids):
            yield LabelledSearch(question, number, question.searched, corpus.by_id(ident), question.answers)
        return
    found = {question.searched: (question.gold_ids[0], question.answers)}
    for step in path:
        for query in (step.question, *([f"{step.source} {step.phrase}"] if step.phrase else [])):
            found.setdefault(query, (step.passage, (step.target,)))
    for number, (query, (ident, sought)) in enumerate(found.items()):
        yield LabelledSearch(question, number, query, corpus.by_id(ident), sought)


def _own_words(passage: Passage, headings: Counter[str], seed: int) -> LabelledSearch | None:
    rng = random.Random(f"{seed}/words of {passage.id}")
    above, _, heading = passage.title.rpartition(TITLE_STEP)
    telling = bool(above) and headings[heading] == 1 and len(heading.split()) > 1
    if telling and rng.random() < 0.5:
        query, less = heading, replace(passage, title=above)
    else:
        sentence = sentence_of(passage.text, rng)
        query, less = " ".join(sentence.split()), replace(passage, text=passage.text.replace(sentence, " ", 1).strip())
    if not words(query) or len(words(less.text)) < _LEAST_WORDS:
        return None
    return LabelledSearch(Question(f"words of {passage.id}", query, (), (passage.id,)), 0, query, less)


def _labels(searches: Sequence[LabelledSearch], bm25: Bm25, candidates: int) -> list[LabelSet]:
    found = bm25.search([search.query for search in searches], candidates + 1) if searches else []
    return [_label(search, hits) for search, hits in zip(searches, found, strict=True)]


def _label(search: LabelledSearch, hits: Sequence[Hit]) -> LabelSet:
    gold, good = {search.positive.id, *search.question.gold_ids}, search.positive
    rank = next((rank for rank, hit in enumerate(hits, start=1) if hit.passage.id == good.id), 0)
    others = [
        Candidate(hit.passage, rank)
        for rank, hit in enumerate(hits, start=1)
        if hit.passage.id not in gold
        and passage_text(hit.passage) != passage_text(good)
        and not has_words(passage_text(hit.passage), *search.sought)
    ]
    return LabelSet(
        turn=TurnId(search.question.id, 0, search.number),
        question=search.question,
        query=Query(search.query, search.question.searched),
        candidates=(Candidate(good, rank), *others),
        positive=good.id,
        negatives=tuple(other.passage.id for other in others),
    )
