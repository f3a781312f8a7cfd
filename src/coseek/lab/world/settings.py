"""Settings of laptop worlds: size and difficulty."""

from typing import Literal

from pydantic import Field, model_validator

from coseek.core.settings import Settings

Split = Literal["train", "dev", "test"]
Size = Literal["tiny", "compact", "small", "large"]
LexiconName = Literal["laptop", "drawn", "held-out"]

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
MAX_HOPS = 4

KINDS = ("person", "film", "book", "band", "company", "city", "university", "country")

_COUNTS: dict[Size, tuple[int, ...]] = {
    "tiny": (100, 45, 45, 32, 32, 28, 16, 8),
    "compact": (300, 130, 130, 95, 95, 80, 50, 24),
    "small": (900, 400, 400, 300, 300, 250, 150, 60),
    "large": (2400, 900, 900, 700, 700, 500, 400, 60),
}
ENTITIES = {size: dict(zip(KINDS, counts, strict=True)) for size, counts in _COUNTS.items()}
"""Size → entities of each kind."""

QUESTIONS: dict[Size, dict[Split, int]] = {
    "tiny": {"train": 400, "dev": 120, "test": 120},
    "compact": {"train": 1500, "dev": 300, "test": 300},
    "small": {"train": 6000, "dev": 1000, "test": 1000},
    "large": {"train": 20000, "dev": 2000, "test": 2000},
}
"""Size → default number of questions of each split."""


class WorldSettings(Settings):
    """The settings of a laptop world. The same settings make the same world, byte for byte."""

    seed: int = 0
    """Seed of the facts."""
    lexicon: LexiconName = "laptop"
    """The words: `laptop` is shared by all laptop worlds; the others have names, relations and wordings drawn by the
    seed. No relation is in both a `drawn` and a `held-out` lexicon."""
    size: Size = "small"
    """tiny 306, compact 904, small 2,760 or large 6,560 entities."""
    train: int | None = Field(default=None, ge=0)
    """Questions in the train split; by default the size's."""
    dev: int | None = Field(default=None, ge=0)
    """Questions in the dev split; by default the size's."""
    test: int | None = Field(default=None, ge=0)
    """Questions in the test split; by default the size's."""
    hop_mix: tuple[float, ...] = (0.25, 0.30, 0.25, 0.20)
    """Weights of 1, 2, 3 and 4 hops among composition questions; a shorter list has no longer chains."""
    comparison: float = Field(default=0.12, ge=0, le=1)
    """Share of questions that compare two entities (which is earlier; are they the same)."""
    constraint: float = Field(default=0.08, ge=0, le=1)
    """Share of questions for the only entity with two given values."""
    lists: float = Field(default=0.0, ge=0, le=1)
    """Share of questions for a list: one relation of two to four entities. An answer with some of the values has F1 and
    no EM."""
    choices: int = Field(default=0, ge=0, le=9)
    """Number of lettered options per question (two for comparisons), one of them right. Searches do not contain them,
    and only a judge decides what is right. 0: no options."""
    paraphrases: int = Field(default=3, ge=1, le=3)
    """Wordings of a relation, in passages and questions; with 1 their words always match."""
    aliases: float = Field(default=0.25, ge=0, le=1)
    """Share of entities with a second name, introduced in their passage."""
    alias_use: float = Field(default=0.25, ge=0, le=1)
    """Probability of the second name in other passages and in questions."""
    lookalikes: float = Field(default=0.35, ge=0, le=1)
    """Share of titles (film, book, band, company) that reuse words of another, mostly the whole title."""
    namesakes: float = Field(default=0.06, ge=0, le=1)
    """Share of people with the name of another person."""
    outdated: float = Field(default=0.10, ge=0, le=1)
    """Share of changeable facts (mayor, employer …) with an outdated value in the text, marked as such."""
    unanswerable: float = Field(default=0.0, ge=0, lt=1)
    """Share of questions that lose a passage they need: it is not in the corpus, and they are marked unanswerable."""
    known: float = Field(default=0.0, ge=0, le=1)
    """Share of facts that models should know without a search. The split `known` asks for each of them, to train warm
    starts and generators; questions that need no other fact are marked."""
    short_names: float = Field(default=0.30, ge=0, le=1)
    """Probability that a question omits the type of an ambiguous title where the relation disambiguates."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "WorldSettings":
        if not 1 <= len(self.hop_mix) <= MAX_HOPS or min(self.hop_mix) < 0 or sum(self.hop_mix) <= 0:
            raise ValueError(f"hop_mix needs 1 to {MAX_HOPS} weights, at least 0 each and not all 0")
        if self.comparison + self.constraint + self.lists > 1:
            raise ValueError("comparison, constraint and lists are shares of one whole; lower one of them")
        if self.choices == 1 or (self.lists and self.choices):
            raise ValueError("choices takes 2 to 9 options, or 0; with lists only 0")
        if self.known and self.unanswerable:
            raise ValueError("known facts need no passage; set known or unanswerable to 0")
        return self

    def questions_in(self, split: Split) -> int:
        """Number of questions of this split."""
        count = {"train": self.train, "dev": self.dev, "test": self.test}[split]
        return QUESTIONS[self.size][split] if count is None else count
