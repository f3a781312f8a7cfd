"""HotpotQA, in three layouts, recognised by the contents of the files.

- The authors', which is 2WikiMultihopQA's, too: questions with their own passages,
  {"_id", "question", "answer", "type", "supporting_facts": [[title, sentence], …],
   "context": [[title, [sentence, …]], …]}.
  The Hugging Face Hub also has the lists as columns ({"title": […], "sentences": [[…], …]}), as lists of objects, or
  as JSON in a text, and `id` for `_id`. Test rows have neither answer nor supporting facts.
- HippoRAG's: the same questions, and a corpus `{title: [sentence, …]}`.
- A pool: a corpus of `{"title", "text"}` lines, a CSV with `gold_titles` separated by ` | ` (a question may have
  several rows, for several methods), and a `{"question", "answer"}` list.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.data.answers import read_text
from coseek.data.imports._sources import ImportedData, PassageCollector, SourceRow, kind_of, read_document, read_rows
from coseek.data.question import Question

SENTENCES = ("sentences", "sentence", "content", "paragraphs")
NUMBERS = ("sent_id", "sent_idx", "sentence_id")
AMBIGUOUS = "supporting titles that name several own passages, of which all are gold"
ABSENT = "gold titles that are not among the question's own passages (fullwiki), left out"


class ContextParagraph(NamedTuple):
    """One of a question's own passages."""

    title: str
    sentences: tuple[str, ...]
    """Missing sentences are empty, so that sentence numbers hold."""

    @property
    def text(self) -> str:
        return joined(self.sentences)

    def has(self, numbers: Sequence[int]) -> bool:
        """Whether the sentences with these numbers exist."""
        return all(0 <= number < len(self.sentences) and self.sentences[number].strip() for number in numbers)


def contexts(row: SourceRow) -> list[ContextParagraph]:
    """The question's own passages."""
    paragraphs: list[ContextParagraph] = []
    for title, sentences in _pairs(row, "context", SENTENCES, "[title, [sentence, …]]"):
        if not isinstance(title, str) or not isinstance(sentences, list):
            raise row.wrong("context", "a list of [title, [sentence, …]]")
        with row.placed():
            paragraphs.append(ContextParagraph(title, tuple(_sentences(sentences))))
    return paragraphs


def joined(sentences: Iterable[str]) -> str:
    """Join sentences to one text, without missing ones. Only some files begin each with a blank."""
    return " ".join(sentence.strip() for sentence in sentences if sentence)


def _sentences(sentences: list[Json]) -> list[str]:
    return ["" if sentence is None else read_text(sentence, "sentences", "a sentence") for sentence in sentences]


def own_gold(row: SourceRow, collector: PassageCollector, named: dict[str, list[str]]) -> dict[str, list[str]]:
    """Title → ids of the gold passages among the question's own. `named` lists titles without a passage.

    If several passages have the title, those with the supporting sentences are gold. If several have these, all are, as
    in HotpotQA's own code, and `named` lists the title.
    """
    paragraphs: dict[str, list[ContextParagraph]] = {}
    for context in contexts(row):
        paragraphs.setdefault(context.title, []).append(context)
    numbers_by_title: dict[str, list[int]] = {}
    for title, number in _facts(row):
        numbers_by_title.setdefault(title, []).append(number)
    gold: dict[str, list[str]] = {}
    for title, numbers in numbers_by_title.items():
        if not (namesakes := paragraphs.get(title, [])):
            named.setdefault(ABSENT, []).append(f"{row.where}: {title}")
            continue
        supporting = [paragraph for paragraph in namesakes if paragraph.has(numbers)] or namesakes
        idents = [collector.find(title, paragraph.text, row.where) for paragraph in supporting]
        gold[title] = list(dict.fromkeys(idents))
        if len(gold[title]) > 1:
            named.setdefault(AMBIGUOUS, []).append(f"{row.where}: {title}")
    return gold


def question_of(row: SourceRow, gold_ids: Sequence[str], hops: int | None) -> Question:
    """A question of this layout."""
    facts: list[Json] = [[*fact] for fact in _facts(row)]
    return Question(
        id=row.text("_id" if row.has("_id") else "id"),
        question=row.text("question"),
        answers=row.answers("answer"),
        gold_ids=tuple(gold_ids),
        hops=hops,
        meta={**row.meta("type", "level"), **({"supporting_facts": facts} if facts else {})},
    )


def _facts(row: SourceRow) -> list[tuple[str, int]]:
    """Title and number of each supporting sentence."""
    facts: list[tuple[str, int]] = []
    for title, number in _pairs(row, "supporting_facts", NUMBERS, "[title, sentence number]"):
        if not isinstance(title, str) or not isinstance(number, int) or isinstance(number, bool):
            raise row.wrong("supporting_facts", "a list of [title, sentence number]")
        facts.append((title, number))
    return facts


def _pairs(row: SourceRow, name: str, second: Sequence[str], expected: str) -> list[tuple[Json, Json]]:
    """Read a list of pairs, or of objects with `title` and one of the fields `second`, or columns of such objects."""
    if not row.has(name):
        return []
    value = row.parsed(name)
    if isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        return [(item[0], item[1]) for item in value if isinstance(item, list)]
    try:
        rows = row.rows(name)
    except DataError:
        raise row.wrong(name, f"a list of {expected}, or columns of them") from None
    field = next((key for key in second if rows and key in rows[0].value), second[0])
    return [(record.value.get("title"), record.value.get(field)) for record in rows]


@dataclass
class _HotpotGold:
    """The rows of the sources by kind."""

    collector: PassageCollector = field(default_factory=PassageCollector)
    """The separate corpus, if any."""
    questions: list[SourceRow] = field(default_factory=list)
    pooled: list[SourceRow] = field(default_factory=list)
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(sources: Sequence[Path]) -> ImportedData:
    """Read any of the three layouts."""
    data = _HotpotGold()
    for path in sources:
        if kind_of(path) != ".json" or not _read_titled_corpus(path, data.collector):
            _sort_rows(path, data)
    if data.pooled:
        return ImportedData(data.collector.passages, tuple(_pooled_questions(data)))
    named: dict[str, list[str]] = {}
    if len(data.collector):
        titles = [(row, dict.fromkeys(title for title, _ in _facts(row))) for row in data.questions]
        gold = [[data.collector.titled(title, row.where) for title in unique_titles] for row, unique_titles in titles]
    else:
        for row in data.questions:
            for context in contexts(row):
                data.collector.add(context.title, context.text)
        gold = [list(chain(*own_gold(row, data.collector, named).values())) for row in data.questions]
    questions = [question_of(row, idents, 2) for row, idents in zip(data.questions, gold, strict=True)]
    notes = {name: len(names) for name, names in named.items()}
    return ImportedData(data.collector.passages, tuple(questions), notes, named=named)


def _read_titled_corpus(path: Path, collector: PassageCollector) -> bool:
    """Read HippoRAG's corpus. Returns False for other files."""
    document = read_document(path)
    if not isinstance(document, dict):
        return False
    for title, sentences in document.items():
        if not isinstance(sentences, list):
            raise DataError(f"{path}: the passage {title!r} must be a list of sentences")
        with SourceRow(f"{path}: the passage {title!r}", {}).placed():
            collector.add(title, joined(_sentences(sentences)))
    return True


def _sort_rows(path: Path, data: _HotpotGold) -> None:
    for row in read_rows(path):
        if row.has("supporting_facts") or row.has("context"):
            data.questions.append(row)
        elif row.has("gold_titles"):
            data.pooled.append(row)
        elif row.has("answer"):
            data.answers[row.text("question")] = row.answers("answer")
        else:
            data.collector.add(row.text_or_empty("title"), row.text("text"))


def _pooled_questions(data: _HotpotGold) -> list[Question]:
    questions: dict[str, Question] = {}
    for row in data.pooled:
        ident, text = row.text("example_id"), row.text("question")
        if text not in data.answers:
            raise DataError(f"{row.where}: no answer is given for {text!r}; add the file that holds the answers")
        questions[ident] = Question(
            id=ident,
            question=text,
            answers=data.answers[text],
            gold_ids=tuple(data.collector.titled(title, row.where) for title in row.text("gold_titles").split(" | ")),
            hops=2,
            meta={"type": row.value.get("question_type"), "level": row.value.get("level")},
        )
    return list(questions.values())
