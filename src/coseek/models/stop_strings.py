"""Stop strings: detects whether a token completes a stop string, usually by one table look-up."""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from coseek.models.model import Tokenizer

REPLACEMENT = "\ufffd"


class StopStrings:
    """Stop strings for a tokenizer. `at_once[id]`: the token contains a whole stop string. `maybe[id]`: the token may
    contain the end of one, so that the text must be checked. A stop string may span tokens and end inside one; that
    token is kept whole."""

    def __init__(
        self, stops: Sequence[str], tokenizer: Tokenizer, vocabulary: int, texts: Sequence[str] | None = None
    ) -> None:
        """`texts`: those of all tokens, where they are known (`token_texts`)."""
        if not all(stops):
            raise ValueError("a stop string is empty; every turn would end before it began")
        self._stops = tuple(stops)
        self._tokenizer = tokenizer
        self._reach = max((len(stop.encode()) for stop in stops), default=0)
        texts = token_texts(tokenizer, vocabulary) if texts is None else texts
        ends = {stop[-1] for stop in stops}
        self.at_once = np.array([any(stop in text for stop in stops) for text in texts], dtype=np.bool_)
        # A token of a partial character decodes to U+FFFD, so its end is visible only in context.
        self.maybe = np.array([any(end in text for end in ends) for text in texts], dtype=np.bool_)
        if any(ord(end) > 127 for end in ends):
            self.maybe |= np.array([REPLACEMENT in text for text in texts], dtype=np.bool_)

    def completed(self, ids: Sequence[int]) -> bool:
        """Whether the last token completes a stop string. No earlier token may have completed one."""
        if self.at_once[ids[-1]]:
            return True
        if not self.maybe[ids[-1]]:
            return False
        # A token has at least one byte, so a stop string spans at most its length in tokens.
        text = self._tokenizer.decode(list(ids[-self._reach :]))
        return any(stop in text for stop in self._stops)


def token_texts(tokenizer: Tokenizer, vocabulary: int) -> list[str]:
    """The text of each token alone."""
    return [tokenizer.decode((ident,)) for ident in range(vocabulary)]


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
