"""SQuAD and its translations (XQuAD, MLQA …): the corpus is the paragraphs, the gold passage the question's own.

{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text"}, …]}, …]}, …]}, …]}

The Hugging Face Hub has a row for each question: {"id", "title", "context", "question", "answers": {"text": […]}}. Test
rows have no answers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coseek.core.files import Json
from coseek.data.answers import read_answers
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, kind_of, read_document, read_rows
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """Drop and count unanswerable questions (SQuAD 2)."""
    collector, questions, left_out = PassageCollector(), list[Question](), 0
    for path in sources:
        for article in _articles(path):
            title = article.text_or_empty("title").replace("_", " ")
            for paragraph in article.rows("paragraphs") if article.has("paragraphs") else [article]:
                gold = collector.add(title, paragraph.text("context"))
                for row in paragraph.rows("qas") if paragraph is not article else [article]:
                    # On the Hub, unanswerable questions have an empty list of answers.
                    is_empty = row is article and row.has("answers") and not _answers(row)
                    if row.value.get("is_impossible") is True or is_empty:
                        left_out += 1
                    else:
                        answers = tuple(dict.fromkeys(_answers(row)))
                        questions.append(Question(row.text("id"), row.text("question"), answers, (gold,), hops=1))
    return ImportedData(
        collector.passages, tuple(questions), {"unanswerable questions left out": left_out} if left_out else {}
    )


def _articles(path: Path) -> Iterator[SourceRow]:
    """The articles of SQuAD's own file, or the rows of another file."""
    document = read_document(path) if kind_of(path) == ".json" else None
    if isinstance(document, dict):
        yield from SourceRow(str(path), document).rows("data")
    else:
        yield from read_rows(path)


def _answers(row: SourceRow) -> tuple[str, ...]:
    if not row.has("answers"):
        return ()
    value = row.parsed("answers")
    if isinstance(value, dict):
        return SourceRow(f"{row.where}, answers", value).answers("text")
    items: list[Json] = value if isinstance(value, list) else [value]
    with row.placed():
        return read_answers([item.get("text") if isinstance(item, dict) else item for item in items], "answers")
