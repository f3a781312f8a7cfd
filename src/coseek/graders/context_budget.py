"""Context budget: the passages that a generator reads, limited in number and tokens.

Without a tokenizer a token is a run of letters and digits, a single punctuation mark, or one character of a script
without spaces. A tokenizer, where one is named, counts for all generators: contexts of two agents are compared at the
same budget, so two vocabularies must not count them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from coseek.core.prompt_file import one_line
from coseek.data.passage import Passage
from coseek.models.model import Tokenizer

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Chinese characters."""
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


@dataclass(frozen=True)
class ContextBudget:
    """Limits of passages and of the tokens in their titles and texts."""

    max_tokens: int
    max_passages: int | None = None
    tokenizer: Tokenizer | None = None
    """Replaces the rule."""

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.tokenizer.encode_data(text)) if self.tokenizer else len(_TOKEN.findall(text))

    def cut(self, text: str, most: int) -> str:
        """The first `most` tokens of a text."""
        if self.tokenizer is not None:
            ids = self.tokenizer.encode_data(text)
            return text if len(ids) <= most else self.tokenizer.decode(ids[:most]).rstrip("\ufffd")
        found = list(islice(_TOKEN.finditer(text), max(most, 0) + 1))
        return text if len(found) <= most else text[: found[most - 1].end() if most > 0 else 0]

    def fill(self, passages: Sequence[Passage]) -> tuple[tuple[Passage, ...], int]:
        """The passages that fit, in order, each on one line, and how many tokens they take.

        The first passage that does not fit is truncated, and none follows it. It is left out where no word after its
        title fits. Passages with equal title and text are included once.
        """
        given: list[Passage] = []
        seen: set[tuple[str, str]] = set()
        used = 0
        for passage in passages:
            title, text = one_line(passage.title), one_line(passage.text)
            if (title, text) in seen:
                continue
            if len(given) == self.max_passages:
                break
            seen.add((title, text))
            left = self.max_tokens - used - self.count(title)
            shown = self.cut(text, left) if left > 0 else ""
            if left < 0 or (text and not shown):
                break
            given.append(replace(passage, title=title, text=shown))
            used += self.count(title) + self.count(shown)
            if shown != text:
                break
        return tuple(given), used
