"""Cross-encoder: reads a query and a passage together and says how well they fit. Any sentence-transformers folder.

Importing this module imports neither torch nor sentence-transformers: opening one does. Nothing is ever downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from coseek.core.errors import DataError, RetrieverError
from coseek.core.hub import missing
from coseek.retrieval.factory import require_library
from coseek.retrieval.vectors.encoder import quiet


class _Tokenizer(Protocol):
    """What is used of a tokenizer."""

    sep_token: str | None
    all_special_tokens: list[str]

    def tokenize(self, text: str) -> list[str]: ...


class _CrossEncoderModel(Protocol):
    """What is used of a `sentence_transformers.CrossEncoder`."""

    tokenizer: _Tokenizer
    max_seq_length: int | None
    num_labels: int

    def predict(
        self, inputs: list[tuple[str, str]], *, batch_size: int, show_progress_bar: bool, convert_to_numpy: bool
    ) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """A loaded cross-encoder."""

    model: _CrossEncoderModel
    folder: Path

    @classmethod
    def open(cls, folder: Path, device: str, max_tokens: int | None = None) -> "CrossEncoder":
        """Load the folder onto a device (`cpu`, `cuda` …). Pairs are cut at `max_tokens`, or where the folder says."""
        check_folder(folder)
        require_library("sentence_transformers", "a cross-encoder", "dense")
        import sentence_transformers

        try:
            with quiet():
                loaded = sentence_transformers.CrossEncoder(str(folder), device=device, local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise DataError(f"{folder} holds no cross-encoder that can be opened: {first}") from None
        model = cast(_CrossEncoderModel, loaded)
        if model.num_labels != 1:
            raise DataError(f"{folder} gives {model.num_labels} numbers a pair; a reranker gives one")
        if max_tokens is not None:
            model.max_seq_length = max_tokens
        return cls(model, folder)

    @property
    def separator(self) -> str:
        """What parts the fields of a query for this model."""
        return self.model.tokenizer.sep_token or "[SEP]"

    def count(self, text: str) -> int:
        """Tokens of a text, special tokens left out."""
        return len(self.model.tokenizer.tokenize(text))

    def scores(self, query: str, passages: Sequence[str], batch_size: int) -> list[float]:
        """One score a passage, through the activation that the folder names; higher is better.

        The library sorts the pairs by length, so that little is padded. Special tokens that someone typed into a
        passage are ordinary characters, as they are in a query, but for the separator, which views put there.
        """
        if not passages:
            return []
        specials = [token for token in self.model.tokenizer.all_special_tokens if token]
        asked = _disarmed(query, [token for token in specials if token != self.separator])
        pairs = [(asked, _disarmed(passage, specials)) for passage in passages]
        scores = self.model.predict(pairs, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
        if not np.isfinite(scores).all():
            raise RetrieverError(f"the cross-encoder {self.folder} gave a score that is not a number")
        return [float(score) for score in scores]


def check_folder(folder: Path) -> None:
    """Refuse what is no model folder, before torch is woken to say the same."""
    if not folder.is_dir():
        raise DataError(missing("cross-encoder folder", folder))
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is not a cross-encoder folder: it has no config.json")


def _disarmed(text: str, tokens: Sequence[str]) -> str:
    for token in tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text
