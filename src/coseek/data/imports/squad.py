"""SQuAD and its translations (XQuAD, MLQA …): the corpus is the paragraphs, the gold passage the question's own.

{"data": [{"title", "paragraphs": [{"context", "qas": [{"id", "question", "answers": [{"text"}, …]}, …]}, …]}, …]}
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import read_json
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """Unanswerable questions (SQuAD 2) are left out and counted."""
    shelf, questions, left_out = PassageCollector(), list[Question](), 0
    for path in sources:
        document = read_json(path)
        if not isinstance(document, dict):
            raise DataError(f'{path}: an object with "data" is needed; is this file of another format?')
        for article in SourceRow(str(path), document).rows("data"):
            title = article.text("title").replace("_", " ")
            for paragraph in article.rows("paragraphs"):
                gold = shelf.add(title, paragraph.text("context"))
                for row in paragraph.rows("qas"):
                    if row.value.get("is_impossible") is True:
                        left_out += 1
                    else:
                        questions.append(_question(row, gold))
    return ImportedData(
        shelf.passages, tuple(questions), {"unanswerable questions left out": left_out} if left_out else {}
    )


def _question(row: SourceRow, gold: str) -> Question:
    answers = dict.fromkeys(answer.text("text") for answer in row.rows("answers"))
    return Question(id=row.text("id"), question=row.text("question"), answers=tuple(answers), gold_ids=(gold,), hops=1)
