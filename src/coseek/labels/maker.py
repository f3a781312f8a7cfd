"""Label maker: the border behind which every way of making labels stands.

A module of `coseek.labels.makers` offers three names:

    SETTINGS                          its settings class
    terms(settings)                   what it needs and gives, said before anything is opened
    open(settings, parts)             a `LabelMaker`; `parts` hands it what it stands on, and refuses with a sentence
                                      what the user did not name
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from coseek.agents.search_turns import SearchTurn
from coseek.core.plugins import PluginSpec
from coseek.core.settings import Settings
from coseek.data.question import Question
from coseek.labels.label_set import DroppedTurn, LabelSet

if TYPE_CHECKING:  # parts open what stands on this border
    from coseek.labels.resources import LabelResources

PACKAGE = "coseek.labels.makers"
OFFERS: PluginSpec = {"SETTINGS": Settings, "terms": None, "open": None}
"""What a module of one's own must have."""
RUN = "run"
"""Name of a fault in the tally of a maker that makes its runs itself: one that ended a run."""

Labelled: TypeAlias = LabelSet | DroppedTurn


@dataclass(frozen=True, slots=True)
class MakerRequirements:
    """What a method needs besides runs and a retriever, and what it gives, as far as its settings say it."""

    scorer: bool = False
    """Needs somebody who scores or ranks passages."""
    likelihood: bool = False
    """Needs a model that says how likely answers are."""
    answers: str = ""
    """Needs an agent that writes an answer, unless this setting is taken; empty where any agent will do."""
    rolls_out: bool = False
    """Makes its runs itself (`RolloutMaker`), as many a question as its setting `samples` says."""
    targets: bool = False
    """Its label sets have `targets`, from which the loss `kl` learns."""


class LabelMaker(Protocol):
    """Turns search turns into label sets."""

    @property
    def identity(self) -> str:
        """A digest of all that the labels depend on besides the trajectories: settings, retriever, scorers, weights."""
        ...

    def label(self, turns: Sequence[SearchTurn]) -> Iterator[Labelled]:
        """One label set or one reason a turn, in any order, as soon as it is known. A turn for which a part failed
        yields nothing: the fault is counted, and the next start tries it again."""
        ...


@runtime_checkable
class RolloutMaker(Protocol):
    """A maker that changes what the agent reads, so that its labels come from a run of its own."""

    def roll_out(self, questions: Sequence[Question], tell: Callable[[int, int], None]) -> list[SearchTurn]:
        """The search turns that are labelled in the place of the given run's: of these questions, answered again into
        the label folder's `run`. A killed start is gone on with, and what a fault ended is made anew. `tell` hears
        (ended, in all)."""
        ...


class MakerModule(Protocol):
    """What a module of `coseek.labels.makers` offers."""

    SETTINGS: type[Settings]

    def terms(self, settings: Settings) -> MakerRequirements: ...

    def open(self, settings: Settings, parts: "LabelResources") -> LabelMaker: ...
