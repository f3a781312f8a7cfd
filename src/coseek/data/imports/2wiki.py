"""2WikiMultihopQA: questions with their own passages, and optionally a corpus of distractors.

Reads the data set's own fields only. Distractor files hold `{"title", "text"}` rows; repeated passages count once.
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.data.imports._contexts import contexts, own_gold, question_of
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, read_rows


def read(sources: Sequence[Path]) -> ImportedData:
    """Own passages first, then the distractors. `hops` is the number of gold passages (2 or 4)."""
    shelf, questions, distractors = PassageCollector(), list[SourceRow](), list[SourceRow]()
    for path in sources:
        for row in read_rows(path):
            (questions if row.has("context") else distractors).append(row)
    for row in questions:
        for context in contexts(row):
            shelf.add(*context)
    notes = {"own passages": len(shelf), "distractors": len(distractors)}
    for row in distractors:
        shelf.add(row.text("title"), row.text("text"))
    notes["distractors that are own passages"] = notes["own passages"] + notes["distractors"] - len(shelf)
    made = [(row, own_gold(row, shelf)) for row in questions]
    return ImportedData(
        shelf.passages, tuple(question_of(row, gold, len(gold), "evidences") for row, gold in made), notes
    )
