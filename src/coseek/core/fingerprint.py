"""Fingerprint: tells a model folder from another, or from what it was, without reading gigabytes."""

import hashlib
from pathlib import Path

_CHUNKS = 64
_CHUNK_BYTES = 65_536
_KINDS = (".json", ".safetensors", ".bin", ".txt", ".jinja", ".model")


TOKENIZER = "*token*"
"""Names of the files that a tokenizer is read from."""


def fingerprint(folder: Path, names: str = "*") -> str:
    """A digest of a model's files: names, sizes, and up to 64 pieces of 64 KiB spread over each. `names` is a pattern
    for the files that count.

    Not the whole of every file: models are opened often, and have gigabytes. Retrained weights differ nearly
    everywhere, so pieces tell them apart.
    """
    sha = hashlib.sha256()
    for path in sorted(path for path in folder.rglob(names) if path.suffix in _KINDS and path.is_file()):
        size = path.stat().st_size
        sha.update(f"{path.relative_to(folder).as_posix()}:{size}\n".encode())
        with path.open("rb") as file:
            for chunk in range(_CHUNKS):
                file.seek(max(0, size - _CHUNK_BYTES) * chunk // (_CHUNKS - 1))
                sha.update(file.read(_CHUNK_BYTES))
                if size <= _CHUNK_BYTES:
                    break
    return sha.hexdigest()


def digest_of(*parts: str) -> str:
    """A digest of several texts in order; no two lists of texts share one by where they are parted."""
    sha = hashlib.sha256()
    for part in parts:
        data = part.encode()
        sha.update(len(data).to_bytes(8, "big") + data)
    return sha.hexdigest()
