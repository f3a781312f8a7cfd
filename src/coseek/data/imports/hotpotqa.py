"""HotpotQA, in three layouts that are recognised by the files' contents.

- The authors': questions with their own passages; also in the Hub's columns (`_contexts`).
- HippoRAG's: the same questions, and a corpus `{title: [sentence, …]}`.
- A pool: a corpus of `{"title", "text"}` lines, a CSV with `gold_titles` separated by ` | ` (a question may have
  several rows, for several methods), and a `{"question", "answer"}` list.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import read_json
from coseek.data.imports._contexts import contexts, gold_titles, joined, own_gold, question_of
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, kind_of, read_rows
from coseek.data.question import Question


@dataclass
class _HotpotGold:
    """The rows of the sources by kind."""

    shelf: PassageCollector = field(default_factory=PassageCollector)
    """The separate corpus, if any."""
    questions: list[SourceRow] = field(default_factory=list)
    pooled: list[SourceRow] = field(default_factory=list)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(sources: Sequence[Path]) -> ImportedData:
    """Read any of the three layouts."""
    found = _HotpotGold()
    for path in sources:
        if kind_of(path) != ".json" or not _read_titled_corpus(path, found.shelf):
            _sort_rows(path, found)
    if found.pooled:
        return ImportedData(found.shelf.passages, tuple(_pooled_questions(found)))
    notes = Counter[str]()
    if len(found.shelf):
        gold = [[found.shelf.titled(title, row.where) for title in gold_titles(row)] for row in found.questions]
    else:
        for row in found.questions:
            for context in contexts(row):
                found.shelf.add(context.title, context.text)
        gold = [list(chain(*own_gold(row, found.shelf, notes).values())) for row in found.questions]
    questions = [question_of(row, idents, 2) for row, idents in zip(found.questions, gold, strict=True)]
    return ImportedData(found.shelf.passages, tuple(questions), notes)


def _read_titled_corpus(path: Path, shelf: PassageCollector) -> bool:
    """Read HippoRAG's corpus; False for another file."""
    document = read_json(path)
    if not isinstance(document, dict):
        return False
    for title, sentences in document.items():
        if not isinstance(sentences, list):
            raise DataError(f"{path}: the passage {title!r} must be a list of sentences")
        with SourceRow(f"{path}: the passage {title!r}", {}).placed():
            shelf.add(title, joined(sentences))
    return True


def _sort_rows(path: Path, found: _HotpotGold) -> None:
    for row in read_rows(path):
        if row.has("supporting_facts") or row.has("context"):
            found.questions.append(row)
        elif row.has("gold_titles"):
            found.pooled.append(row)
        elif row.has("answer"):
            found.answers[row.text("question")] = row.answers("answer")
        else:
            found.shelf.add(row.text_or_empty("title"), row.text("text"))


def _pooled_questions(found: _HotpotGold) -> list[Question]:
    questions: dict[str, Question] = {}
    for row in found.pooled:
        ident, text = row.text("example_id"), row.text("question")
        if text not in found.answers:
            raise DataError(f"{row.where}: no answer is given for {text!r}; add the file that holds the answers")
        questions[ident] = Question(
            id=ident,
            question=text,
            answers=found.answers[text],
            gold_ids=tuple(found.shelf.titled(title, row.where) for title in row.text("gold_titles").split(" | ")),
            hops=2,
            meta={"type": row.value.get("question_type"), "level": row.value.get("level")},
        )
    return list(questions.values())
