"""Digests of model folders, files and texts."""

import hashlib
from pathlib import Path
from typing import BinaryIO, cast

from coseek.core.strict_json import parse_lenient

_CHUNKS = 64
_CHUNK_BYTES = 65_536
_LARGE, _EDGE_BYTES, _LONGEST_HEAD = 2**24, 1024, 2**27
_KINDS = (".json", ".safetensors", ".bin", ".txt", ".jinja", ".model", ".py")
"""Includes code: with `trust_remote_code`, the folder's own code decides what its weights do."""
TOKENIZER = "*token*"
"""Pattern of tokenizer files."""
CHAT_TEMPLATES = "*.jinja"
"""Pattern of chat templates in files of their own."""


def fingerprint(folder: Path, *names: str) -> str:
    """Return a digest of a model's files: names, sizes, and up to 64 pieces of 64 KiB spread over each file; of large
    safetensors also the first and last KiB of every tensor.

    `names` are glob patterns of the files; default: all. Pieces suffice, since retrained tensors differ nearly
    everywhere.
    """
    sha = hashlib.sha256()
    matches = {path for pattern in names or ("*",) for path in folder.rglob(pattern)}
    for path in sorted(path for path in matches if path.suffix in _KINDS and path.is_file()):
        size = path.stat().st_size
        sha.update(f"{path.relative_to(folder).as_posix()}:{size}\n".encode())
        with path.open("rb") as file:
            for chunk in range(_CHUNKS):
                file.seek(max(0, size - _CHUNK_BYTES) * chunk // (_CHUNKS - 1))
                sha.update(file.read(_CHUNK_BYTES))
                if size <= _CHUNK_BYTES:
                    break
            if size > _LARGE and path.suffix == ".safetensors":
                for start, end in _tensor_spans(file):
                    for offset in (start, max(start, end - _EDGE_BYTES)):
                        file.seek(offset)
                        sha.update(file.read(min(_EDGE_BYTES, end - offset)))
    return sha.hexdigest()


def _tensor_spans(file: BinaryIO) -> list[tuple[int, int]]:
    """Start and end of each tensor in a safetensors file; empty if the header cannot be read."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    try:
        head = cast(dict[str, dict[str, list[int]]], parse_lenient(file.read(min(length, _LONGEST_HEAD)).decode()))
        offsets = [tensor["data_offsets"] for name, tensor in head.items() if name != "__metadata__"]
        return [(8 + length + begin, 8 + length + end) for begin, end in offsets]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def digest_of(*parts: str) -> str:
    """Return a digest of several texts in order. It includes their lengths, so that no two lists concatenate alike."""
    encoded = [part.encode() for part in parts]
    return hashlib.sha256(b"".join([len(data).to_bytes(8, "big") + data for data in encoded])).hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
