"""Namer: draws the names of a world."""

import random

from coseek.lab.world.lexicon import Lexicon
from coseek.lab.world.names import TITLED

VERBATIM = 0.6
"""Share of look-alike titles that repeat a whole title rather than one word."""


class Namer:
    """Draws names that are unique within a kind, and aliases that are unique overall."""

    def __init__(self, lexicon: Lexicon, rng: random.Random, lookalikes: float) -> None:
        self._lexicon = lexicon
        self._rng = rng
        self._lookalikes = lookalikes
        self._titles: list[tuple[str, str]] = []
        self._taken: set[tuple[str, str]] = set()
        self._names: set[str] = set()

    def name(self, kind: str) -> str:
        """A name that is new for this kind; a title may repeat that of another kind."""
        name = self._lookalike(kind) if kind in TITLED and self._rng.random() < self._lookalikes else ""
        return self._keep(kind, name or self._fresh(kind))

    def alias(self, kind: str) -> str:
        """A name that nothing else has."""
        return self._keep(kind, self._fresh(kind))

    def _keep(self, kind: str, name: str) -> str:
        self._taken.add((kind, name))
        self._names.add(name)
        if kind in TITLED:
            self._titles.append((kind, name))
        return name

    def _fresh(self, kind: str) -> str:
        # Terminates: every pool is larger than the largest world's names and aliases.
        while (name := self._lexicon.draw_name(kind, self._rng)) in self._names:
            pass
        return name

    def _lookalike(self, kind: str) -> str:
        """Another title, or one word of it with another word; '' when none fits."""
        if not self._titles:
            return ""
        other_kind, name = self._rng.choice(self._titles)
        if self._rng.random() >= VERBATIM:
            adjective, noun = self._lexicon.draw_name(kind, self._rng).split()
            first, last = name.split()
            name = f"{first} {noun}" if self._rng.random() < 0.5 else f"{adjective} {last}"
            return "" if name in self._names else name
        return "" if other_kind == kind or (kind, name) in self._taken else name
