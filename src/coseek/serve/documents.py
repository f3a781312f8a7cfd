"""Documents: the files that a corpus was imported from, for links on the chat page. Nothing outside them is served."""

from pathlib import Path

from fastapi import Response
from fastapi.responses import FileResponse

from coseek.serve.contract import RefusedRequest

_CLOSED = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_SHOWN = frozenset((".pdf", ".txt", ".md", ".csv", ".html", ".htm", ".png", ".jpg", ".jpeg", ".gif"))
"""Files that a browser shows; others are downloaded."""


def document(root: Path, path: str) -> Response:
    """The file of a passage's `path`, which begins with the name of what was imported. Raises `RefusedRequest` (404)
    for any other one; a script in a file does not run."""
    root = root.resolve()
    try:
        file = (root.parent / path).resolve()
        known = file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError):  # a name that no file can have
        known = False
    if not known:
        raise RefusedRequest(404, f"{path[:200]!r} is no file of the documents that are served here")
    # A browser opens no PDF in a sandbox, and runs none of its scripts on this page's behalf.
    policy = _CLOSED if file.suffix.lower() == ".pdf" else f"{_CLOSED}; sandbox"
    kind = "inline" if file.suffix.lower() in _SHOWN else "attachment"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return FileResponse(file, headers=headers, filename=file.name, content_disposition_type=kind)
