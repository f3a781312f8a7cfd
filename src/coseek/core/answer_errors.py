"""Answer errors: errors that servers and proxies send with the status 200, in their many spellings. Does no I/O."""

import json
from collections.abc import Sequence

from coseek.core.files import Json, JsonObject

_AROUND_ERROR = frozenset(
    ("error", "message", "code", "status", "type", "param", "id", "request_id", "user_id", "object", "created")
    + ("model", "provider", "detail", "success", "choices", "errors", "base_resp", "error_msg", "error_code", "msg")
    + ("statusCode", "status_code")
)
"""All fields that an answer may have if it contains only an error."""
_WENT_WELL = (0, 200, "0", "200", "ok", "success")
"""Codes of success, beside which a message is not an error."""
_FAILED = {"success": ("false",), "ok": ("false",), "timed_out": ("true",), "status": ("error", "failed", "failure")}
"""Field → its lower-case values that mean a failed search."""
_CODES = ("code", "status", "type", "error_code", "status_code", "statusCode")
_TRANSIENT = {"rate_limit_exceeded": 429, "rate_limit_error": 429, "resource_exhausted": 429, "overloaded_error": 503}
"""Name of a transient error → its HTTP status."""


def error_in(row: JsonObject, results: Sequence[str] = ()) -> tuple[str, int | None] | None:
    """Find the error in an answer with the status 200. Returns its message and, if known, its HTTP status; `None`
    without an error.

    An answer with results has no error: `choices`, or passages in the fields `results`. Without `results`, an answer
    with fields that no error has is not an error either, since the fields of other services are unknown.
    """
    fields = {name for name, value in row.items() if value is not None}
    bare = fields <= _AROUND_ERROR
    if row.get("choices") or any(_has_rows(row.get(name)) for name in results) or not (results or bare):
        return None
    error = row.get("error") or row.get("errors")
    error = error[0] if isinstance(error, list) and error else error
    base = row.get("base_resp")  # MiniMax
    if not error and isinstance(base, dict) and base.get("status_code"):
        error = base
    went_well = row.get("success") is True or any(row.get(name) in _WENT_WELL for name in ("code", "status"))
    message = next((text for name in ("error_msg", "msg", "message", "detail") if (text := row.get(name))), None)
    if not error and any(_is_failure(name, row.get(name)) for name in (*_FAILED, *_CODES)):
        error = message or row
    elif not error and bare and not went_well:  # beside an empty list, a message may say why it is empty
        error = message if isinstance(message, str) or results else None
    return _message_and_status(error, row) if error else None


def _message_and_status(error: Json, row: JsonObject) -> tuple[str, int | None]:
    """The message of an error, and the HTTP status in it or in the answer that contains it."""
    holder = error if isinstance(error, dict) else row
    status = next((code for name in _CODES if (code := _status(holder.get(name)))), None)
    texts = (holder.get("message"), holder.get("status_msg"), holder.get("error"), error)
    return next((text for text in texts if isinstance(text, str)), json.dumps(error)), status


def _is_failure(name: str, value: Json) -> bool:
    """Whether a field says that a search failed. Positive codes outside the HTTP range may mean success."""
    negative = type(value) is int and value < 0
    return str(value).lower() in _FAILED.get(name, ()) or (name in _CODES and (negative or _status(value) is not None))


def _has_rows(value: Json) -> bool:
    """Whether a list has items, at any depth of lists and objects."""
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(
        _has_rows(item) if isinstance(item, list) else item is not None for item in value
    )


def _status(value: Json) -> int | None:
    """Parse the HTTP status of an error from a number, digits or a name; `None` for anything else."""
    text = value.lower() if isinstance(value, str) else ""
    number = int(text) if text.isascii() and text.isdigit() else _TRANSIENT.get(text, value)
    return number if type(number) is int and 400 <= number < 600 else None
