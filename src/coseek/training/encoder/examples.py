"""Examples: label sets as training examples, and their order over the updates; label sets made from a data set alone,
without a run or a model. Does not import torch.

For a question with a gold path (`coseek data synthesize`) every step is a search, with the step's question and with the
words `name phrase` as queries. The question itself is the first search; its positive is the first passage of the path.
For any other question each gold passage is a positive. A passage alone gives one query: a sentence or its heading,
which is removed from the positive, so that equal words do not suffice to find it (an inverse cloze task, Lee et al.
2019). Negatives are BM25's other hits, without gold passages and passages that contain the answer of the search.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from coseek.training.learner.data_order import epoch_order

QueryText: TypeAlias = Callable[[Query], str]
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
    def of(cls, label: LabelSet, query_text: QueryText) -> "TrainingExample":
        passages = {candidate.passage.id: ExamplePassage.of(candidate.passage) for candidate in label.candidates}
        return cls(
            question=label.question.question,
            query=query_text(label.query),
            positive=passages[label.positive],
            negatives=tuple(passages[ident] for ident in label.negatives),
            candidates=tuple(passages.values()) if label.targets is not None else (),
            targets=label.targets or (),
        )


def read_labels(folders: Iterable[str]) -> list[LabelSet]:
    """Read all label sets of the label folders, in their order. Raises `DataError` for an empty or repeated folder."""
    labels: list[LabelSet] = []
    folders = list(folders)
    if len({Path(name).resolve() for name in folders}) < len(folders):
        raise DataError("the same label folder is named twice, and would count twice; name each once")
    for name in folders:
        label_sets = list(LabelFolder(Path(name)).sets())
        if not label_sets:
            raise DataError(
                f"{name} holds no label sets; its dropped.jsonl gives the reason for each turn without labels; turns "
                "that faults left unlabelled are not listed there, and `coseek label --resume` tries them again"
            )
        labels += label_sets
    return labels


def split_by_question(labels: Sequence[LabelSet], share: float, seed: int) -> tuple[list[LabelSet], list[LabelSet]]:
    """Split into (training, held-out) label sets. All turns of a question go to one side.

    The side depends on the question's text and the seed alone: not on other questions, their order, or ids. If no
    question would be held out, the one with the lowest hash is.
    """
    hashes = {text: _hash(text, seed) for text in {label.question.question for label in labels}}
    held_out = {text for text, value in hashes.items() if value < share * 2**64}
    if not held_out and share and len(hashes) > 1:
        held_out = {min(hashes, key=hashes.__getitem__)}
    train = [label for label in labels if label.question.question not in held_out]
    return train, [label for label in labels if label.question.question in held_out]


def _hash(text: str, seed: int) -> int:
    """Hash to a number below 2⁶⁴."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{text}".encode(), digest_size=8).digest(), "big")


@dataclass(frozen=True)
class ExampleOrder:
    """The examples of each update, a pure function of the seed and the update's number, so no state is saved.

    Every epoch reshuffles the examples. An update may span two epochs.
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
            epoch, offset = divmod(position, len(self.rows))
            chosen.setdefault(epoch_order(self.seed, epoch, len(self.rows))[offset], epoch)
        return [self._example(number, epoch) for number, epoch in chosen.items()]

    def _example(self, number: int, epoch: int) -> TrainingExample:
        example = self.rows[number]
        if len(example.negatives) <= self.negatives:
            return example
        rng = random.Random(f"{self.seed}/negatives/{epoch}/{number}")
        sampled = sorted(rng.sample(range(len(example.negatives)), self.negatives))
        return replace(example, negatives=tuple(example.negatives[index] for index in sampled))


_MIN_WORDS = 8
"""Words that a passage must keep when its sentence is taken out."""


@dataclass(frozen=True, slots=True)
class LabelledSearch:
    """A query, its positive, and the answers that no negative may contain."""

    question: Question
    number: int
    """Its number among the searches of the question."""
    query: str
    positive: Passage
    answers: tuple[str, ...] = ()


def question_labels(questions: Sequence[Question], corpus: Corpus, bm25: Bm25, candidates: int) -> list[LabelSet]:
    """Make the label sets of questions; questions without gold passages are skipped."""
    searches = [search for question in questions for search in _searches(question, corpus)]
    return _labels(searches, bm25, candidates)


def passage_labels(passages: Sequence[Passage], bm25: Bm25, candidates: int, seed: int) -> list[LabelSet]:
    """Make a label set from the words of each passage; passages that are too short are skipped."""
    headings = Counter(passage.title.rpartition(TITLE_STEP)[2] for passage in bm25.corpus)
    searches = [_passage_search(passage, headings, seed) for passage in passages]
    return _labels([search for search in searches if search is not None], bm25, candidates)


def is_held_out(passage: Passage, share: float, seed: int) -> bool:
    """Whether the document of a passage is held out. Depends only on its name and the seed."""
    return _hash(document_of(passage), seed) < share * 2**64


def document_of(passage: Passage) -> str:
    """Return the name of a passage's document: its file, else its title, else its id."""
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
    targets = {question.searched: (question.gold_ids[0], question.answers)}
    for step in path:
        for query in (step.question, *([f"{step.source} {step.phrase}"] if step.phrase else [])):
            targets.setdefault(query, (step.passage, (step.target,)))
    for number, (query, (ident, answers)) in enumerate(targets.items()):
        yield LabelledSearch(question, number, query, corpus.by_id(ident), answers)


def _passage_search(passage: Passage, headings: Counter[str], seed: int) -> LabelledSearch | None:
    rng = random.Random(f"{seed}/words of {passage.id}")
    parent, _, heading = passage.title.rpartition(TITLE_STEP)
    is_specific = bool(parent) and headings[heading] == 1 and len(heading.split()) > 1
    if is_specific and rng.random() < 0.5:
        query, positive = heading, replace(passage, title=parent)
    else:
        sentence = sentence_of(passage.text, rng)
        query = " ".join(sentence.split())
        positive = replace(passage, text=passage.text.replace(sentence, " ", 1).strip())
    if not words(query) or len(words(positive.text)) < _MIN_WORDS:
        return None
    return LabelledSearch(Question(f"words of {passage.id}", query, (), (passage.id,)), 0, query, positive)


def _labels(searches: Sequence[LabelledSearch], bm25: Bm25, candidates: int) -> list[LabelSet]:
    rankings = bm25.search([search.query for search in searches], candidates + 1) if searches else []
    return [_label(search, hits, candidates) for search, hits in zip(searches, rankings, strict=True)]


def _label(search: LabelledSearch, hits: Sequence[Hit], most: int) -> LabelSet:
    positive = search.positive
    gold_ids = {positive.id, *search.question.gold_ids}
    positive_rank = next((rank for rank, hit in enumerate(hits, start=1) if hit.passage.id == positive.id), 0)
    negatives = [
        Candidate(hit.passage, rank)
        for rank, hit in enumerate(hits, start=1)
        if hit.passage.id not in gold_ids
        and passage_text(hit.passage) != passage_text(positive)
        and not has_words(passage_text(hit.passage), *search.answers)
    ][:most]  # one hit more was asked for, in case one of them is the positive
    return LabelSet(
        turn=TurnId(search.question.id, 0, search.number),
        question=search.question,
        query=Query(search.query, search.question.searched),
        candidates=(Candidate(positive, positive_rank), *negatives),
        positive=positive.id,
        negatives=tuple(negative.passage.id for negative in negatives),
    )
