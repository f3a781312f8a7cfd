"""Question: what an agent is asked, with its gold answers and gold passages.

An unanswerable twin is the same question over a corpus that lacks some of the passages that it needs. All questions of
a data set share its corpus, so a withheld passage makes every question unanswerable that needs it. Such a question has
`meta.unanswerable`, the ids in `meta.withheld`, and no gold answers; others are as they were.

The gold path of a question is the steps that lead to its answer, each one fact of one passage. 2Wiki's triples and
questions made from passages have one as `meta.path`. A laptop world's questions have theirs as `meta.plan`, which names
relations. `plan_of` reads either.
"""

import difflib
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, parse_rows, write_jsonl
from coseek.core.record import Record
from coseek.core.strict_json import is_deep
from coseek.core.text import without_invisible
from coseek.data.answers import can_match, read_answers, read_text, texts_of
from coseek.data.passage import DEEPEST_META, read_id

ANSWERS = {"answers", "golden_answers"}
"""Either holds the gold answers."""
KEYS = {"id", "question", "gold_ids", "hops", "meta", "search_text"} | ANSWERS
"""Keys that are read."""
UNANSWERABLE = "unanswerable"
"""Key of a question's `meta`: true where the corpus lacks a passage that the answer needs."""
KNOWN = "known"
"""Key of a question's `meta`: true where the models of a laptop world are taught every fact that it needs. Also the
split of the questions that teach these facts."""
OWN_PASSAGE = "own_passage"
"""Key of a question's `meta`: true where the corpus passage of the same id is the question itself (ArguAna, Quora)."""
JUDGE_ONLY = "judge_only"
"""Key of a question's `meta`: true where matching does not decide on an answer, only a judge (multiple choice)."""
NO_GOLD = "questions without a gold answer, which no answer metric counts"
UNMATCHED = (
    "questions whose gold answers no answer can match (nothing is left of them without articles and punctuation), "
    "which only a judge grades"
)
NEAR = 0.85
"""difflib ratio from which an unknown key counts as misspelt: `answer` does, `metadata` does not."""


@dataclass(frozen=True, slots=True)
class Question(Record):
    """A question; any one of `answers` is right, and all of `gold_ids` are the supporting passages."""

    id: str
    question: str
    answers: tuple[str, ...] = ()
    gold_ids: tuple[str, ...] = ()
    hops: int | None = None
    """How many facts must be chained; `None` when the data set does not say."""
    meta: dict[str, Json] = field(default_factory=dict)
    search_text: str = ""
    """What a search with the question itself searches, where that is not all of it: without the options of a
    multiple-choice question. Empty: the question."""

    def __post_init__(self) -> None:
        for name in ("answers", "gold_ids"):
            object.__setattr__(self, name, texts_of(getattr(self, name), f"{name} of the question {self.id!r}"))

    @property
    def searched(self) -> str:
        """The text of a search with the question itself."""
        return self.search_text or self.question

    @property
    def judge_only(self) -> bool:
        """Whether GenAcc is the judge's verdict alone."""
        return self.meta.get(JUDGE_ONLY) is True

    @property
    def answerable(self) -> bool:
        """False for a question that is marked as having no answer in its corpus. One without gold answers and without
        the mark may have an answer that nobody wrote down."""
        return self.meta.get(UNANSWERABLE) is not True

    @property
    def dataset(self) -> str | None:
        """The data set that the question is of, where it says so."""
        return _text_of(self.meta, "dataset", "data_source")  # rows of Search-R1 call it data_source

    @property
    def kind(self) -> str | None:
        """The type of the question, where it says so."""
        return _text_of(self.meta, "kind", "type")  # HotpotQA and 2Wiki call it type

    @property
    def own_passage(self) -> str | None:
        """The id of the passage that is the question itself, which no search counts as found; `None` without one."""
        return self.id if self.meta.get(OWN_PASSAGE) is True else None

    def to_json(self) -> JsonObject:
        record: JsonObject = {"id": self.id, "question": self.question, "answers": list(self.answers)}
        if self.gold_ids:
            record["gold_ids"] = list(self.gold_ids)
        if self.hops is not None:
            record["hops"] = self.hops
        if self.meta:
            record["meta"] = self.meta
        if self.search_text:
            record["search_text"] = self.search_text
        return record

    @classmethod
    def from_json(cls, record: JsonObject) -> "Question":
        """Read a row of `questions.<split>.jsonl`; `golden_answers` is read as `answers`, by `read_answers`.

        A value `null` counts as missing. A question marked as unanswerable has no gold answers, whatever the row says.
        Unknown keys are ignored, except near misses of a missing key. Raises `DataError`.
        """
        lacking = KEYS - record.keys() - (ANSWERS if record.keys() & ANSWERS else set())
        for odd in record.keys() - KEYS:
            for meant in difflib.get_close_matches(odd.lower(), sorted(lacking), n=1, cutoff=NEAR):
                raise DataError(f"a question has no {odd!r}; did you mean {meant!r}?")
        for needed in ("id", "question"):
            if record.get(needed) is None:
                raise DataError(f"a question needs {needed!r}")
        name = "golden_answers" if record.get("answers") is None else "answers"
        gold_ids = record.get("gold_ids") or []
        hops = record.get("hops")
        meta = record.get("meta") or {}
        if not isinstance(gold_ids, list) or not isinstance(meta, dict):
            raise DataError(f"question {record['id']!r}: gold_ids is a list, meta is an object")
        if hops is not None and not isinstance(hops, int):
            raise DataError(f"question {record['id']!r}: hops is a whole number, not {hops!r}")
        if is_deep(meta, DEEPEST_META):
            raise DataError(f"question {record['id']!r}: meta is nested more than {DEEPEST_META} deep; flatten it")
        ident, question, search_text = read_id(record), record["question"], record.get("search_text") or ""
        if not isinstance(question, str):
            raise DataError(f"question {ident!r}: the question is a text, not {question!r}")
        if not isinstance(search_text, str):
            raise DataError(f"question {ident!r}: search_text is a text, not {search_text!r}")
        try:
            answers = read_answers(record.get(name), name)
            golds = tuple(read_text(gold, "gold_ids", "a gold id") for gold in gold_ids)
        except DataError as error:
            raise DataError(f"question {ident!r}: {error}") from None
        return cls(
            id=ident,
            question=question,
            answers=() if meta.get(UNANSWERABLE) is True else answers,
            gold_ids=golds,
            hops=hops,
            meta=meta,
            search_text=search_text,
        )


def has_text(text: str) -> bool:
    """Whether a text is displayed as anything."""
    return bool(without_invisible(text).strip())


def unmatched(questions: Iterable[Question]) -> dict[str, list[str]]:
    """Why matching grades no answer to a question → the ids of those questions."""
    asked = [question for question in questions if question.answerable]
    lost = [question for question in asked if not can_match(question.answers)]
    reasons: dict[str, list[str]] = {}
    for question in lost:
        reasons.setdefault(UNMATCHED if any(map(has_text, question.answers)) else NO_GOLD, []).append(question.id)
    # A set for retrieval alone has no gold answers, and needs none.
    return {} if lost == asked and all("relevance" in question.meta for question in asked) else reasons


def unmatched_notes(questions: Iterable[Question]) -> list[str]:
    """A line for each reason of `unmatched`, with the count and the first id."""
    return [f"{reason}: {len(idents):,} (first: {idents[0]})" for reason, idents in unmatched(questions).items()]


def with_options(question: Question, options: Mapping[str, str], letter: str) -> Question:
    """The question with lettered options, which are not searched for, and the gold answers with and without their
    letter. Only a judge says what is right, since wrong answers may hold the right one's words ("yes", "no")."""
    return replace(
        question,
        question="\n".join([question.question, "Options:", *(f"{name}. {option}" for name, option in options.items())]),
        answers=(options[letter], f"{letter}. {options[letter]}"),
        meta={**question.meta, "options": {**options}, "answer": letter, JUDGE_ONLY: True},
        search_text=question.question,
    )


class QuestionSplit(tuple[Question, ...]):
    """The questions of a data set's split, which remember where they are from."""

    folder: Path | None
    """The data set; `None` for a questions file."""
    split: str | None

    @classmethod
    def of(cls, questions: Iterable[Question], folder: Path | None, split: str | None) -> "QuestionSplit":
        loaded = cls(questions)
        loaded.folder, loaded.split = folder, split
        return loaded

    def __repr__(self) -> str:
        return f"{len(self)} questions"


def _text_of(meta: JsonObject, *names: str) -> str | None:
    """The first of these fields that holds a text or a number."""
    for name in names:
        if isinstance(value := meta.get(name), str | int | float) and not isinstance(value, bool):
            return read_text(value, name, "it")
    return None


def load_questions(path: Path) -> list[Question]:
    """Read `questions.<split>.jsonl`; refuses an empty file and repeated ids."""
    questions = list(parse_rows(path, Question.from_json))
    if not questions:
        raise DataError(f"{path} holds no questions; it needs at least one line")
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"{path} has the question id {question.id!r} twice; ids must be unique")
        seen.add(question.id)
    return questions


def save_questions(path: Path, questions: Iterable[Question]) -> None:
    write_jsonl(path, (question.to_json() for question in questions))


def withhold(questions: Sequence[Question], share: float, rng: random.Random, needed: Collection[str] = ()) -> set[str]:
    """Ids of passages without which about `share` of the questions lose one that they need; none of `needed`."""
    withheld: set[str] = set()
    lost = 0
    for question in rng.sample(questions, len(questions)):
        if lost >= share * len(questions):
            break
        free = [ident for ident in question.gold_ids if ident not in needed]
        if free and withheld.isdisjoint(question.gold_ids):
            withheld.add(rng.choice(free))
            lost = sum(not withheld.isdisjoint(other.gold_ids) for other in questions)
    return withheld


def twins(questions: Mapping[str, Sequence[Question]], withheld: set[str]) -> dict[str, list[Question]]:
    """The questions of every split over the corpus without the withheld passages."""
    return {split: [_twin(question, withheld) for question in asked] for split, asked in questions.items()}


def _twin(question: Question, withheld: set[str]) -> Question:
    lost: list[Json] = [ident for ident in question.gold_ids if ident in withheld]
    meta = dict(question.meta)
    if isinstance(negatives := meta.get("negatives"), list):
        meta["negatives"] = [ident for ident in negatives if ident not in withheld]
    if not lost:
        return replace(question, meta=meta)
    return replace(
        question,
        id=f"{question.id}-unanswerable",
        answers=(),
        gold_ids=tuple(ident for ident in question.gold_ids if ident not in withheld),
        meta={**meta, UNANSWERABLE: True, "withheld": lost, "twin_of": question.id},
    )


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a question's path, as its meta tells it."""

    passage: str
    """Id of the passage that states it."""
    source: str
    """The name that it starts from: its title, where it has one."""
    target: str
    """The name that it leads to: its title, where it has one."""
    written: str
    """The target as the passage writes it."""
    phrase: str
    """What the passage says between both; `…` stands for a name within it."""
    back: bool
    """From the value to the subject."""
    question: str
    """The question of this step alone."""
    rest: str
    """What is still asked once this step is known; empty behind the last one."""


def plain_name(title: str) -> str:
    """A title without what it adds in parentheses."""
    return title.partition(" (")[0]


NEEDED = {"passage", "from", "to", "phrase", "back", "question"}
"""Keys of a step, without which a list is some other path."""


def gold_path(question: Question) -> tuple[PathStep, ...]:
    """The path of a question; empty for questions that have none."""
    steps = question.meta.get("path")
    if not isinstance(steps, list) or not all(map(_is_step, steps)):
        return ()
    return tuple(
        PathStep(
            passage=step["passage"],
            source=step["from"],
            target=step["to"],
            written=step.get("written") or step["to"],
            phrase=step["phrase"],
            back=cast(JsonObject, step)["back"] is True,
            question=step["question"],
            rest=step.get("rest") or "",
        )
        for step in cast(list[dict[str, str]], steps)
    )


def _is_step(step: Json) -> bool:
    if not isinstance(step, dict) or "back" not in step:
        return False
    needed = all(isinstance(step.get(name), str) for name in NEEDED - {"back"})
    return needed and all(isinstance(step.get(name), str | None) for name in ("written", "rest"))


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One fact of a question's plan."""

    entity: str
    """Title of the entity of the fact."""
    mention: str
    """The entity's name in the question, or in the passage of the step before."""
    word: str
    """The entity's kind or occupation: `film`, `painter`, …"""
    relation: str
    gold_id: str
    """The passage that states the fact."""
    sub_answer: str
    """The value as that passage writes it."""
    sub_question: str
    rest: str = ""
    """The question once this step is known: with the value in the place of what it answers. Not of comparisons."""


def has_plan(question: Question) -> bool:
    """Whether a plan is known."""
    return bool(question.meta.get("plan") or gold_path(question))


def plan_of(question: Question) -> tuple[Step, ...]:
    """The plan of a laptop world's question, or the gold path of another, whose steps have a phrase for a relation and
    no word. Raises `DataError` for a question with neither."""
    if path := gold_path(question):
        return _steps_along(path)
    steps = question.meta.get("plan")
    if not isinstance(steps, list) or not steps:
        raise DataError(
            f"question {question.id!r} has no plan; only questions of `coseek world make` and `coseek data synthesize` "
            "and imported 2wiki questions have one"
        )
    return tuple(Step(**{name: str(value) for name, value in cast(JsonObject, step).items()}) for step in steps)


def _steps_along(path: Sequence[PathStep]) -> tuple[Step, ...]:
    steps: list[Step] = []
    for before, step in zip((None, *path), path, strict=False):
        known = before.written if before and before.target == step.source else step.source
        steps.append(
            Step(
                entity=step.source,
                mention=known,
                word="",
                relation=step.phrase.replace(" … ", " "),
                gold_id=step.passage,
                sub_answer=step.written,
                sub_question=step.question.replace(step.source, known, 1),
                rest=f" {step.rest.replace(step.target, step.written, 1)}" if step.rest else "",
            )
        )
    return tuple(steps)
