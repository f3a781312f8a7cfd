"""Label maker: interface of the methods that turn search turns into labels.

A module of `coseek.labels.makers` defines three names:

    SETTINGS                          its settings class
    terms(settings)                   its requirements, known before anything is opened
    open(settings, parts)             a `LabelMaker`; `parts` opens resources, and raises `SettingError` for one
                                      that the user did not name
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast, runtime_checkable

from coseek.agents.protocol import Protocol as AgentProtocol
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.core.plugins import PluginSpec, find_plugin
from coseek.core.settings import Settings
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.labels.label_set import DroppedTurn, LabelSet

if TYPE_CHECKING:
    from coseek.labels.resources import LabelResources

# Stored turns: the search turns of a run on disk, of which one trajectory at a time is in memory.


@dataclass(frozen=True)
class StoredTurns:
    """The search turns of a run's trajectories for some questions, in their stored order. Can be read several times."""

    run: Run
    protocol: AgentProtocol
    question_ids: Collection[str]

    def __iter__(self) -> Iterator[SearchTurn]:
        for trajectory in self.run.trajectories():
            if trajectory.question.id in self.question_ids:
                yield from search_turns(trajectory, self.protocol)


PACKAGE = "coseek.labels.makers"
CONTRACT: PluginSpec = {"SETTINGS": Settings, "terms": None, "open": None}
"""What a user's module must define."""
RUN = "run"
"""Name of the count of runs with a fault, for makers with their own runs."""

Labelled: TypeAlias = LabelSet | DroppedTurn


@dataclass(frozen=True, slots=True)
class MakerRequirements:
    """What a method needs besides runs and a retriever, and what it returns, given its settings."""

    scorer: bool = False
    """Needs a scorer or ranker of passages."""
    likelihood: bool = False
    """Needs a model that computes answer likelihoods."""
    answers: str = ""
    """Setting that removes the need for an agent that writes an answer; empty where any agent will do."""
    rolls_out: bool = False
    """Makes its own runs (`RolloutMaker`), `samples` (a setting) per question."""
    targets: bool = False
    """Its label sets have `targets`, for the loss `kl`."""


class LabelMaker(Protocol):
    """Turns search turns into label sets."""

    @property
    def identity(self) -> str:
        """Digest of everything that labels depend on besides trajectories: settings, retriever, scorers, weights."""

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        """Label sets, or one dropped turn with its reason, for every turn, in any order. A turn with a fault yields
        nothing: the fault is counted, and the next start repeats the turn. The turns of a run come together, and can
        be read once."""


@runtime_checkable
class RolloutMaker(Protocol):
    """A maker that changes the agent's context, so that its labels come from its own runs."""

    def left(self, questions: Sequence[Question]) -> list[RowKey]:
        """The rows of these questions that are missing in the label folder's `run`. Rows with a fault are removed."""

    def roll_out(
        self,
        questions: Sequence[Question],
        tell: Callable[[int, int], None],
        only: Collection[RowKey] | None = None,
    ) -> "StoredTurns":
        """Run the agent on these questions into the label folder's `run`, and return the search turns to be labelled.
        Resumes an unfinished run and repeats trajectories with a fault. `only` restricts it to some rows, if other
        workers make the others. `tell` is called with (finished, total)."""


class MakerModule(Protocol):
    """What a module of `coseek.labels.makers` defines."""

    SETTINGS: type[Settings]
    VIEW: str
    """The query view of the paper's retriever; `query` where a module has none."""

    def terms(self, settings: Settings) -> MakerRequirements: ...

    def open(self, settings: Settings, parts: "LabelResources") -> LabelMaker: ...


def maker_module(method: str) -> MakerModule:
    """A method of `coseek label`, by its name or file."""
    return cast(MakerModule, find_plugin("method", PACKAGE, method, CONTRACT))


def view_of(method: str) -> str:
    """The query view of labels by this method, for trainers that know no views."""
    return str(getattr(maker_module(method), "VIEW", "query"))
