"""Tokenizers: text ↔ ids. Three ways to have one: a Hugging Face folder, plain bytes, or one learnt from texts.

Knows nothing of protocols: whoever calls says which strings are special.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.core.errors import DataError, SettingError
from coseek.core.hub import missing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD = "<|pad|>"
END = "<|end|>"
SMALLEST_VOCABULARY = 256
"""Byte-level BPE can write any text only when it has every byte."""


class HfTokenizer:
    """A Hugging Face fast tokenizer behind the `Tokenizer` border.

    Works on the Rust tokenizer itself, so that nothing is added, truncated, padded, skipped or cleaned up, whatever
    the folder's settings say.
    """

    def __init__(self, fast: "PreTrainedTokenizerFast", source: str = "this tokenizer") -> None:
        from tokenizers import Tokenizer as RustTokenizer

        eos_id = fast.eos_token_id
        if not isinstance(eos_id, int):
            raise DataError(f'{source} names no end-of-text token; set "eos_token" in its tokenizer_config.json')
        self.fast = fast
        self.eos_id: int = eos_id
        # Two copies rather than one that is switched to and fro: `fast` belongs to the caller and stays as it is.
        self._ours = RustTokenizer.from_str(fast.backend_tokenizer.to_str())
        self._theirs = RustTokenizer.from_str(fast.backend_tokenizer.to_str())
        for rust in (self._ours, self._theirs):
            rust.no_truncation()
            rust.no_padding()
        self._theirs.encode_special_tokens = True
        added = self._ours.get_added_tokens_decoder().values()
        # `encode_special_tokens` spares only tokens marked special; Qwen marks <think> and <tool_call> as not special.
        self._unmarked = _alternatives([token.content for token in added if not token.special])

    @classmethod
    def load(cls, folder: Path) -> "HfTokenizer":
        """Open the tokenizer of a Hugging Face folder."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        if not folder.is_dir():
            raise DataError(missing("model folder", folder))
        try:
            fast = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise DataError(f"{folder} holds no tokenizer that can be opened: {_first_line(error)}") from None
        if not isinstance(fast, PreTrainedTokenizerFast):
            raise DataError(f"{folder} holds a slow tokenizer; a fast one is needed, with a tokenizer.json")
        return cls(fast, source=str(folder))

    @property
    def size(self) -> int:
        """One more than the largest id, added tokens included."""
        return max(self._ours.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str) -> list[int]:
        return list(self._ours.encode(text, add_special_tokens=False).ids)

    def encode_data(self, text: str) -> list[int]:
        if self._unmarked is None:
            return list(self._theirs.encode(text, add_special_tokens=False).ids)
        ids: list[int] = []
        for piece in _cut_inside(self._unmarked, text):
            ids += self._theirs.encode(piece, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._ours.decode(list(ids), skip_special_tokens=False))

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a model folder."""
        self.fast.save_pretrained(folder)


class ByteTokenizer:
    """Ids are UTF-8 bytes, then the end of text (256), then the given special tokens. Needs no library."""

    eos_id = 256

    def __init__(self, special_tokens: Sequence[str] = ()) -> None:
        self._special_ids = {token: self.eos_id + place for place, token in enumerate((END, *special_tokens))}
        self._bytes = {byte: bytes((byte,)) for byte in range(self.eos_id)}
        self._bytes |= {ident: token.encode() for token, ident in self._special_ids.items()}
        self._pattern = _alternatives(list(self._special_ids))
        self.size = self.eos_id + len(self._special_ids)

    def encode(self, text: str) -> list[int]:
        assert self._pattern is not None
        ids: list[int] = []
        done = 0
        for found in self._pattern.finditer(text):
            ids += [*text[done : found.start()].encode(), self._special_ids[found.group()]]
            done = found.end()
        return [*ids, *text[done:].encode()]

    def encode_data(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Bytes that are not UTF-8 become U+FFFD, as every byte-level tokenizer does it; unknown ids say nothing."""
        return b"".join(self._bytes.get(ident, b"") for ident in ids).decode(errors="replace")


def train_tokenizer(texts: Iterable[str], special_tokens: Sequence[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """Learn a byte-level BPE; the same texts give the same tokenizer.

    Ids: padding 0, end of text 1, `special_tokens` in order, then bytes and merges up to `vocab_size` in all
    (fewer when the texts offer no more merges). No space is put in front of the text. Any text can be written with it.
    """
    from tokenizers import Tokenizer as RustTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [PAD, END, *special_tokens]
    smallest = SMALLEST_VOCABULARY + len(specials)
    if vocab_size < smallest:
        raise SettingError(f"a vocabulary of {vocab_size} is too small; bytes and special tokens alone need {smallest}")
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=rust,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(special_tokens),
        clean_up_tokenization_spaces=False,
    )
    return fast


def _alternatives(tokens: Sequence[str]) -> re.Pattern[str] | None:
    """Matches any of the tokens, the longest first."""
    if not tokens:
        return None
    return re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))


def _cut_inside(pattern: re.Pattern[str], text: str) -> list[str]:
    """Cut the text after the first character of every match, so that no piece holds a whole one."""
    pieces, done = [], 0
    place = pattern.search(text)
    while place is not None:
        cut = place.start() + 1
        pieces.append(text[done:cut])
        done = cut
        place = pattern.search(text, cut)
    return [*pieces, text[done:]]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
