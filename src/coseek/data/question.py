"""Question: the text that an agent is asked, with gold answers and gold passages.

An unanswerable twin is the same question over a corpus that lacks some of its gold passages. All questions of a data
set share one corpus, so withholding a passage makes every question unanswerable that needs it. Such a question has
`meta.unanswerable`, the ids in `meta.withheld`, and no gold answers; other questions do not change.

The gold path of a question is the list of steps to its answer, each a fact of one passage. 2Wiki's triples and
questions made from passages store it in `meta.path`; questions of laptop worlds store a plan with relations in
`meta.plan`. `plan_of` reads either.
"""

import difflib
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, cast

from coseek.core.errors import DataError
from coseek.core.files import WRONG_SHAPE, Json, JsonObject, parse_rows, write_jsonl
from coseek.core.record import OMIT_EMPTY, OMIT_NONE, PlainObject, Record
from coseek.core.strict_json import is_deep
from coseek.core.text import without_invisible
from coseek.data.answers import can_match, read_answers, read_text, texts_of
from coseek.data.passage import DEEPEST_META, read_id

ANSWERS = {"answers", "golden_answers"}
"""Alternative keys of the gold answers."""
KEYS = {"id", "question", "gold_ids", "hops", "meta", "search_text"} | ANSWERS
"""Keys of a question; all others are ignored."""
UNANSWERABLE = "unanswerable"
"""Key of `meta`: true if the corpus lacks a passage that the answer needs."""
KNOWN = "known"
"""Key of `meta`: true if the models of a laptop world are taught every fact that the question needs. Also the split of
the questions that teach these facts."""
OWN_PASSAGE = "own_passage"
"""Key of `meta`: the id of the passage that is the question itself (ArguAna, Quora); true for the question's own id."""
JUDGE_ONLY = "judge_only"
"""Key of `meta`: true if only a judge grades answers, not matching (multiple choice)."""
NO_GOLD = "questions without a gold answer, which no answer metric counts"
UNMATCHED = (
    "questions whose gold answers no answer can match (nothing is left of them without articles and punctuation), "
    "which only a judge grades"
)
NEAR = 0.85
"""Minimum difflib ratio of an unknown key to a known one for a misspelling: `answer` is one, `metadata` is not."""


@dataclass(frozen=True, slots=True)
class Question(Record):
    """A question. Each of `answers` is right; `gold_ids` are all supporting passages."""

    id: str
    question: str
    answers: tuple[str, ...] = ()
    gold_ids: Annotated[tuple[str, ...], OMIT_EMPTY] = ()
    hops: Annotated[int | None, OMIT_NONE] = None
    """Number of facts to chain; `None` if the data set does not say."""
    meta: Annotated[PlainObject, OMIT_EMPTY] = field(default_factory=dict)
    search_text: Annotated[str, OMIT_EMPTY] = ""
    """Query text for the question, if it differs: a multiple-choice question without its options. Empty: the question.
    """

    def __post_init__(self) -> None:
        for name in ("answers", "gold_ids"):
            object.__setattr__(self, name, texts_of(getattr(self, name), f"{name} of the question {self.id!r}"))

    @property
    def searched(self) -> str:
        """The query text for the question."""
        return self.search_text or self.question

    @property
    def judge_only(self) -> bool:
        """Whether GenAcc is the judge's verdict alone."""
        return self.meta.get(JUDGE_ONLY) is True

    @property
    def answerable(self) -> bool:
        """False if the question is marked as having no answer in its corpus. Without gold answers and without the mark,
        a question may have an answer that is not recorded."""
        return self.meta.get(UNANSWERABLE) is not True

    @property
    def dataset(self) -> str | None:
        """The name of the question's data set, if known."""
        return _text_of(self.meta, "dataset", "data_source")  # rows of Search-R1 call it data_source

    @property
    def kind(self) -> str | None:
        """The type of the question, if known."""
        return _text_of(self.meta, "kind", "type")  # HotpotQA and 2Wiki call it type

    @property
    def own_passage(self) -> str | None:
        """The id of the passage that is the question itself, which never counts as a hit; `None` without one."""
        own = self.meta.get(OWN_PASSAGE)
        return self.id if own is True else own if isinstance(own, str) else None

    @classmethod
    def _to_read(cls, record: JsonObject) -> JsonObject:
        """Read a row of `questions.<split>.jsonl`. `golden_answers` is an alias of `answers` (`read_answers`).

        `null` counts as missing. A question marked as unanswerable has no gold answers, whatever its row says. Unknown
        keys are ignored, unless they nearly match a missing key. Raises `DataError`.
        """
        missing_keys = KEYS - record.keys() - (ANSWERS if record.keys() & ANSWERS else set())
        for unknown_key in record.keys() - KEYS:
            for close_key in difflib.get_close_matches(unknown_key.lower(), sorted(missing_keys), n=1, cutoff=NEAR):
                raise DataError(f"a question has no {unknown_key!r}; did you mean {close_key!r}?")
        for required_key in ("id", "question"):
            if record.get(required_key) is None:
                raise DataError(f"a question needs {required_key!r}")
        ident, meta, gold_ids = read_id(record), record.get("meta") or {}, record.get("gold_ids") or []
        name = "golden_answers" if record.get("answers") is None else "answers"
        try:
            answers = read_answers(record.get(name), name)
            if isinstance(gold_ids, list):
                gold_ids = [read_text(gold, "gold_ids", "a gold id") for gold in gold_ids]
            if is_deep(meta, DEEPEST_META):
                raise DataError(f"meta is nested more than {DEEPEST_META} deep; flatten it")
        except DataError as error:
            raise DataError(f"question {ident!r}: {error}") from None
        if isinstance(meta, dict) and meta.get(UNANSWERABLE) is True:
            answers = ()
        search_text = record.get("search_text") or ""
        values: JsonObject = {"id": ident, "answers": [*answers], "gold_ids": gold_ids, "search_text": search_text}
        return {**record, **values, "meta": meta}


def has_text(text: str) -> bool:
    """Whether a text is displayed as anything."""
    return bool(without_invisible(text).strip())


def unmatched(questions: Iterable[Question]) -> dict[str, list[str]]:
    """Reason why matching cannot grade answers to a question → the ids of such questions."""
    answerable = [question for question in questions if question.answerable]
    ungraded_questions = [question for question in answerable if not can_match(question.answers)]
    reasons: dict[str, list[str]] = {}
    for question in ungraded_questions:
        reasons.setdefault(UNMATCHED if any(map(has_text, question.answers)) else NO_GOLD, []).append(question.id)
    # Sets for retrieval alone need no gold answers.
    is_retrieval_set = ungraded_questions == answerable and all("relevance" in question.meta for question in answerable)
    return {} if is_retrieval_set else reasons


def unmatched_notes(questions: Iterable[Question]) -> list[str]:
    """One line per reason of `unmatched`, with the count and the first id."""
    return [f"{reason}: {len(idents):,} (first: {idents[0]})" for reason, idents in unmatched(questions).items()]


def with_options(question: Question, options: Mapping[str, str], letter: str) -> Question:
    """Append lettered options to a question; searches use the question without them. The gold answers are the option
    `letter` with and without its letter. Only a judge grades answers, since wrong ones may contain the right words
    ("yes", "no")."""
    return replace(
        question,
        question="\n".join([question.question, "Options:", *(f"{name}. {option}" for name, option in options.items())]),
        answers=(options[letter], f"{letter}. {options[letter]}"),
        meta={**question.meta, "options": {**options}, "answer": letter, JUDGE_ONLY: True},
        search_text=question.question,
    )


class QuestionSplit(tuple[Question, ...]):
    """The questions of a data set's split, with their source."""

    folder: Path | None
    """The data set; `None` for a file of questions."""
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
    """Read `questions.<split>.jsonl`. Raises `DataError` for an empty file and for repeated ids."""
    questions = list(parse_rows(path, Question.from_json))
    if not questions:
        raise DataError(f"{path} holds no questions; it needs at least one line")
    [(ident, count)] = Counter(question.id for question in questions).most_common(1)
    if count > 1:
        raise DataError(f"{path} has the question id {ident!r} twice; ids must be unique")
    return questions


def questions_by_id(questions: Iterable[Question], advice: str) -> dict[str, Question]:
    """Question id → question. Raises `DataError` with `advice` for two different questions that share an id."""
    by_id: dict[str, Question] = {}
    for question in questions:
        first = by_id.setdefault(question.id, question)
        if (first.question, first.answers) != (question.question, question.answers):
            raise DataError(f"the runs have two different questions with the id {question.id!r}; {advice}")
    return by_id


def save_questions(path: Path, questions: Iterable[Question]) -> None:
    write_jsonl(path, (question.to_json() for question in questions))


def withhold(questions: Sequence[Question], share: float, rng: random.Random, needed: Collection[str] = ()) -> set[str]:
    """Choose passages whose removal leaves about `share` of the questions without a gold passage, sparing `needed`.
    Returns their ids."""
    withheld: set[str] = set()
    lost_count = 0
    for question in rng.sample(questions, len(questions)):
        if lost_count >= share * len(questions):
            break
        free_ids = [ident for ident in question.gold_ids if ident not in needed]
        if free_ids and withheld.isdisjoint(question.gold_ids):
            withheld.add(rng.choice(free_ids))
            lost_count = sum(not withheld.isdisjoint(other.gold_ids) for other in questions)
    return withheld


def twins(questions: Mapping[str, Sequence[Question]], withheld: set[str]) -> dict[str, list[Question]]:
    """The questions of every split over the corpus without the withheld passages."""
    return {split: [_twin(question, withheld) for question in members] for split, members in questions.items()}


def _twin(question: Question, withheld: set[str]) -> Question:
    lost_ids: list[Json] = [ident for ident in question.gold_ids if ident in withheld]
    meta = dict(question.meta)
    if isinstance(negatives := meta.get("negatives"), list):
        meta["negatives"] = [ident for ident in negatives if ident not in withheld]
    if not lost_ids:
        return replace(question, meta=meta)
    if question.own_passage is not None:  # which keeps its id, unlike the question
        meta[OWN_PASSAGE] = question.own_passage
    return replace(
        question,
        id=f"{question.id}-unanswerable",
        answers=(),
        gold_ids=tuple(ident for ident in question.gold_ids if ident not in withheld),
        meta={**meta, UNANSWERABLE: True, "withheld": lost_ids, "twin_of": question.id},
    )


@dataclass(frozen=True, slots=True)
class PathStep(Record):
    """One step of a gold path, as `meta.path` stores it."""

    passage: str
    """Id of the passage that states the fact."""
    source: str
    """The name that the step starts from: its title, if it has one."""
    target: str
    """The name that the step leads to: its title, if it has one."""
    written: str
    """The target as the passage writes it."""
    phrase: str
    """The passage's words between source and target; `…` stands for a name within them."""
    back: bool
    """Whether the step leads from the value to the subject."""
    question: str
    """The question of this step alone."""
    rest: str
    """The remaining question after this step; empty after the last step."""

    @classmethod
    def _to_read(cls, record: JsonObject) -> JsonObject:
        source, target = record["from"], record["to"]
        written, rest = record.get("written") or target, record.get("rest") or ""
        return {**record, "source": source, "target": target, "written": written, "rest": rest}


def plain_name(title: str) -> str:
    """A title without its addition in parentheses."""
    return title.partition(" (")[0]


def gold_path(question: Question) -> tuple[PathStep, ...]:
    """The gold path of a question; empty without one. A `meta.path` of another form is ignored."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(map(PathStep.from_json, cast(list[JsonObject], question.meta.get("path"))))
    return ()


@dataclass(frozen=True, slots=True)
class Step(Record):
    """One fact of a question's plan."""

    entity: str
    """Title of the fact's entity."""
    mention: str
    """The entity's name in the question, or in the previous step's passage."""
    word: str
    """The entity's kind or occupation: `film`, `painter`, …"""
    relation: str
    gold_id: str
    """The passage that states the fact."""
    sub_answer: str
    """The value as that passage writes it."""
    sub_question: str
    rest: str = ""
    """The remaining question after this step, with the value filled in. Empty for comparisons."""


def has_plan(question: Question) -> bool:
    """Whether the question has a plan or a gold path."""
    return bool(question.meta.get("plan") or gold_path(question))


def plan_of(question: Question) -> tuple[Step, ...]:
    """The plan of a laptop world's question, else its gold path, whose phrases serve as relations; `word` is then
    empty. Raises `DataError` for a question with neither."""
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
    for previous, step in zip((None, *path), path, strict=False):
        mention = previous.written if previous and previous.target == step.source else step.source
        steps.append(
            Step(
                entity=step.source,
                mention=mention,
                word="",
                relation=step.phrase.replace(" … ", " "),
                gold_id=step.passage,
                sub_answer=step.written,
                sub_question=step.question.replace(step.source, mention, 1),
                rest=f" {step.rest.replace(step.target, step.written, 1)}" if step.rest else "",
            )
        )
    return tuple(steps)
