"""Responses: parses the answers of `/retrieve` servers, which differ in their layout (docs/reference/service.md).

{"result": [[{"document": {…}, "score": 1.5}, …], …]}     a list per query, with or without scores
{"result": [{"id": …, "title": …, "text": …}, …]}         one flat list, for a single query
{"result": [["\"Title\"\nbody", …], …]}                   documents as strings
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.strict_json import fault_in, is_deep
from coseek.data.passage import DEEPEST_META, Hit, Passage
from coseek.retrieval.ranking import rank_hits

IDENTITY = "x-index-identity"
"""The response header with which coseek's own servers name their index."""
_IDS = ("id", "docid", "doc_id", "_id", "pid")
_TEXTS = ("content", "snippet", "passage")
"""Alternative keys of the body, used if neither `text` nor `contents` is present."""
_MISSING = (-1, "-1")
"""The id that faiss returns for missing hits."""


def parse_response(payload: Json, count: int, k: int) -> list[list[Hit]]:
    """The hits of each of `count` queries, at most `k` each. Raises `ValueError` for an unknown layout. The server's
    order is kept. Its scores are kept if every hit has one and they do not rise; otherwise the scores are 1/rank. A
    document without an id gets a digest of its content as id."""
    lists = payload.get("result", payload.get("results")) if isinstance(payload, dict) else payload
    if not isinstance(lists, list):
        raise ValueError('no list under "result"')
    if count == 1 and not (lists and isinstance(lists[0], list)):
        lists = [lists]
    if len(lists) != count:
        raise ValueError(f"{len(lists)} lists for {count} queries")
    return [_hits(rows, k) for rows in lists]


def _hits(rows: Json, k: int) -> list[Hit]:
    if rows is None:
        return []
    if not isinstance(rows, list):
        raise ValueError(f"a {type(rows).__name__} where a list of documents belongs")
    results = [result for result in map(_passage_and_score, rows) if result is not None][:k]
    scores = [score for _, score in results if score is not None]
    if len(scores) < len(results) or any(first < second for first, second in pairwise(scores)):
        return rank_hits(passage for passage, _ in results)
    return [Hit(passage, score) for (passage, _), score in zip(results, scores, strict=True)]


def _passage_and_score(row: Json) -> tuple[Passage, float | None] | None:
    """A document and its score; `None` for a missing hit."""
    if row is None or row in _MISSING:
        return None
    if isinstance(row, str):
        return _passage({"contents": row}), None
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__} where a document belongs")
    document = row.get("document", row)
    if document is None or document in _MISSING:
        return None
    if isinstance(document, str):
        document = {"contents": document, "id": row.get("id")}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} where a document belongs")
    if _first(document, _IDS) in _MISSING:
        return None
    return _passage(document), _score(row.get("score"))


def _score(score: Json) -> float | None:
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, bool) or not isinstance(score, int | float) else float(score)
    except OverflowError:  # an integer too large for a float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a score that is not a finite number: {str(score)[:40]!r}")
    return number


def _passage(document: JsonObject) -> Passage:
    text = document.get("text")
    if text is None:
        text = _first(document, _TEXTS)
    contents = document.get("contents")
    if not isinstance(text, str) and not isinstance(contents, str):
        raise ValueError("a document without text")
    title = document.get("title")
    row: JsonObject = {"id": "", "title": title if isinstance(title, str) else ""}
    row |= {"text": text} if isinstance(text, str) else {}
    row |= {"contents": contents} if isinstance(contents, str) else {}
    meta = document.get("meta")
    if isinstance(meta, dict) and not (fault_in(meta) or is_deep(meta, DEEPEST_META)):
        row["meta"] = meta
    passage = Passage.from_json(row)
    ident = _first(document, _IDS)
    if ident is None:
        ident = "sha256:" + digest_of(passage.title, passage.text)[:16]
    return replace(passage, id=str(ident))


def _first(document: JsonObject, names: Iterable[str]) -> Json:
    """The value of the first of these keys that is present and not null."""
    return next((document[name] for name in names if document.get(name) is not None), None)
