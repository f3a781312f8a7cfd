"""SQuAD and its translations (XQuAD, MLQA …): the corpus is the paragraphs, the gold passage the question's own.

{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text"}, …]}, …]}, …]}, …]}

The Hugging Face Hub has a row for each question: {"id", "title", "context", "question", "answers": {"text": […]}}. Test
rows have no answers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coseek.core.files import Json, read_json
from coseek.data.answers import read_answers
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, kind_of, read_rows
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """Unanswerable questions (SQuAD 2) are left out and counted."""
    collector, questions, left_out = PassageCollector(), list[Question](), 0
    for path in sources:
        for article in _articles(path):
            title = article.text_or_empty("title").replace("_", " ")
            for paragraph in article.rows("paragraphs") if article.has("paragraphs") else [article]:
                gold = collector.add(title, paragraph.text("context"))
                for row in paragraph.rows("qas") if paragraph is not article else [article]:
                    if row.value.get("is_impossible") is True or (row is article and _says_none(row)):
                        left_out += 1
                    else:
                        questions.append(_question(row, gold))
    return ImportedData(
        collector.passages, tuple(questions), {"unanswerable questions left out": left_out} if left_out else {}
    )


def _articles(path: Path) -> Iterator[SourceRow]:
    """The articles of SQuAD's own file, or the rows of another one."""
    document = read_json(path) if kind_of(path) == ".json" else None
    if isinstance(document, dict):
        yield from SourceRow(str(path), document).rows("data")
    else:
        yield from read_rows(path)


def _says_none(row: SourceRow) -> bool:
    """Whether a row of the Hub marks its question as unanswerable: by an empty list of answers."""
    return row.has("answers") and not _answers(row)


def _question(row: SourceRow, gold: str) -> Question:
    answers = tuple(dict.fromkeys(_answers(row)))
    return Question(id=row.text("id"), question=row.text("question"), answers=answers, gold_ids=(gold,), hops=1)


def _answers(row: SourceRow) -> tuple[str, ...]:
    if not row.has("answers"):
        return ()
    value = row.parsed("answers")
    if isinstance(value, dict):
        return SourceRow(f"{row.where}, answers", value).answers("text")
    items: list[Json] = value if isinstance(value, list) else [value]
    with row.placed():
        return read_answers([item.get("text") if isinstance(item, dict) else item for item in items], "answers")
