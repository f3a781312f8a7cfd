"""Found passages: those in the result of a search tool. That of somebody else is text, JSON or Python of any form."""

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import TypeVar, cast

from coseek.core.errors import DataError
from coseek.core.files import WRONG_SHAPE, Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.strict_json import is_deep
from coseek.data.passage import DEEPEST_META, TEXTS, Hit, Passage, told_apart
from coseek.traces.calls import parsed, text_of
from coseek.traces.failed_searches import is_failure, is_nothing

T = TypeVar("T")
LISTS = (
    *("results", "result", "hits", "documents", "docs", "passages", "items", "organic", "data", "value", "chunks"),
    *("search_results", "organic_results", "web_results"),
    *("matches", "records", "nodes", "content", "output"),
)
"""Keys of an object whose list holds the passages, the first that is there."""
_AROUND = ("hits", "response", "result", "data", "output", "web", "webPages")
"""Keys of an object around that object."""
_TEXT_ALONE = ("result", "results", "output", "content", "text", "message", "detail", "response", "data", "observation")
_BESIDE = frozenset(
    (*_TEXT_ALONE, "type", "query", "count", "total", "success", "ok", "status", "code", "error", "isError")
)
"""Keys of an object that holds no more than one text."""
IDS = ("id", "_id", "docid", "doc_id", "document_id", "passage_id", "pid", "id_", "url", "link")
TITLES = ("title", "name")
WRAPPERS = ("document", "doc", "passage", "node", "_source")
"""Keys of an object around the passage, with the score beside it."""
_STORED = ("metadata", "payload", "properties")
"""Keys of an object with the text, where a vector store has it there."""
SCORES = ("score", "relevance_score", "relevance", "similarity", "_score")
_HEADING = re.compile(r"^Doc(?:ument)? ?\[?\d+\]? ?\(Title: ?([^\n]*?)\)(?:[ \t]|$)", re.MULTILINE)
"""Opens a passage in Search-R1's text of a result."""
_KNOWN = frozenset((*IDS, *TITLES, *TEXTS, *WRAPPERS, *SCORES, "meta", "metadata", "rank"))
"""Keys that say nothing which a passage of a title alone would lose."""


def own_hits(value: Json) -> tuple[Hit, ...] | None:
    """The hits that coseek wrote with a result, as they were; `None` where they are somebody else's."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(map(Hit.from_json, cast(list[JsonObject], value))) if isinstance(value, list) else None
    return None


def own_rows(value: Json, read: Callable[[JsonObject], T]) -> tuple[T, ...]:
    """What coseek wrote with a run, searches or visits, as it was; none where it is somebody else's."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(map(read, cast(list[JsonObject], value))) if isinstance(value, list) else ()
    return ()


def found_by_query(
    result: Json, queries: int, known: dict[str, Passage] | None = None
) -> list[tuple[str, tuple[Hit, ...]]]:
    """For each query of one call, what the result says of a failure ("" without one), and the hits.

    `known` holds the passages of the conversation so far by id, and gets those of this call.
    """
    known = {} if known is None else known
    found: list[tuple[str, tuple[Hit, ...]]] = []
    for value in _results(result, queries):
        if is_fault(value):
            found.append((text_of(value) or "the tool failed", ()))
        else:
            found.append(("", () if _is_empty(value) else _hits(value, known)))
    return found


def _results(result: Json, queries: int) -> list[Json]:
    """The result of each query of one call. A result that is not a list for each query counts for all of them."""
    value = _opened(result)
    if isinstance(value, list) and len(value) == queries:
        rows = [each if isinstance(each, list) or queries == 1 else _opened(each) for each in value]
        if all(isinstance(each, list) or _is_empty(each) or is_fault(each) for each in rows):
            return rows
    return [value] * queries


def is_fault(result: Json) -> bool:
    """Whether a result says that its search failed."""
    return is_failure(_opened(result), TEXTS)


def _is_empty(result: Json) -> bool:
    """Whether a result says that its search found nothing."""
    return is_nothing(_opened(result), (*LISTS, *_AROUND))


def _opened(value: Json) -> Json:
    """The list of passages in a result, or else what it says without the JSON, lists and objects around one text."""
    if isinstance(value, str):
        return value if (inside := parsed(value)) is value else _opened(inside)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | dict):
        only = _opened(value[0])
        return only if isinstance(only, str) or _is_text_part(value[0]) else value
    if not isinstance(value, dict):
        return value
    rows = _unwrapped(value)
    if isinstance(rows, list) and rows and not (all(map(_is_text_part, rows)) and is_failure(value, TEXTS)):
        return _opened(rows)
    if is_nothing(value, (*LISTS, *_AROUND)):
        return value
    texts = [value[name] for name in _TEXT_ALONE if isinstance(value.get(name), str)]
    if len(texts) == 1 and value.keys() <= _BESIDE and not is_failure(value, ()):
        return _opened(texts[0])
    inner = next((value[name] for name in _AROUND if len(value) == 1 and isinstance(value.get(name), dict)), value)
    return value if inner is value else _opened(inner)


def _is_text_part(value: Json) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _unwrapped(value: Json) -> Json:
    """The list of passages in an object, or in an object inside it; any other value as it is."""
    if not isinstance(value, dict):
        return value
    lists = (value[key] for key in LISTS if isinstance(value.get(key), list))
    inner = (_unwrapped(value[key]) for key in _AROUND if isinstance(value.get(key), dict))
    return next(chain(lists, (each for each in inner if isinstance(each, list))), value)


def _hits(value: Json, known: dict[str, Passage]) -> tuple[Hit, ...]:
    """Each passage once, best first. Scores are the source's if all are numbers that do not rise, else 1 / rank."""
    rows = value if isinstance(value, list) else _documents(value) or [value]
    found: dict[str, tuple[Passage, float]] = {}
    for row in rows:
        passage = _passage(row)
        if passage is not None:
            passage = told_apart(passage, known)
            found.setdefault(passage.id, (passage, _score(row)))
    scores = [score for _, score in found.values()]
    if not (all(map(math.isfinite, scores)) and scores == sorted(scores, reverse=True)):
        scores = [1 / rank for rank in range(1, len(scores) + 1)]
    return tuple(Hit(passage, score) for (passage, _), score in zip(found.values(), scores, strict=True))


def _documents(value: Json) -> list[Json]:
    """The passages of a text in which each has a heading with its title; empty for anything else."""
    if not isinstance(value, str) or not _HEADING.match(text := value.strip()):
        return []
    pieces = _HEADING.split(text)[1:]
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [{"title": title.strip('"'), "text": body.strip()} for title, body in pairs]


def _passage(row: Json) -> Passage | None:
    """A passage from a text or an object; `None` for a blank one. Without an id, its id is a digest of its text."""
    if not isinstance(row, dict):
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
        return Passage(digest_of("", text)[:16], "", text) if row is not None and text.strip() else None
    inner = next((row[key] for key in WRAPPERS if isinstance(row.get(key), dict)), None)
    whole: JsonObject = {**row, **inner} if isinstance(inner, dict) else row
    held = (more for name in _STORED if isinstance(more := whole.get(name), dict) and _text(more, TEXTS))
    whole = whole if _text(whole, TEXTS) else {**next(held, {}), **whole}
    title, text = _text(whole, TITLES), _text(whole, TEXTS)
    if not text and not (title and whole.keys() <= _KNOWN):  # what else it says would be lost
        title, text = "", json.dumps(row, ensure_ascii=False)
    ident = _text(whole, IDS) or digest_of(title, text)[:16]
    known = whole.get("meta", whole.get("metadata"))
    meta: JsonObject = dict(known) if isinstance(known, dict) and not is_deep(known, DEEPEST_META) else {}
    if url := _text(whole, ("url", "link")):
        meta["url"] = url
    return Passage(ident, title, text, meta=meta)


def _text(row: JsonObject, names: Sequence[str]) -> str:
    """The first of these fields that is a text with letters, or a whole number."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def _score(row: Json) -> float:
    if isinstance(row, dict):
        for name in SCORES:
            value = row.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
    return math.nan
