"""Digests: whether two runs left the same files."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def timeless(row: Mapping[str, T]) -> dict[str, T]:
    """A row of metrics without its times."""
    return {name: value for name, value in row.items() if not name.endswith("_s")}


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file of a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def shown(by_name: dict[str, str]) -> str:
    """A short digest of all of them."""
    return digest(repr(sorted(by_name.items())).encode())
