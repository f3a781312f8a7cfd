"""Data set: a folder with `corpus.jsonl` and `questions.<split>.jsonl`; selects and draws questions."""

import hashlib
import heapq
import logging
from collections.abc import Iterable, Sequence, Set
from functools import cached_property
from itertools import islice
from pathlib import Path

from pydantic import field_validator

from coseek.core.errors import DataError, SettingError, nearest
from coseek.core.files import JsonObject, as_path, in_training, parse_line, read_lines
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, load_questions

log = logging.getLogger(__name__)
LISTED = ("id", "_id", "question_id", "question", "question_text")
"""Keys by which a file of `QuestionFilter.ids` names a question, in order of preference."""
QUESTIONS = "questions"
"""Data set in a training folder for questions passed in from Python; written before the record."""


class Dataset:
    """A data-set folder; files are read and checked on access."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder, "a data-set folder")
        if not self.folder.is_dir():
            raise DataError(
                f"there is no data folder {self.folder}; make one with `coseek world make` or `coseek data import`"
            )

    def __repr__(self) -> str:
        return f"Dataset({str(self.folder)!r})"

    @property
    def corpus_path(self) -> Path:
        return self.folder / "corpus.jsonl"

    @cached_property
    def corpus(self) -> Corpus:
        return Corpus.load(self.corpus_path)

    @property
    def splits(self) -> list[str]:
        """The names of the splits, sorted."""
        return sorted(path.name[len("questions.") : -len(".jsonl")] for path in self.folder.glob("questions.*.jsonl"))

    def split_path(self, split: str) -> Path:
        """The file of a split."""
        return self.folder / f"questions.{split}.jsonl"

    def lacks(self, split: str) -> str:
        """Why there is no such split, and the way out."""
        if not self.splits:
            advice = "; make some from its passages with `coseek data synthesize`"
            return f"{self.folder} has no questions{in_training(self.folder, 'data set', 'data') or advice}"
        return f"{self.folder} has no split {split!r}{nearest(split, self.splits)} It has: {', '.join(self.splits)}"

    def questions(self, split: str) -> list[Question]:
        """The questions of a split. If the folder has a corpus, it must hold every gold passage."""
        if split not in self.splits:
            raise DataError(self.lacks(split))
        path = self.split_path(split)
        questions = load_questions(path)
        # Questions without gold ids do not need the corpus, which may be large.
        if self.corpus_path.exists() and any(question.gold_ids for question in questions):
            way_out = f"mend {path}, or take the corpus of its questions"
            check_gold_ids(questions, self.corpus, str(self.corpus_path), way_out)
        return questions


def check_gold_ids(questions: Iterable[Question], corpus: Corpus, where: str, way_out: str) -> None:
    """Raise `DataError` for a gold passage that is missing from the corpus, which the message calls `where`."""
    for question in questions:
        if missing := [ident for ident in question.gold_ids if not corpus.has(ident)]:
            raise DataError(
                f"question {question.id!r} names the gold passage {missing[0]!r}, which is not in {where}; {way_out}"
            )


COMPARED = 100
"""Number of passages to compare with those of another corpus."""


def check_same_passages(passages: Iterable[Passage], corpus: Corpus, what: str, index: str) -> None:
    """Compare the first passages, called `what`, with those of the same ids in the corpus that `index` searches.

    In two laptop worlds or two imports, one id often names different passages, which makes recall and gold labels
    wrong. Raises `DataError` if all passages differ in title and text. Warns if some differ in either, since the corpus
    may have changed.
    """
    pairs = [(passage, corpus.by_id(passage.id)) for passage in islice(passages, COMPARED) if corpus.has(passage.id)]
    others = [passage.id for passage, same_id in pairs if passage != same_id]
    if not others:
        return
    if all(passage.title != same_id.title and passage.text != same_id.text for passage, same_id in pairs):
        raise DataError(
            f"{index} searches another corpus than that of the {what}, where {others[0]!r} is another passage; use the "
            "index of their own corpus"
        )
    log.warning(
        "%d of %d %s have another title or text in the corpus that %s searches, such as %r; is it their own?",
        *(len(others), len(pairs), what, index, others[0]),
    )


class QuestionFilter(Settings):
    """The questions to use, by data set, hops and type."""

    sources: tuple[str, ...] | None = None
    """Only questions of these data sets."""
    hops: tuple[int, ...] | None = None
    """Only questions with these numbers of hops."""
    types: tuple[str, ...] | None = None
    """Only questions of these types: `bridge`, `comparison` … (HotpotQA), `composition` … (laptop worlds)."""
    answerable: bool | None = None
    """Only questions that are not marked as unanswerable, or only those that are."""
    ids: str | None = None
    """Only the questions that a file lists: one id per line, or JSON lines with `id`, `_id` or `question_id`, or with
    the text as `question` or `question_text` (IRCoT's 500 test questions of each set). FlashRAG assigns its own ids, so
    its questions are matched by text."""

    @field_validator("sources", "hops", "types", mode="before")
    @classmethod
    def _list_of(cls, value: object) -> object:
        """Split a value at its commas."""
        return [item.strip() for item in str(value).split(",")] if isinstance(value, str | int) else value

    def apply(self, questions: Sequence[Question], name: str = "select") -> list[Question]:
        """The questions that pass, in order. Raises `SettingError` for a data set or type that no question has, and
        `DataError` if no question passes; `name` is the filter's setting."""
        _check_known(f"{name}.sources", "data set", self.sources, {question.dataset for question in questions})
        _check_known(f"{name}.types", "type", self.types, {question.kind for question in questions})
        listed_ids = None if self.ids is None else _read_ids(Path(self.ids), questions)
        chosen = [
            question
            for question in questions
            if (listed_ids is None or question.id in listed_ids)
            and (self.sources is None or question.dataset in self.sources)
            and (self.hops is None or question.hops in self.hops)
            and (self.types is None or question.kind in self.types)
            and (self.answerable is None or question.answerable == self.answerable)
        ]
        if questions and not chosen:
            raise DataError(f"none of the {len(questions)} questions is left; ask for less in `{name}`")
        return chosen


def _read_ids(path: Path, questions: Iterable[Question]) -> set[str]:
    """The ids of the questions that a file lists. Raises `DataError` for a row that matches no question."""
    by_name: dict[str, list[str]] = {}
    for question in questions:
        for name in {question.id, question.id.rpartition("/")[2], question.question.strip()}:
            by_name.setdefault(name, []).append(question.id)
    listed_ids: set[str] = set()
    for number, line in read_lines(path):
        where, text = f"{path}, line {number}", line.strip()
        row: JsonObject = parse_line(text, where) if text.startswith("{") else {"id": text} if text else {}
        names = [str(row[key]).strip() for key in LISTED if row.get(key) is not None]
        idents = next((by_name[name] for name in names if name in by_name), [])
        if text and not idents:
            raise DataError(
                f"{where}: none of the questions is {(*names, text)[0]!r}; list ids of this split, or texts"
            )
        listed_ids.update(idents)
    return listed_ids


EVERY = QuestionFilter()
"""The filter that every question passes."""


def _check_known(setting: str, noun: str, names: Iterable[str] | None, values: Set[str | None]) -> None:
    known = sorted(value for value in values if value is not None)
    for name in names or ():
        if name not in known:
            hint = f"They have: {', '.join(known)}" if known else f"They name no {noun}"
            raise SettingError(
                f"{setting}: no question is of the {noun} {name!r}{nearest(name, known)} {hint}; null takes all"
            )


def draw(questions: Sequence[Question], count: int | None, seed: int, per_set: int | None = None) -> list[Question]:
    """Draw `count` questions, in their order; `None` draws all.

    Every data set keeps its share to within about one question (Webster's method), and at least one question while
    `count` allows it. Each data set is first cut to at most `per_set` questions. The draw depends on `seed` and the
    questions' ids, not on their order, and a larger `count` or `per_set` only adds questions.
    """
    if per_set is None and (count is None or count >= len(questions)):
        return list(questions)
    strata: dict[str | None, list[tuple[bytes, int]]] = {}
    for index, question in enumerate(questions):
        text = f"{seed}/{question.id}".encode("utf-8", "surrogatepass")
        strata.setdefault(question.dataset, []).append((hashlib.blake2b(text, digest_size=16).digest(), index))
    ranked: list[tuple[float, bytes, int]] = []
    for members in strata.values():
        kept = sorted(members)[:per_set]
        for rank, (key, index) in enumerate(kept):
            ranked.append(((rank + 0.5) / len(kept) if rank else 0.0, key, index))
    drawn = ranked if count is None else heapq.nsmallest(count, ranked)
    return [questions[index] for index in sorted(index for *_, index in drawn)]
