"""Answers: reads what `/retrieve` servers send back. They agree on the path and on little else
(docs/reference/service.md).

{"result": [[{"document": {…}, "score": 1.5}, …], …]}     a list a query, with or without scores
{"result": [{"id": …, "title": …, "text": …}, …]}         one flat list, for a single query
{"result": [["\"Title\"\nbody", …], …]}                   documents as strings
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Hit, Passage

_IDS = ("id", "docid", "doc_id", "_id", "pid")
_TEXTS = ("content", "snippet", "passage")
"""Other names for the body, where there is neither `text` nor `contents`."""
_NOTHING = (-1, "-1")
"""What faiss writes where it found fewer than `k`."""


def parse_response(payload: Json, count: int, k: int) -> list[list[Hit]]:
    """The hits of each of `count` queries, at most `k`; an answer that cannot be understood is a `ValueError`.

    The order is the server's. Its scores are kept where every hit has one and none is greater than the one before;
    otherwise they are 1, 1/2, 1/3, … A document without an id is named by a digest of what it says.
    """
    lists = _result(payload)
    if count == 1 and not (lists and isinstance(lists[0], list)):
        lists = [lists]
    if len(lists) != count:
        raise ValueError(f"{len(lists)} lists for {count} queries")
    return [_hits(rows, k) for rows in lists]


def _result(payload: Json) -> list[Json]:
    found = payload
    if isinstance(payload, dict):
        found = payload.get("result", payload.get("results"))
    if not isinstance(found, list):
        raise ValueError('no list under "result"')
    return found


def _hits(rows: Json, k: int) -> list[Hit]:
    if rows is None:
        return []
    if not isinstance(rows, list):
        raise ValueError(f"a {type(rows).__name__} where a list of documents belongs")
    found = [hit for hit in map(_hit, rows) if hit is not None][:k]
    passages = [passage for passage, _ in found]
    return [Hit(*pair) for pair in zip(passages, _falling([score for _, score in found]), strict=True)]


def _falling(scores: Sequence[float | None]) -> list[float]:
    """The scores if they can stand, else 1/rank."""
    known = [score for score in scores if score is not None]
    if len(known) == len(scores) and all(first >= second for first, second in pairwise(known)):
        return known
    return [1.0 / rank for rank in range(1, len(scores) + 1)]


def _hit(row: Json) -> tuple[Passage, float | None] | None:
    """A document and its score; nothing for a place that was left empty."""
    if row is None or row in _NOTHING:
        return None
    if isinstance(row, str):
        return _passage({"contents": row}), None
    if not isinstance(row, dict):
        raise ValueError(f"a {type(row).__name__} where a document belongs")
    document = row.get("document", row)
    if document is None or document in _NOTHING:
        return None
    if isinstance(document, str):
        document = {"contents": document, "id": row.get("id")}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} where a document belongs")
    if _first(document, _IDS) in _NOTHING:
        return None
    return _passage(document), _score(row.get("score"))


def _score(score: Json) -> float | None:
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, bool) or not isinstance(score, int | float) else float(score)
    except OverflowError:  # a whole number beyond every float
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a score that is no number: {str(score)[:40]!r}")
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
    row |= {"text": text} if isinstance(text, str) else {"contents": contents}
    passage = Passage.from_json(row)
    ident = _first(document, _IDS)
    return Passage(_named(passage) if ident is None else str(ident), passage.title, passage.text)


def _named(passage: Passage) -> str:
    return "sha256:" + digest_of(passage.title, passage.text)[:16]


def _first(document: JsonObject, names: Iterable[str]) -> Json:
    """What stands under the first of these names that is there."""
    return next((document[name] for name in names if document.get(name) is not None), None)
