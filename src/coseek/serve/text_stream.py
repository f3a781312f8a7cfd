"""Text stream: the text of a turn while its tokens are sampled. An incomplete character is held back."""

from collections.abc import Sequence

from coseek.models.model import Tokenizer
from coseek.models.stop_strings import REPLACEMENT

_WINDOW = 16
"""Ids from which the decoded window is shortened."""


class TextStream:
    """Decodes a turn piece by piece. The pieces joined are the decoding of all its ids.

    (Except for a tokenizer that decodes unfinished characters of byte tokens as one with what stands before them.)
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        """The last ids: decoded together, since a character may span tokens and a decoder may look back by one."""
        self._told = 0
        """Characters of the window's text that were returned."""
        self._told_in_all = 0

    def add(self, ids: Sequence[int]) -> str:
        """The text that is certain with these further ids."""
        self._window += ids
        text = self._tokenizer.decode(self._window)
        certain = text.rstrip(REPLACEMENT)
        new = certain[self._told :]
        self._told += len(new)
        self._told_in_all += len(new)
        if certain == text and len(self._window) >= _WINDOW and (last := self._tokenizer.decode(self._window[-1:])):
            self._window, self._told = self._window[-1:], len(last)  # an id without text would not be looked back at
        return new

    def rest(self, ids: Sequence[int]) -> str:
        """What is left of the text of the whole turn `ids`."""
        return self._tokenizer.decode(ids)[self._told_in_all :]
