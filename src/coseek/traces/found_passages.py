"""Found passages: reads the passages in the result of a search tool: text, JSON or Python of any form."""

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
from coseek.traces.calls import as_json, parsed, text_of
from coseek.traces.failed_searches import is_failure, is_nothing

T = TypeVar("T")
LISTS = (
    *("results", "result", "hits", "documents", "docs", "passages", "items", "organic", "data", "value", "chunks"),
    *("search_results", "organic_results", "web_results", "sources"),
    *("matches", "records", "nodes", "content", "output"),
)
"""Keys of the list of passages, in order of preference."""
_AROUND = ("hits", "response", "result", "data", "output", "web", "webPages")
"""Keys of an inner object with the list of passages."""
_TEXT_ALONE = ("result", "results", "output", "content", "text", "message", "detail", "response", "data", "observation")
_BESIDE = frozenset(
    (*_TEXT_ALONE, "type", "query", "count", "total", "success", "ok", "status", "code", "error", "isError")
)
"""Keys of an object that holds nothing but one text."""
IDS = ("id", "_id", "docid", "doc_id", "document_id", "passage_id", "pid", "id_", "url", "link")
TITLES = ("title", "name")
WRAPPERS = ("document", "doc", "passage", "node", "_source")
"""Keys of an inner object with the passage, whose score is outside it."""
_STORED = ("metadata", "payload", "properties")
"""Keys of an inner object in which a vector store keeps the text."""
SCORES = ("score", "relevance_score", "relevance", "similarity", "_score")
_HEADING = re.compile(r"^Doc(?:ument)? ?\[?\d+\]? ?\(Title: ?([^\n]*?)\)(?:[ \t]|$)", re.MULTILINE)
"""Opens a passage in Search-R1's text of a result."""
_NUMBER = re.compile(r"^\[(\d{1,3})\][ \t]*", re.MULTILINE)
_KNOWN = frozenset((*IDS, *TITLES, *TEXTS, *WRAPPERS, *SCORES, "meta", "metadata", "rank"))
"""Keys of a passage without text whose other keys hold nothing that would be lost."""


def own_rows(value: Json, read: Callable[[JsonObject], T]) -> tuple[T, ...] | None:
    """Hits, searches or visits as coseek exports them; `None` for any other value."""
    with suppress(DataError, *WRONG_SHAPE):
        return tuple(map(read, cast(list[JsonObject], value))) if isinstance(value, list) else None
    return None


def found_by_query(
    result: Json, queries: int, known: dict[str, Passage] | None = None
) -> list[tuple[str, tuple[Hit, ...]]]:
    """For each query of one call, its failure ("" without one) and its hits.

    `known` holds the passages of the conversation so far by id; those of this call are added.
    """
    known = {} if known is None else known
    answers: list[tuple[str, tuple[Hit, ...]]] = []
    for value in _results(result, queries):
        if is_fault(value):
            answers.append((text_of(value) or "the tool failed", ()))
        else:
            answers.append(("", () if _is_empty(value) else _hits(value, known)))
    return answers


def _results(result: Json, queries: int) -> list[Json]:
    """The result of each query of one call. A result without a list for each query counts for all queries."""
    value = _open_result(result)
    if isinstance(value, list) and len(value) == queries:
        rows = [item if isinstance(item, list) or queries == 1 else _open_result(item) for item in value]
        if all(isinstance(item, list) or _is_empty(item) or is_fault(item) for item in rows):
            return rows
    return [value] * queries


def is_fault(result: Json) -> bool:
    """Whether a result reports a failed search."""
    return is_failure(_open_result(result), TEXTS)


def _is_empty(result: Json) -> bool:
    """Whether a result reports that nothing was found."""
    return is_nothing(_open_result(result), (*LISTS, *_AROUND))


def _open_result(value: Json) -> Json:
    """The list of passages in a result, or its only text, without the JSON, lists and objects around them."""
    if isinstance(value, str):
        return value if (inner_value := parsed(value)) is value else _open_result(inner_value)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | dict):
        only_item = _open_result(value[0])
        return only_item if isinstance(only_item, str) or _is_text_part(value[0]) else value
    if not isinstance(value, dict):
        return value
    rows = _passage_list(value)
    if isinstance(rows, list) and rows and not (all(map(_is_text_part, rows)) and is_failure(value, TEXTS)):
        return _open_result(rows)
    if is_nothing(value, (*LISTS, *_AROUND)):
        return value
    texts = [value[name] for name in _TEXT_ALONE if isinstance(value.get(name), str)]
    if len(texts) == 1 and value.keys() <= _BESIDE and not is_failure(value, ()):
        return _open_result(texts[0])
    inner = next((value[name] for name in _AROUND if len(value) == 1 and isinstance(value.get(name), dict)), value)
    return value if inner is value else _open_result(inner)


def _is_text_part(value: Json) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


def _passage_list(value: Json) -> Json:
    """The list of passages in an object, or in an object inside it. Other values are returned unchanged."""
    if not isinstance(value, dict):
        return value
    lists = (value[key] for key in LISTS if isinstance(value.get(key), list))
    inner = (_passage_list(value[key]) for key in _AROUND if isinstance(value.get(key), dict))
    return next(chain(lists, (item for item in inner if isinstance(item, list))), value)


def _hits(value: Json, known: dict[str, Passage]) -> tuple[Hit, ...]:
    """Each passage once, best first. The log's scores are kept if all are numbers that do not rise, else 1 / rank."""
    hits: dict[str, Hit] = {}
    for row in value if isinstance(value, list) else _documents(value) or [value]:
        if (passage := _passage(row)) is not None:
            passage = told_apart(passage, known)
            hits.setdefault(passage.id, Hit(passage, _score(row)))
    scores = [hit.score for hit in hits.values()]
    if all(map(math.isfinite, scores)) and scores == sorted(scores, reverse=True):
        return tuple(hits.values())
    return tuple(Hit(hit.passage, 1 / rank) for rank, hit in enumerate(hits.values(), start=1))


def _documents(value: Json) -> list[Json]:
    """The passages of a text with a heading or number before each, or of an object a line; empty for other values."""
    if not isinstance(value, str):
        return []
    if not _HEADING.match(text := value.strip()):
        rows = [parsed(line) for line in text.splitlines()] if text.startswith("{") else []
        if len(rows) > 1 and all(isinstance(row, dict) for row in rows):
            return rows
        _, *numbered = _NUMBER.split(text)
        if len(numbered) > 2 and numbered[::2] == [str(number) for number in range(1, len(numbered) // 2 + 1)]:
            parts = [body.strip().partition("\n") for body in numbered[1::2]]
            return [{"title": head if body else "", "text": body.strip() or head} for head, _, body in parts]
        return []
    pieces = _HEADING.split(text)[1:]
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return [{"title": title.strip('"'), "text": body.strip()} for title, body in pairs]


def _passage(row: Json) -> Passage | None:
    """The passage in a text or an object; `None` if it is blank. A missing id is replaced by a digest of the text."""
    if not isinstance(row, dict):
        text = row if isinstance(row, str) else as_json(row)
        return Passage(digest_of("", text)[:16], "", text) if row is not None and text.strip() else None
    inner = next((row[key] for key in WRAPPERS if isinstance(row.get(key), dict)), None)
    merged: JsonObject = {**row, **inner} if isinstance(inner, dict) else row
    stored = (source for name in _STORED if isinstance(source := merged.get(name), dict) and _text(source, TEXTS))
    merged = merged if _text(merged, TEXTS) else {**next(stored, {}), **merged}
    title, text = _text(merged, TITLES), _text(merged, TEXTS)
    if not text and not (title and merged.keys() <= _KNOWN):  # other fields would be lost
        title, text = "", as_json(row)
    ident = _text(merged, IDS) or digest_of(title, text)[:16]
    fields = merged.get("meta", merged.get("metadata"))
    meta: JsonObject = dict(fields) if isinstance(fields, dict) and not is_deep(fields, DEEPEST_META) else {}
    if url := _text(merged, ("url", "link")):
        meta["url"] = url
    return Passage(ident, title, text, meta=meta)


def _text(row: JsonObject, names: Sequence[str]) -> str:
    """The first of these fields that is a text which is not blank, or a whole number."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def _score(row: Json) -> float:
    values = [row.get(name) for name in SCORES] if isinstance(row, dict) else []
    scores = (float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool))
    return next(scores, math.nan)
