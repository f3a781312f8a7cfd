"""OpenAPI: the contract as a document for programs. `contract.py` decides; a fuzz test compares the two."""

from coseek.core.files import JsonObject
from coseek.serve.settings import ServeSettings


def request_body(limits: ServeSettings) -> JsonObject:
    """The body of `/retrieve`."""
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _request(limits)}}},
    }


def answers() -> dict[int | str, dict[str, object]]:
    """The answers of `/retrieve`, by status."""
    said = {
        400: "not JSON in UTF-8",
        401: "no token, or a wrong one",
        408: "the request was not complete in time",
        413: "more than one request may hold",
        422: "JSON that breaks the contract",
        502: "the retriever failed",
        503: "the queue is full, or the service is not ready; Retry-After says when to retry",
    }
    found: dict[int | str, dict[str, object]] = {status: _answer(text, _ERROR) for status, text in said.items()}
    return {200: _answer("one list for each query, in input order", _RESULT), **found}


def _answer(description: str, schema: JsonObject) -> dict[str, object]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _request(limits: ServeSettings) -> JsonObject:
    text: JsonObject = {"type": "string", "maxLength": limits.max_query_chars}
    texts: JsonObject = {
        "oneOf": [{"type": "array", "items": text, "maxItems": limits.max_queries}, text],
        "description": "The queries; a single string is a list of one.",
    }
    return {
        "type": "object",
        "anyOf": [{"required": ["queries"]}, {"required": ["query"]}],
        "properties": {
            "queries": texts,
            "query": {**texts, "description": "The same; a single string is answered with a flat list."},
            "topk": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": f"Passages for each query; null and 0 mean {limits.topk}.",
            },
            "return_scores": {"type": "boolean", "default": False},
            "contexts": {
                "type": ["array", "null"],
                "items": {"oneOf": [{"type": "null"}, _CONTEXT]},
                "description": "The context of each query, for retrievers whose view reads it; as many as queries.",
            },
        },
    }


_STRING: JsonObject = {"type": "string"}
_TURN: JsonObject = {
    "type": "object",
    "properties": {
        "query": _STRING,
        "reasoning": _STRING,
        "documents": {"type": "array", "items": _STRING},
        "same_turn": {
            "type": "boolean",
            "default": False,
            "description": "Whether the turn of the search before it made this one, too.",
        },
    },
}
_CONTEXT: JsonObject = {
    "type": "object",
    "properties": {
        "question": _STRING,
        "reasoning": _STRING,
        "history": {"type": "array", "items": _TURN, "description": "Earlier searches, oldest first."},
    },
}
_DOCUMENT: JsonObject = {
    "type": "object",
    "required": ["id", "contents", "title", "text"],
    "properties": {"id": _STRING, "contents": _STRING, "title": _STRING, "text": _STRING, "meta": {"type": "object"}},
}
_SCORED: JsonObject = {
    "type": "object",
    "required": ["document", "score"],
    "properties": {"document": _DOCUMENT, "score": {"type": "number"}},
}
_RESULT: JsonObject = {
    "type": "object",
    "required": ["result"],
    "properties": {
        "result": {
            "type": "array",
            "items": {"anyOf": [{"type": "array", "items": {"anyOf": [_SCORED, _DOCUMENT]}}, _SCORED, _DOCUMENT]},
        },
    },
}
_ERROR: JsonObject = {"type": "object", "required": ["error"], "properties": {"error": _STRING}}
