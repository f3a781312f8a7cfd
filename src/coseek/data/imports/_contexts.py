"""The layout of HotpotQA and 2WikiMultihopQA: a question with its own passages.

{"_id", "question", "answer", "type", "supporting_facts": [[title, sentence], …],
 "context": [[title, [sentence, …]], …]}
"""

from typing import NamedTuple

from coseek.core.files import Json
from coseek.data.imports._sources import PassageCollector, SourceRow
from coseek.data.question import Question


class ContextParagraph(NamedTuple):
    """One of a question's own passages."""

    title: str
    text: str


def contexts(row: SourceRow) -> list[ContextParagraph]:
    """The question's own passages."""
    found: list[ContextParagraph] = []
    for item in row.items("context"):
        match item:
            case [str() as title, list() as sentences]:
                found.append(ContextParagraph(title, joined(sentences)))
            case _:
                raise row.wrong("context", "a list of [title, [sentence, …]]")
    return found


def joined(sentences: list[Json]) -> str:
    """Sentences as one text; only some files begin each with a blank."""
    return " ".join(str(sentence).strip() for sentence in sentences)


def gold_titles(row: SourceRow) -> list[str]:
    """The titles of the supporting facts, each once, in their order."""
    titles: list[str] = []
    for item in row.items("supporting_facts"):
        match item:
            case [str() as title, *_]:
                titles.append(title)
            case _:
                raise row.wrong("supporting_facts", "a list of [title, sentence number]")
    return list(dict.fromkeys(titles))


def own_gold(row: SourceRow, shelf: PassageCollector) -> list[str]:
    """Ids of the gold passages among the question's own."""
    own = {context.title: context.text for context in contexts(row)}
    return [shelf.find(title, own.get(title, ""), row.where) for title in gold_titles(row)]


def question_of(row: SourceRow, gold_ids: list[str], hops: int, *meta: str) -> Question:
    """A question of this layout."""
    return Question(
        id=row.text("_id"),
        question=row.text("question"),
        answers=(row.text("answer"),),
        gold_ids=tuple(gold_ids),
        hops=hops,
        meta=row.meta("type", "level", "supporting_facts", *meta),
    )
