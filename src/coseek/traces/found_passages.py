"""Found passages: those in the result of a search tool. That of somebody else is text or JSON of any form."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress

from coseek.core.errors import DataError
from coseek.core.fields import objects
from coseek.core.files import WRONG_SHAPE, Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.strict_json import InvalidJson, is_deep, parse_strict
from coseek.data.passage import DEEPEST_META, Hit, Passage
from coseek.data.trajectory import Search

LISTS = ("results", "result", "hits", "documents", "docs", "passages", "items", "organic", "data")
"""Keys of an object whose list holds the passages, the first that is there."""
IDS = ("id", "_id", "docid", "doc_id", "document_id", "passage_id", "pid", "url", "link")
TITLES = ("title", "name")
TEXTS = ("text", "contents", "content", "snippet", "body", "passage", "summary", "description")
WRAPPERS = ("document", "doc", "passage")
"""Keys of an object around the passage, with the score beside it."""
SCORES = ("score", "relevance_score", "relevance", "similarity")
_KNOWN = frozenset((*IDS, *TITLES, *TEXTS, *WRAPPERS, *SCORES, "meta", "rank"))
"""Keys that say nothing which a passage of a title alone would lose."""


def own_hits(value: Json) -> tuple[Hit, ...] | None:
    """The hits that coseek wrote with a result, as they were; `None` where they are somebody else's."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(Hit.from_json(row) for row in objects({"hits": value}, "hits"))
    return None


def searches_of(value: Json) -> tuple[Search, ...]:
    """The searches that coseek wrote with a run, as they were; none where they are somebody else's."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(Search.from_json(row) for row in objects({"searches": value}, "searches"))
    return ()


def hits_by_query(result: Json, queries: int) -> list[tuple[Hit, ...]]:
    """The hits of each query of one call. A result that is not a list for each query counts for all of them."""
    value = _unwrapped(_parsed(result))
    if isinstance(value, list) and len(value) == queries and all(isinstance(each, list) for each in value):
        return [_hits(each) for each in value]
    return [_hits(value)] * queries


def _parsed(value: Json) -> Json:
    """The value of a text that is JSON, else the text."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        return parse_strict(value)
    except InvalidJson:
        return value


def _unwrapped(value: Json) -> Json:
    if isinstance(value, dict):
        return next((value[key] for key in LISTS if isinstance(value.get(key), list)), value)
    return value


def _hits(value: Json) -> tuple[Hit, ...]:
    """Each passage once, best first. Scores are the source's if all are numbers that do not rise, else 1 / rank."""
    rows = value if isinstance(value, list) else [value]
    found: dict[str, tuple[Passage, float]] = {}
    for row in rows:
        passage = _passage(row)
        if passage is not None:
            found.setdefault(passage.id, (passage, _score(row)))
    scores = [score for _, score in found.values()]
    if not (all(map(math.isfinite, scores)) and scores == sorted(scores, reverse=True)):
        scores = [1 / rank for rank in range(1, len(scores) + 1)]
    return tuple(Hit(passage, score) for (passage, _), score in zip(found.values(), scores, strict=True))


def _passage(row: Json) -> Passage | None:
    """A passage from a text or an object; `None` for a blank one. Without an id, its id is a digest of its text."""
    if not isinstance(row, dict):
        text = row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)
        return Passage(digest_of("", text)[:16], "", text) if row is not None and text.strip() else None
    inner = next((row[key] for key in WRAPPERS if isinstance(row.get(key), dict)), None)
    whole: JsonObject = {**row, **inner} if isinstance(inner, dict) else row
    title, text = _text(whole, TITLES), _text(whole, TEXTS)
    if not text and not (title and whole.keys() <= _KNOWN):  # what else it says would be lost
        title, text = "", json.dumps(row, ensure_ascii=False)
    ident = _text(whole, IDS) or digest_of(title, text)[:16]
    known = whole.get("meta")
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
