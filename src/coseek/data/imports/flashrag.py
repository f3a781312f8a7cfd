"""FlashRAG and Search-R1: a corpus of JSON lines `{"id", "contents"}` and question lines.

FlashRAG's questions are `{"id", "question", "golden_answers"}`. Search-R1's carry the question inside a prompt and the
answers in `reward_model.ground_truth.target`; both are read, whichever a line has, from JSON lines or parquet.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from coseek.core.errors import DataError
from coseek.data.imports._sources import ImportedData, SourceRow, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """Rows with a question or a prompt are questions, all others passages."""
    passages, questions = list[Passage](), list[Question]()
    for row in chain.from_iterable(map(read_rows, sources)):
        if row.has("question") or row.has("prompt"):
            questions.append(_question(row))
        else:
            passages.append(_passage(row))
    if not passages:
        raise DataError('the sources hold no passage; add the corpus file, whose lines are {"id", "contents"}')
    return ImportedData(tuple(passages), tuple(questions))


def _passage(row: SourceRow) -> Passage:
    try:
        return Passage.from_json(row.value)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from None


def _question(row: SourceRow) -> Question:
    return Question(
        id=_id(row),
        question=row.text("question") if row.has("question") else _question_in_prompt(row),
        answers=tuple(_answers(row)),
        gold_ids=tuple(row.texts("gold_ids")) if row.has("gold_ids") else (),
        meta=row.meta("data_source", "metadata", "prompt"),
    )


def _id(row: SourceRow) -> str:
    """The row's id after its data set's name: files of several sets repeat ids such as `train_0`.

    Some rows of Search-R1 have data set, split and number instead.
    """
    if row.has("id"):
        return "-".join([row.text(name) for name in ("data_source", "id") if row.has(name)])
    extra = row.row("extra_info")
    return "-".join([row.text("data_source"), extra.text("split"), extra.text("index")])


def _answers(row: SourceRow) -> list[str]:
    for name in ("golden_answers", "answers"):
        if row.has(name):
            return row.texts(name)
    return row.row("reward_model").row("ground_truth").texts("target")


def _question_in_prompt(row: SourceRow) -> str:
    """The text after the last `Question:` of the last message."""
    messages = row.rows("prompt")
    _before, marker, text = messages[-1].text("content").rpartition("Question:") if messages else ("", "", "")
    if not marker or not text.strip():
        raise DataError(f"{row.where}: the prompt holds no `Question: …` and there is no 'question'")
    return text.strip()
