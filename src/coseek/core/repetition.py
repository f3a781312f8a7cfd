"""Repetition: text whose words go round in circles, shortened for display.

Small models end in such loops when a question lies outside what they know. What is stored, scored or trained on is
never shortened.
"""

import re

from coseek.core.plain_text import CJK

LONGEST = 12
"""Words of the longest unit that is recognised."""
TIMES = 4
"""Number of repetitions in a row from which on a text counts as a loop."""
LEAST = 8
"""Minimum number of words of a loop: "no, no, no, no" has fewer."""
_PIECE = re.compile(rf"[\W_]+|[{CJK}]|[^\W_{CJK}]{{1,100}}")
"""A word, or what stands between words."""
MORE = "…"


class RepetitionFilter:
    """Passes text on as it comes, and writes an ellipsis for the words of a loop from its `TIMES`th round on."""

    def __init__(self) -> None:
        self.looped = False
        """Whether there was a loop so far."""
        self._rest = ""
        self._words: list[str] = []
        self._same = [0] * (LONGEST + 1)
        """For each period the number of latest words that equal the word that many places before."""
        self._inside = False
        self._between = ""
        """What stands before the next word, where it is not known yet whether that goes on with the loop."""

    def add(self, text: str) -> str:
        """The text to show now. A word waits until the next piece, since it may go on."""
        pieces = _PIECE.findall(self._rest + text)
        self._rest = pieces.pop() if pieces and pieces[-1][-1].isalnum() else ""
        return "".join(map(self._show, pieces))

    def end(self) -> str:
        """What still waits."""
        rest, self._rest = self._rest, ""
        return (self._show(rest) if rest else "") + self._between

    def _show(self, piece: str) -> str:
        if not piece[0].isalnum():
            if not self._inside:
                return piece
            self._between += piece
            return ""
        was_inside, self._inside = self._inside, self._goes_round(piece.lower())
        between, self._between = self._between, ""
        self.looped = self.looped or self._inside
        if self._inside:
            return "" if was_inside else MORE
        return between + piece

    def _goes_round(self, word: str) -> bool:
        """Whether the text is in a loop with this further word. Numbers alone are a table."""
        for period in range(1, LONGEST + 1):
            is_same = len(self._words) >= period and self._words[-period] == word
            self._same[period] = self._same[period] + 1 if is_same else 0
        self._words = [*self._words[1 - LONGEST :], word]
        return any(
            self._same[period] >= max((TIMES - 1) * period, LEAST - period)
            and not all(number.isdigit() for number in self._words[-period:])
            for period in range(1, LONGEST + 1)
        )


def without_repetition(text: str) -> str:
    """The text with its loops shortened."""
    shown = RepetitionFilter()
    return shown.add(text) + shown.end()


def has_loop(text: str) -> bool:
    """Whether the text has a loop."""
    shown = RepetitionFilter()
    shown.add(text)
    shown.end()
    return shown.looped
