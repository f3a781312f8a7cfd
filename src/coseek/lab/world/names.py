"""The pools of names in the laptop lexicon: its worlds share their words and differ in their facts."""


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

TITLED = ("film", "book", "band", "company")
"""Kinds whose names are two words, as titles are."""
LITERALS: dict[str, tuple[str, ...]] = {"year": YEARS, "river": RIVERS, "currency": CURRENCIES, "language": LANGUAGES}
"""Values that are not entities, by target."""

POOLS: dict[str, tuple[tuple[str, ...], ...]] = {
    **{kind: (values,) for kind, values in LITERALS.items()},
    "person": (FIRST_NAMES, LAST_NAMES),
    "city": (PLACES,),
    "university": (PLACES, SCHOOL_FORMS),
    "country": (COUNTRIES,),
    **dict.fromkeys(TITLED, (ADJECTIVES, NOUNS)),
}
"""Kind or literal → the pools of its words, in order."""
