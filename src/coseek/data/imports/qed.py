"""QED: real web queries (from Natural Questions), each with the paragraph that answers it.

{"example_id", "title_text", "question_text", "paragraph_text", "original_nq_answers": [[{"string"}, …], …], …}
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.files import Json
from coseek.data.answers import read_text
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, read_rows
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """The corpus is the paragraphs; some serve two questions."""
    collector, questions = PassageCollector(), list[Question]()
    for path in sources:
        for row in read_rows(path):
            gold = collector.add(row.text("title_text"), row.text("paragraph_text"))
            questions.append(
                Question(
                    id=row.text("example_id"),
                    question=row.text("question_text"),
                    answers=tuple(dict.fromkeys(_answer(row, spans) for spans in row.items("original_nq_answers"))),
                    gold_ids=(gold,),
                    hops=1,
                )
            )
    return ImportedData(collector.passages, tuple(questions))


def _answer(row: SourceRow, spans: Json) -> str:
    """One annotator's answer; several spans are one answer of several parts."""
    if not isinstance(spans, list) or not all(isinstance(span, dict) and "string" in span for span in spans):
        raise row.wrong("original_nq_answers", 'a list of lists of {"string"}')
    with row.placed():
        return ", ".join(read_text(span["string"], "string", "a span") for span in spans if isinstance(span, dict))
