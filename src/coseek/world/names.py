"""The word pools of laptop worlds, and a namer that draws from them.

The pools do not depend on a seed: worlds share their words and differ in their facts. A name has one to three words,
each a token of the laptop tokenizer.
"""

import random


def _blend(starts: str, ends: str) -> tuple[str, ...]:
    """Every start with every end: pseudo-words that no model knows."""
    return tuple(start + end for start in starts.split() for end in ends.split())


def _words(words: str) -> tuple[str, ...]:
    return tuple(words.split())


FIRST_NAMES = _blend("Al Bel Cor Dar El Fen Gal Hal Jor Kel Lor Mar Nor Syl", "an eth ia o ric wen us ina or yn")
LAST_NAMES = _blend(
    "Ash Bran Carl Dun Fair Gran Hart Kirk Lang Mor Pem Rad Stan Thorn Wal Whit Brad Lind",
    "ford well by ton ley ham worth wick ridge dale",
)
PLACES = _blend(
    "Ar Bor Cas Del Gor Hav Ist Jul Kar Lam Nov Ost Pal Rav Sel Tul Ulm Ver Yar Zin",
    "avo berg enta inna mere osk polis stad una vik",
)
COUNTRIES = _blend("Brel Dran Esk Fal Kest Mald Quor Sard Vant Zel", "avia onia istan uria mark land")
RIVERS = _blend("Aln Dwy Irv Oss Teg Wye", "der lin mel ra sey tha")
CURRENCIES = _blend("Cru Dol Flo Pes Tal", "na rin dar ka")
LANGUAGES = _blend("Bak Chor Jed Nuk Wex", "esh ish ari onic")
YEARS = tuple(str(year) for year in range(1880, 1980))
"""One hundred values: each is a token, and their order can be learnt."""

CITY_FORMS = ("New", "Port", "Upper", "Saint", "Fort", "Little")
SCHOOL_FORMS = ("College", "Academy", "Institute", "Polytechnic", "Seminary", "Conservatory")
ADJECTIVES = _words(
    "Silver Golden Iron Copper Crimson Amber Scarlet Violet Azure Ivory Hollow Silent Broken Frozen Burning "
    "Hidden Distant Ancient Gentle Bitter Velvet Crystal Marble Paper Wooden Lonely Restless Wandering Sleeping "
    "Dancing Shining Falling Rising Endless Empty Narrow Quiet Sudden Wild Tender Noble Humble Brave Clever "
    "Secret Sacred Painted Forgotten Twisted Crooked Shallow Pale Dark Bright Cold Warm Lost Blue Green Grey "
    "White Black Red Winter Summer Autumn Northern Southern Eastern Western"
)
NOUNS = _words(
    "Gate Tower Harbor Bridge Garden Lantern Mirror Compass Anchor Feather Candle Crown Dagger Shield Hammer "
    "Anvil Needle Thread Ribbon Button Pocket Ladder Window Chimney Cellar Attic Orchard Meadow Valley Canyon "
    "Glacier Island Lagoon Desert Forest Thicket Willow Cedar Maple Poplar Thistle Clover Orchid Lily Falcon "
    "Heron Raven Sparrow Swallow Otter Badger Wolf Fox Tiger Lion Panther Stallion Whale Dolphin Salmon Spider "
    "Beetle Moth Comet Planet Meteor Eclipse Horizon Thunder Tempest Breeze Shadow Ember Flame Spark Cinder Echo "
    "Whisper Melody Ballad Anthem Chorus Drum Fiddle Trumpet Violin Puzzle Riddle Labyrinth Voyage Journey "
    "Pilgrim Stranger Hunter Sailor Soldier Miller Weaver Baker Mason Potter Tailor Shepherd Jester Prophet"
)

LITERALS: dict[str, tuple[str, ...]] = {"year": YEARS, "river": RIVERS, "currency": CURRENCIES, "language": LANGUAGES}
"""Values that are not entities, by target."""

VERBATIM = 0.6
"""Share of look-alike titles that repeat a whole title rather than one word."""


class Namer:
    """Draws names that are unique within a kind, and aliases that are unique overall."""

    def __init__(self, rng: random.Random, lookalikes: float) -> None:
        self._rng = rng
        self._lookalikes = lookalikes
        self._titles: list[tuple[str, str]] = []
        self._taken: set[tuple[str, str]] = set()
        self._names: set[str] = set()

    def name(self, kind: str) -> str:
        """A name that is new for this kind; a title may repeat that of another kind."""
        name = self._lookalike(kind) if kind in _DRAWS_TITLE and self._rng.random() < self._lookalikes else ""
        return self._keep(kind, name or self._fresh(kind))

    def alias(self, kind: str) -> str:
        """A name that nothing else has."""
        return self._keep(kind, self._fresh(kind))

    def _keep(self, kind: str, name: str) -> str:
        self._taken.add((kind, name))
        self._names.add(name)
        if kind in _DRAWS_TITLE:
            self._titles.append((kind, name))
        return name

    def _fresh(self, kind: str) -> str:
        # Terminates: every pool is larger than the largest world's names and aliases.
        while (name := draw_name(kind, self._rng)) in self._names:
            pass
        return name

    def _lookalike(self, kind: str) -> str:
        """Another title, or one word of it with another word; '' when none fits."""
        if not self._titles:
            return ""
        other_kind, name = self._rng.choice(self._titles)
        if self._rng.random() >= VERBATIM:
            adjective, noun = draw_name(kind, self._rng).split()
            first, last = name.split()
            name = f"{first} {noun}" if self._rng.random() < 0.5 else f"{adjective} {last}"
            return "" if name in self._names else name
        return "" if other_kind == kind or (kind, name) in self._taken else name


def draw_name(kind: str, rng: random.Random) -> str:
    """A name or literal value of this kind."""
    if kind == "city":
        place = rng.choice(PLACES)
        return place if rng.random() < 0.3 else f"{rng.choice(CITY_FORMS)} {place}"
    return " ".join(rng.choice(pool) for pool in _POOLS[kind])


_DRAWS_TITLE = ("film", "book", "band", "company")
_POOLS: dict[str, tuple[tuple[str, ...], ...]] = {
    **{kind: (values,) for kind, values in LITERALS.items()},
    "person": (FIRST_NAMES, LAST_NAMES),
    "university": (PLACES, SCHOOL_FORMS),
    "country": (COUNTRIES,),
    **dict.fromkeys(_DRAWS_TITLE, (ADJECTIVES, NOUNS)),
}
