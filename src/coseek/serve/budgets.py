"""Budgets: bytes that requests hold together, and values of one request's JSON. Knows no HTTP."""

import re
from collections.abc import MutableMapping
from typing import cast

from coseek.serve.contract import RefusedRequest

HELD = "coseek.held"
"""Key of the ASGI scope: the bytes that its request holds."""
_TEXT = re.compile(rb'"[^"]*"')


class HeldBytes:
    """Bytes of bodies and answers that are in memory, over all requests."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def take(self, scope: MutableMapping[str, object], count: int) -> None:
        """Count bytes towards a request. Raises `RefusedRequest` (503) where there is no room."""
        if self.held + count > self.most:
            raise RefusedRequest(503, "the service holds as much as it may already; retry later", retry_after_s=1)
        self.held += count
        scope[HELD] = cast(int, scope.get(HELD, 0)) + count

    def free(self, scope: MutableMapping[str, object]) -> None:
        """Forget a request that has ended."""
        self.held -= cast(int, scope.pop(HELD, 0))


def check_values(body: bytes, most: int) -> None:
    """Refuse (413) JSON of more than `most` values: reading some millions takes seconds, in which nothing else runs.

    Values are counted without reading them: texts, and what stands behind a comma or an opening bracket.
    """
    if len(body) <= most:
        return
    if sum(map(body.count, (b",", b"[", b"{"))) > most:  # commas inside of texts, too
        bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
        texts = bare.count(b'"') // 2
        if texts <= most:
            bare = _TEXT.sub(b"", bare)
        if texts > most or sum(map(bare.count, (b",", b"[", b"{"))) > most:
            raise RefusedRequest(413, f"the request holds more than {most} values; send less at a time")
