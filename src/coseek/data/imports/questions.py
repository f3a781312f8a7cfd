"""Questions without a corpus: benchmarks for another corpus, a server or the web.

Rows are those of `flashrag` and `search-r1`, including SimpleQA's CSV and WebQuestions' rows; settings name the columns
of other files, such as GPQA's. The folder keeps its corpus, if any.

    coseek data import questions gpqa_diamond.csv question=Question answers="Correct Answer" dataset=gpqa \\
        choices="[Correct Answer, Incorrect Answer 1, Incorrect Answer 2, Incorrect Answer 3]" --out data/gpqa
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pydantic import Field

from coseek.core.errors import DataError, nearest
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings
from coseek.data.dataset import draw
from coseek.data.imports import flashrag
from coseek.data.imports._sources import ImportedData, SourceRow, read_rows
from coseek.data.question import Question


class QuestionColumns(Settings):
    """Names of columns that differ from FlashRAG's and Search-R1's; `answer.value` is a field of an object."""

    question: str | None = None
    """Column of the question."""
    answers: str | tuple[str, ...] | None = None
    """Column of the gold answers (a text or a list), or several columns."""
    id: str | None = None
    """Column of the id; null: `id`, or a digest of the question."""
    choices: tuple[str, ...] = ()
    """Columns of all choices of a multiple-choice question, including the right one, which the gold answer names by its
    text, column, letter or position from 0. They are appended in an order drawn by the id; searches omit them."""
    dataset: str | None = None
    """Name of the data set: a column of tables, and the prefix of ids."""
    most: int | None = Field(default=None, ge=1)
    """Maximum number of questions, drawn by their ids."""


SETTINGS = QuestionColumns
files = flashrag.files


def read(sources: Sequence[Path], settings: QuestionColumns) -> ImportedData:
    """Every row is a question."""
    notes, questions = Counter[str](), list[Question]()
    published: dict[tuple[str, str], list[Question]] = {}
    for path in sources:
        for row in read_rows(path):
            dataset, split = flashrag.origin_of_row(row, path)
            dataset = settings.dataset or dataset
            questions.append(_question(row, settings, dataset, split, notes))
            if dataset and split:
                published.setdefault((dataset, split), []).append(questions[-1])
    drawn = draw(questions, settings.most, 0)
    drawn_ids = {question.id for question in drawn}
    for group in published.values():
        group[:] = [question for question in group if question.id in drawn_ids]
    return ImportedData((), drawn, notes, published=published, alone=True)


def _question(row: SourceRow, settings: QuestionColumns, dataset: str, split: str, notes: Counter[str]) -> Question:
    columns_of = {"question": settings.question, "id": settings.id}
    columns = {name: _value_at(row, column) for name, column in columns_of.items() if column is not None}
    if isinstance(settings.answers, str):
        columns["golden_answers"] = _value_at(row, settings.answers)
    elif settings.answers is not None:
        answer_row = SourceRow(row.where, {column: _value_at(row, column) for column in settings.answers})
        columns["golden_answers"] = [*chain(*map(answer_row.answers, settings.answers))]
    row = SourceRow(row.where, {**row.value, **columns})
    parsed = flashrag.question_of(row, dataset, split, notes)
    if not settings.choices:
        return parsed
    choices, answers = [row.text(column) for column in settings.choices], parsed.answers
    answer_columns = {settings.answers} if isinstance(settings.answers, str) else {*(settings.answers or ())}
    if answer_columns.isdisjoint(settings.choices):
        labels = settings.choices if set(answers) & set(settings.choices) else map(flashrag.letter, range(len(choices)))
        answers = flashrag.correct_texts(row, answers, [*zip(labels, choices, strict=True)])
    random.Random(parsed.id).shuffle(choices)
    notes[flashrag.MULTIPLE_CHOICE] += 1
    text = flashrag.with_choices(parsed.question, choices)
    meta: JsonObject = {**parsed.meta, "choices": [*choices]}
    return replace(parsed, question=text, search_text=parsed.question, answers=answers, meta=meta)


def _value_at(row: SourceRow, column: str) -> Json:
    """The value in a column of a row, or at a path of fields inside a column."""
    if column in row.value:
        return row.value[column]
    outer, _, inner = column.partition(".")
    if inner and isinstance(row.value.get(outer), dict):
        return _value_at(row.row(outer), inner)
    column_names = ", ".join(row.value)
    raise DataError(f"{row.where}: there is no column {column!r}{nearest(column, row.value)} It has: {column_names}")
