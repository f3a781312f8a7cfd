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
from coseek.data.passage import DEEPEST_META, TEXTS, Hit, Passage, told_apart
from coseek.retrieval.ranking import rank_hits

IDENTITY = "x-index-identity"
"""The response header with which coseek's own servers name their index."""
RESULTS = ("result", "results")
"""The fields that may hold the lists of an answer."""
_IDS = ("id", "docid", "doc_id", "_id", "pid")
_OWN = {"title", "text", "contents"}
"""The keys of coseek's own servers, whose corpora may hold empty passages."""
_MISSING = (-1, "-1")
"""The id that faiss returns for missing hits."""


def parse_response(payload: Json, count: int, k: int) -> list[list[Hit]]:
    """The hits of each of `count` queries, at most `k` each. Raises `ValueError` for an unknown layout. The server's
    order is kept. Its scores are kept if every hit has one and they do not rise; otherwise the scores are 1/rank. A
    document without an id gets a digest of its content as id; an id that repeats in a list with another text gets a
    digest suffix."""
    lists = payload.get("result", payload.get("results")) if isinstance(payload, dict) else payload
    if not isinstance(lists, list):
        fields = [repr(name[:16]) for name in payload][:6] if isinstance(payload, dict) else []
        raise ValueError(
            f'no list under "result" (fields: {", ".join(fields) or "none"}); read it by a retriever of your own '
            "(retriever: mine.py, docs/how-to/write-a-part.md)"
        )
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
    passages: dict[str, Passage] = {}
    pairs = [result for result in map(_passage_and_score, rows) if result is not None][:k]
    results = [(told_apart(passage, passages), score) for passage, score in pairs]
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
        document = {**row, "text": None, "contents": document}
    if not isinstance(document, dict):
        raise ValueError(f"a {type(document).__name__} where a document belongs")
    if _first_value(document, _IDS) in _MISSING:
        return None
    return _passage(document), _score(row.get("score"))


def _score(score: Json) -> float | None:
    if score is None:
        return None
    try:
        number = math.nan if isinstance(score, bool) or not isinstance(score, int | float | str) else float(score)
    except (OverflowError, ValueError):  # an integer too large for a float; words
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"a score that is not a finite number: {str(score)[:40]!r}")
    return number


def _passage(document: JsonObject) -> Passage:
    texts = [name for name in TEXTS if isinstance(document.get(name), str)]
    filled_names = [name for name in texts if str(document[name]).strip()]
    meta = next((value for key in ("meta", "metadata") if isinstance(value := document.get(key), dict)), {})
    title = next((text for text in (document.get("title"), meta.get("title")) if text and isinstance(text, str)), "")
    if not filled_names and not (texts and (title or document.keys() >= _OWN)):
        raise ValueError("a document without text")
    name = (filled_names or texts)[0]
    row: JsonObject = {"id": "", "title": title}
    row |= {"text": document[name]} if name != "contents" else {}
    row |= {"contents": document["contents"]} if "contents" in texts and name in ("text", "contents") else {}
    if isinstance(url := document.get("url"), str):
        meta = {"url": url, **meta}
    if not (fault_in(meta) or is_deep(meta, DEEPEST_META)):
        row["meta"] = meta
    passage = Passage.from_json(row)
    ident = _first_value(document, _IDS)
    if ident is None:
        ident = "sha256:" + digest_of(passage.title, passage.text)[:16]
    return replace(passage, id=str(ident))


def _first_value(document: JsonObject, names: Iterable[str]) -> Json:
    """The value of the first of these keys that is present and not null."""
    return next((document[name] for name in names if document.get(name) is not None), None)
