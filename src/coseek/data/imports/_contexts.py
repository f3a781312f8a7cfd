"""Contexts: the layout of HotpotQA, which 2WikiMultihopQA took over: a question brings its own passages.

{"_id", "question", "answer", "type", "supporting_facts": [[title, sentence], …],
 "context": [[title, [sentence, …]], …]}
"""

from dataclasses import dataclass

from coseek.data.files import Json
from coseek.data.imports._reading import Shelf
from coseek.data.imports._sources import Row
from coseek.data.question import Question


@dataclass(frozen=True, slots=True)
class Context:
    """One passage of a question's own."""

    title: str
    text: str


def contexts(row: Row) -> list[Context]:
    """The question's own passages."""
    found: list[Context] = []
    for item in row.items("context"):
        match item:
            case [str() as title, list() as sentences]:
                found.append(Context(title, joined(sentences)))
            case _:
                raise row.wrong("context", "a list of [title, [sentence, …]]")
    return found


def joined(sentences: list[Json]) -> str:
    """Sentences as one text; some files begin each with a blank and some do not."""
    return " ".join(str(sentence).strip() for sentence in sentences)


def gold_titles(row: Row) -> list[str]:
    """The titles of the supporting facts, each once, in their order."""
    titles: dict[str, None] = {}
    for item in row.items("supporting_facts"):
        match item:
            case [str() as title, *_]:
                titles[title] = None
            case _:
                raise row.wrong("supporting_facts", "a list of [title, sentence number]")
    return list(titles)


def own_gold(row: Row, shelf: Shelf) -> list[str]:
    """Ids of the gold passages among the question's own."""
    own = {context.title: context.text for context in contexts(row)}
    return [shelf.find(title, own.get(title, ""), row.where) for title in gold_titles(row)]


def question_of(row: Row, gold_ids: list[str], hops: int, *meta: str) -> Question:
    """A question of this layout."""
    return Question(
        id=row.text("_id"),
        question=row.text("question"),
        answers=(row.text("answer"),),
        gold_ids=tuple(gold_ids),
        hops=hops,
        meta=row.meta("type", "level", "supporting_facts", *meta),
    )
