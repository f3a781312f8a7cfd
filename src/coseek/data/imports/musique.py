"""MuSiQue: 2-4 hops, each with its own sub-question and answer. Titles repeat, so a passage is its title and text.

{"id", "question", "answer", "answer_aliases", "question_decomposition", "paragraphs": [{"title", "paragraph_text",
"is_supporting"}, …]}, and optionally a corpus of {"title", "text"}; without one the paragraphs are the corpus.
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.files import Json
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, read_rows
from coseek.data.question import Question


def read(sources: Sequence[Path]) -> ImportedData:
    """Drop and count questions marked as unanswerable. Test rows have no answers, gold passages and steps."""
    collector, questions = PassageCollector(), list[SourceRow]()
    for path in sources:
        for row in read_rows(path):
            if row.has("paragraphs"):
                questions.append(row)
            else:
                collector.add(row.text_or_empty("title"), row.text("text"))
    if not len(collector):
        for row in questions:
            for paragraph in row.rows("paragraphs"):
                collector.add(paragraph.text("title"), paragraph.text("paragraph_text"))
    answerable = [row for row in questions if row.value.get("answerable") is not False]
    left_out = len(questions) - len(answerable)
    notes = {"unanswerable questions left out": left_out} if left_out else {}
    return ImportedData(collector.passages, tuple(_question(row, collector) for row in answerable), notes)


def _question(row: SourceRow, collector: PassageCollector) -> Question:
    paragraphs = row.rows("paragraphs")
    gold = [paragraph for paragraph in paragraphs if paragraph.value.get("is_supporting") is True]
    idents = [collector.find(passage.text("title"), passage.text("paragraph_text"), passage.where) for passage in gold]
    return Question(
        id=row.text("id"),
        question=row.text("question"),
        answers=tuple(dict.fromkeys((*row.answers("answer"), *row.answers("answer_aliases")))),
        gold_ids=tuple(dict.fromkeys(idents)),
        hops=len(idents) or None,
        meta={"decomposition": _steps(row, paragraphs, collector)} if row.has("question_decomposition") else {},
    )


def _steps(row: SourceRow, paragraphs: list[SourceRow], collector: PassageCollector) -> list[Json]:
    """The sub-questions in order (`#1` stands for the first one's answer), each with its gold passage."""
    steps: list[Json] = []
    for step in row.rows("question_decomposition"):
        index = step.value.get("paragraph_support_idx")
        fields: dict[str, Json] = {"question": step.text("question"), "answer": step.text("answer")}
        if isinstance(index, int) and 0 <= index < len(paragraphs):
            passage = paragraphs[index]
            fields["gold_id"] = collector.find(passage.text("title"), passage.text("paragraph_text"), passage.where)
        steps.append(fields)
    return steps
