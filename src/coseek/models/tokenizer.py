"""Tokenizers: text ↔ ids, from a Hugging Face folder, as plain bytes, or trained on texts.

Callers supply the special strings of protocols.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, read_json_object
from coseek.models.model import Tokenizer
from coseek.models.model_folder import library_reads, missing, shipped_models, vocabulary_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


PAD = "<|pad|>"
END = "<|end|>"
SMALLEST_VOCABULARY = 256
"""Byte-level BPE needs all 256 bytes to encode any text."""
_MEDIA = re.compile("image|audio|video|vision|sound", re.IGNORECASE)
"""Names of placeholder tokens for images and sound."""


class HfTokenizer:
    """A Hugging Face fast tokenizer with the `Tokenizer` interface. It uses the Rust tokenizer directly, so that no
    setting of the folder adds, truncates, pads or cleans up anything."""

    def __init__(self, fast: "PreTrainedTokenizerFast", source: str = "this tokenizer") -> None:
        from tokenizers import Tokenizer as RustTokenizer

        eos_id = fast.eos_token_id
        if not isinstance(eos_id, int):
            raise DataError(f'{source} names no end-of-text token; set "eos_token" in its tokenizer_config.json')
        self.fast, self.source = fast, source
        self.eos_id: int = eos_id
        # Two copies, since `fast` belongs to the caller and must not change.
        serialised = fast.backend_tokenizer.to_str()
        self._trusted, self._untrusted = RustTokenizer.from_str(serialised), RustTokenizer.from_str(serialised)
        for rust in (self._trusted, self._untrusted):
            rust.no_truncation()
            rust.no_padding()
        self._untrusted.encode_special_tokens = True
        added_entries = self._trusted.get_added_tokens_decoder().values()
        # `encode_special_tokens` covers only tokens marked special; Qwen marks <think> and <tool_call> as not special.
        # Gemma's line breaks are added tokens, too, and stay whole.
        not_special = [token.content for token in added_entries if not token.special and not token.content.isspace()]
        # Matches the first character only, so that overlapping tokens are all found.
        starts = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in not_special)
        self._not_special = re.compile(starts) if starts else None

    @classmethod
    def load(cls, folder: Path) -> "HfTokenizer":
        """Open the tokenizer of a Hugging Face folder."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        if not folder.is_dir():
            raise DataError(missing("model folder", folder, known=shipped_models()))
        with library_reads(folder, "tokenizer"):
            fast = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if not isinstance(fast, PreTrainedTokenizerFast):
            raise DataError(f"{folder} holds a slow tokenizer; a fast one is needed, with a tokenizer.json")
        config_file = folder / "tokenizer_config.json"
        config = read_json_object(config_file, foreign=True) if config_file.is_file() else {}
        # The library drops this setting if it opens another class than the one that the folder names (DeepSeek-V3).
        if config.get("add_bos_token") is True and list(fast("").input_ids)[:1] != [fast.bos_token_id]:
            fast.add_bos_token = True  # type: ignore[misc]  # its setter does not follow its getter
        tokenizer = cls(fast, source=str(folder))
        tokenizer._check_ids(folder / "tokenizer.json")
        if rows := vocabulary_size(folder):
            tokenizer.check_embedded(rows)
        return tokenizer

    @property
    def size(self) -> int:
        """One more than the largest id, including added tokens."""
        return max(self._trusted.get_vocab(with_added_tokens=True).values()) + 1

    def _check_ids(self, file: Path) -> None:
        """Raise `DataError` for an added token whose id in the library differs from the file, as after a gap in the
        ids: the token would get the embedding of another one."""
        for content, token in (added_tokens(file) or {}).items():
            loaded, ident = self._trusted.token_to_id(content), token.get("id")
            if loaded is not None and loaded != ident:
                raise DataError(
                    f"{file}: the added token {content!r} has the id {ident}, and would be loaded with {loaded}, since "
                    "the ids before it have gaps; add tokens for these, or fetch the tokenizer again"
                )

    def check_embedded(self, rows: int) -> None:
        """Raise `DataError` if the tokenizer has more tokens than an embedding with `rows` rows.

        Three kinds of special tokens may lie beyond it, since no text is encoded as one of them: placeholders of images
        and sound, which models that read text alone keep (Gemma 3 1B), padding, and what the library adds for an
        architecture (an unknown-token of Qwen2) though the folder does not have it.
        """
        if self.size <= rows:
            return
        special = {token.content for token in self._trusted.get_added_tokens_decoder().values() if token.special}
        stored = added_tokens(Path(self.source) / "tokenizer.json")
        specials = special if stored is None else {name for name, token in stored.items() if token.get("special")}
        optional_tokens = {token for token in special if _MEDIA.search(token) or token not in specials}
        optional_tokens |= special & {str(self.fast.pad_token)}
        vocab = self._trusted.get_vocab(with_added_tokens=True)
        needed = 1 + max(ident for token, ident in vocab.items() if token not in optional_tokens)
        if needed > rows:
            raise DataError(
                f"{self.source}: its tokenizer has {needed} tokens, and the model embeds {rows}; resize the embeddings "
                f"(model.resize_token_embeddings({needed})) and train the new ones, or fetch the tokenizer again"
            )

    def encode(self, text: str) -> list[int]:
        return list(self._trusted.encode(text, add_special_tokens=False).ids)

    def encode_data(self, text: str) -> list[int]:
        """See `Tokenizer`. The text is split after the first character of every token that is not special, so that no
        piece contains one."""
        cuts = [match.end() for match in self._not_special.finditer(text)] if self._not_special else []
        ids: list[int] = []
        for start, end in pairwise([0, *cuts, len(text)]):
            ids += self._untrusted.encode(text[start:end], add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._trusted.decode(list(ids), skip_special_tokens=False))

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files into a model folder."""
        self.fast.save_pretrained(folder)


class ByteTokenizer:
    """Byte-level ids: UTF-8 bytes, end of text (256), then special tokens. Needs no library."""

    eos_id = 256

    def __init__(self, special_tokens: Sequence[str] = ()) -> None:
        self._special_ids = {token: self.eos_id + index for index, token in enumerate((END, *special_tokens))}
        self._bytes = {byte: bytes((byte,)) for byte in range(self.eos_id)}
        self._bytes |= {ident: token.encode() for token, ident in self._special_ids.items()}
        self._special_pattern = re.compile(f"({alternatives(list(self._special_ids)).pattern})")
        self.size = self.eos_id + len(self._special_ids)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self._special_pattern.split(text):
            ids += [self._special_ids[piece]] if piece in self._special_ids else piece.encode()
        return ids

    def encode_data(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Invalid UTF-8 becomes U+FFFD; unknown ids are dropped."""
        return b"".join(filter(None, map(self._bytes.get, ids))).decode(errors="replace")


def train_tokenizer(
    texts: Iterable[str], special_tokens: Sequence[str], vocab_size: int, single_digits: bool = False
) -> "PreTrainedTokenizerFast":
    """Train a byte-level BPE tokenizer, deterministically. Ids: padding 0, end of text 1, `special_tokens` in order,
    then bytes and merges, at most `vocab_size` in all. No space is prepended. Any text can be encoded. With
    `single_digits` each digit is a token, the first with the space before it. A `vocab_size` that is too small is a
    `SettingError`."""
    from tokenizers import Regex, Tokenizer as RustTokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    specials = [PAD, END, *special_tokens]
    smallest = SMALLEST_VOCABULARY + len(specials)
    if vocab_size < smallest:
        raise SettingError(f"a vocabulary of {vocab_size} is too small; bytes and special tokens alone need {smallest}")
    rust = RustTokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if single_digits:
        digits = pre_tokenizers.Split(Regex(" ?[0-9]"), behavior="isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence([digits, rust.pre_tokenizer])
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(special_tokens),
        clean_up_tokenization_spaces=False,
    )


def added_tokens(file: Path) -> dict[str, JsonObject] | None:
    """The added tokens of a tokenizer.json by their text; `None` if there is no such file."""
    if not file.is_file():
        return None
    rows = read_json_object(file, foreign=True).get("added_tokens")
    tokens = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {text: token for token in tokens if isinstance(text := token.get("content"), str)}


def alternatives(tokens: Sequence[str]) -> re.Pattern[str]:
    """A pattern that matches any of the tokens, the longest first; without tokens it matches nothing."""
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


REPLACEMENT = "\ufffd"


class StopStrings:
    """Stop strings for a tokenizer. `maybe[id]`: the token may contain the end of one, so that the text must be
    checked. A stop string may span tokens and end inside one; that token is kept whole."""

    def __init__(self, stops: Sequence[str], tokenizer: Tokenizer, vocabulary: int) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty; every turn would end before it began")
        self._stops = tuple(stops)
        self._tokenizer = tokenizer
        self._max_stop_bytes = max((len(stop.encode()) for stop in stops), default=0)
        texts = [tokenizer.decode((ident,)) for ident in range(vocabulary)]
        ends = {stop[-1] for stop in stops}
        # A token of a partial character decodes to U+FFFD, so its end is visible only in context.
        self.maybe = np.array([any(end in text for end in ends) for text in texts], dtype=np.bool_)
        if any(ord(end) > 127 for end in ends):
            self.maybe |= np.array([REPLACEMENT in text for text in texts], dtype=np.bool_)

    def completed(self, ids: Sequence[int]) -> bool:
        """Whether the last token completes a stop string. No earlier token may have completed one."""
        if not self.maybe[ids[-1]]:
            return False
        # A token has at least one byte, so a stop string spans at most its length in tokens.
        text = self._tokenizer.decode(list(ids[-self._max_stop_bytes :]))
        return any(stop in text for stop in self._stops)


def stopped_after(ids: Sequence[int], stops: Sequence[str], tokenizer: Tokenizer) -> int | None:
    """The number of tokens up to the one that completes the first stop string; `None` without one. The same rule as in
    `StopStrings`, for complete turns."""

    def stopped(count: int) -> bool:
        text = tokenizer.decode(ids[:count])
        return any(stop in text for stop in stops)

    if not stopped(len(ids)):
        return None
    if not stopped(len(ids) - 1):
        return len(ids)
    return bisect_left(range(len(ids)), True, key=stopped)
