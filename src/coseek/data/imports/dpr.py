"""DPR's layout: a question with passages, of which the gold ones are marked; also NQ-Open with its oracle passage.

{"question", "answers", "ctxs": [{"title", "text", "isgold"}, …]}, or "positive_ctxs", "negative_ctxs" and
"hard_negative_ctxs", of which the first positive one is gold, as DPR trains.
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.fingerprint import digest_of
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, read_rows
from coseek.data.question import Question

_LISTS = ("ctxs", "positive_ctxs", "negative_ctxs", "hard_negative_ctxs")


def read(sources: Sequence[Path]) -> ImportedData:
    """The corpus is all passages of all questions."""
    collector, questions = PassageCollector(), list[Question]()
    for path in sources:
        for row in read_rows(path):
            text, gold = row.text("question"), _gold(row, collector)
            ident = row.text("id") if row.has("id") else digest_of(text)[:16]
            questions.append(Question(ident, text, row.answers("answers"), tuple(gold), hops=1 if gold else None))
    return ImportedData(collector.passages, tuple(questions))


def _gold(row: SourceRow, collector: PassageCollector) -> list[str]:
    """Add the row's passages; returns the ids of the gold ones."""
    gold: list[str] = []
    for name in _LISTS:
        for number, passage in enumerate(row.rows(name) if row.has(name) else ()):
            ident = collector.add(passage.text_or_empty("title"), passage.text("text"))
            if passage.value.get("isgold") is True or (name == "positive_ctxs" and number == 0):
                gold.append(ident)
    return list(dict.fromkeys(gold))
