"""Corpus coverage: the questions whose gold passages or answers are not in a corpus, so that no retriever finds them.

The corpus is read once, passage by passage. All answers are searched for at the same time, word by word.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

from coseek.core.files import Json, JsonObject
from coseek.core.record import Record
from coseek.data.answers import normalise
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.measure.question_groups import ALL
from coseek.measure.rankings import grades
from coseek.measure.searched import relevance
from coseek.measure.table import Table
from coseek.retrieval.lexical.analyzer import marks, spaced, undotted

CLOSED = frozenset({"yes", "no", "true", "false", "noanswer"})
_ODD = re.compile(r"[^\w\s]+")


def answer_words(text: str) -> list[str]:
    """The normalised words of a text, as in cover-EM, but without Unicode punctuation, which may adjoin a word. In
    scripts without blanks (Chinese, Thai), each character is a word."""
    normal = normalise(text)
    return (normal if normal.isascii() else _ODD.sub(_with_marks, spaced(undotted(normal)))).split()


def _with_marks(match: re.Match[str]) -> str:
    """The marks of the letter before signs that are no letters, and a blank for the others."""
    signs, begins = match[0], match.start()
    after_letter = begins > 0 and not match.string[begins - 1].isspace()
    kept = "".join(takewhile(marks().__contains__, signs)) if after_letter else ""
    return kept if kept == signs else f"{kept} "


def holds_answer(text: str, answers: Iterable[Sequence[str]]) -> bool:
    """Whether a text has the `answer_words` of one of these answers in a row."""
    padded = f" {' '.join(answer_words(text))} "
    return any(f" {' '.join(answer)} " in padded for answer in answers)


def is_decidable(words: Sequence[str]) -> bool:
    """Whether the presence of an answer is informative: yes, no and numbers occur by chance, or are derived."""
    return bool(words) and not "".join(words).isdigit() and " ".join(words) not in CLOSED


class AnswerFinder:
    """Which of a set of answers occur in texts, as whole words."""

    def __init__(self, answers: Iterable[tuple[str, ...]]) -> None:
        self.found: set[tuple[str, ...]] = set()
        self._answers = {answer for answer in answers if answer}
        self._lengths: dict[str, set[int]] = {}
        """First word → the lengths of the answers that begin with it."""
        for answer in self._answers:
            self._lengths.setdefault(answer[0], set()).add(len(answer))

    def read(self, text: str) -> None:
        """Look for the answers in one text."""
        words = answer_words(text)
        for start, word in enumerate(words):
            for length in self._lengths.get(word, ()):
                if (answer := tuple(words[start : start + length])) in self._answers:
                    self.found.add(answer)


@dataclass(frozen=True, slots=True)
class QuestionCoverage:
    """The coverage of one question by the corpus."""

    split: str
    question: Question
    missing_gold: tuple[str, ...]
    """Gold ids without a passage."""
    answer: bool | None
    """Whether a passage holds a gold answer; `None` if not decidable (yes, no, numbers), or without answers."""

    def to_json(self) -> JsonObject:
        return {
            "split": self.split,
            "id": self.question.id,
            "dataset": self.question.dataset,
            "question": self.question.question,
            "answers": [*self.question.answers],
            "missing_gold_ids": [*self.missing_gold],
            "answer_in_corpus": self.answer,
        }


@dataclass(frozen=True, slots=True)
class CoverageSummary(Record):
    """The counts of one group of questions, and upper bounds of the metrics that they cost."""

    questions: int
    with_gold: int
    gold_missing: int
    """Questions with at least one gold passage that is not in the corpus."""
    with_answers: int
    undecidable: int
    """Questions whose answers are all yes, no or numbers."""
    answer_absent: int
    recall_lost: float | None
    """Share of gold passages that no search can find, mean over the questions with gold passages; in [0, 1]."""
    em_lost: float | None
    """Share of the questions with answers whose answer is in no passage; in [0, 1]. EM loses at most this, and less if
    the agent knows answers."""

    @classmethod
    def of(cls, rows: Sequence[QuestionCoverage]) -> "CoverageSummary":
        rows_with_gold = [(row, len(gold)) for row in rows if (gold := gold_passages(row.question))]
        answered = [row for row in rows if row.question.answers]
        absent_count = sum(row.answer is False for row in answered)
        return cls(
            questions=len(rows),
            with_gold=len(rows_with_gold),
            gold_missing=sum(bool(row.missing_gold) for row, _ in rows_with_gold),
            with_answers=len(answered),
            undecidable=sum(row.answer is None for row in answered),
            answer_absent=absent_count,
            recall_lost=fmean(len(row.missing_gold) / gold for row, gold in rows_with_gold) if rows_with_gold else None,
            em_lost=absent_count / len(answered) if answered else None,
        )


@dataclass(frozen=True, slots=True)
class CorpusCoverage:
    """The coverage of all questions by a corpus."""

    passages: int
    rows: tuple[QuestionCoverage, ...]

    @property
    def summaries(self) -> dict[str, CoverageSummary]:
        """The summary of all questions, then by data set, or by split where questions do not name one."""
        groups: dict[str, list[QuestionCoverage]] = {}
        for row in self.rows:
            groups.setdefault(row.question.dataset or row.split, []).append(row)
        parts = {name: CoverageSummary.of(rows) for name, rows in sorted(groups.items())}
        return {ALL: CoverageSummary.of(self.rows), **(parts if len(parts) > 1 else {})}

    @property
    def unreachable(self) -> Iterator[QuestionCoverage]:
        """The questions whose gold passage or answer is missing, in order."""
        return (row for row in self.rows if row.missing_gold or row.answer is False)

    def table(self) -> Table:
        """One row per data set."""
        rows = []
        for name, summary in self.summaries.items():
            rows.append(
                {
                    "data set": name,
                    "questions": f"{summary.questions:,}",
                    "gold missing": _count_of(summary.gold_missing, summary.with_gold),
                    "recall lost, at most": _share(summary.recall_lost),
                    "answer absent": _count_of(summary.answer_absent, summary.with_answers - summary.undecidable),
                    "not decidable": _count_of(summary.undecidable, summary.with_answers),
                    "EM lost, at most": _share(summary.em_lost),
                }
            )
        note = (
            f"{self.passages:,} passages. Gold missing: a gold passage is not in the corpus. Answer absent: no passage "
            "holds a gold answer as whole words. Not decidable: yes, no and numbers."
        )
        return Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows), (note,))

    def to_json(self) -> JsonObject:
        groups: dict[str, Json] = {name: summary.to_json() for name, summary in self.summaries.items()}
        return {"passages": self.passages, "groups": groups, "unreachable": [row.to_json() for row in self.unreachable]}


def _count_of(count: int, total: int) -> str:
    return f"{count:,} of {total:,}" if total else "–"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def gold_passages(question: Question) -> tuple[str, ...]:
    """Ids of the gold passages, and of those that its graded judgements call relevant."""
    return tuple(dict.fromkeys((*question.gold_ids, *grades(relevance(question)))))


def corpus_coverage(passages: Iterable[Passage], splits: Mapping[str, Sequence[Question]]) -> CorpusCoverage:
    """Read the passages once, and find the gold passages and answers that they lack, by split."""
    questions = [(split, question) for split, members in splits.items() for question in members]
    words = {answer: tuple(answer_words(answer)) for _, question in questions for answer in question.answers}
    # Numbers are looked for, too: they count where another answer of the question is decidable.
    finder = AnswerFinder(words.values())
    missing_ids = {ident for _, question in questions for ident in gold_passages(question)}
    count = 0
    for passage in passages:
        count += 1
        missing_ids.discard(passage.id)
        finder.read(f"{passage.title} {passage.text}")
    rows = []
    for split, question in questions:
        golds = [words[answer] for answer in question.answers]
        has_answer = any(gold in finder.found for gold in golds) if any(map(is_decidable, golds)) else None
        missing_gold = tuple(ident for ident in gold_passages(question) if ident in missing_ids)
        rows.append(QuestionCoverage(split, question, missing_gold, has_answer))
    return CorpusCoverage(count, tuple(rows))
