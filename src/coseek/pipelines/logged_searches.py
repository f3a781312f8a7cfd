"""Logged searches: the searches of a run or a label folder, each as a question of its own with its relevant passages.

Of a run, the relevant passages of a search are the gold passages that no search of an earlier turn returned. Of a label
folder, they are the positives of the search.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError, SettingError
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.labels.label_folder import LabelFolder
from coseek.labels.makers.gold import unseen
from coseek.pipelines.labelling import turns_of
from coseek.retrieval.query import Query

OF_RUN = "Relevant to a search: the gold passages that no search of an earlier turn had returned."
OF_LABELS = "Relevant to a search: the positives of its label."


@dataclass(frozen=True, slots=True)
class LoggedSearch:
    """One search that an agent made."""

    turn: TurnId
    owner: Question
    """The question that the agent was answering."""
    query: Query
    relevant: tuple[str, ...]

    @property
    def question(self) -> Question:
        """The search as a question with an id of its own, and the owner's answers."""
        grades = self.owner.meta.get("relevance")
        meta = {name: value for name, value in self.owner.meta.items() if name != "relevance"}
        if isinstance(grades, dict):
            meta["relevance"] = {ident: grade for ident, grade in grades.items() if ident in self.relevant}
        return replace(self.owner, id="/".join(self.turn.key), gold_ids=self.relevant, meta=meta)


@dataclass(frozen=True)
class LoggedSearches:
    """The searches of some questions."""

    searches: tuple[LoggedSearch, ...]
    rule: str
    """Which passages are relevant."""

    @property
    def owners(self) -> list[Question]:
        """The different questions, in order."""
        return list({one.owner.id: one.owner for one in self.searches}.values())

    def of(self, owners: Iterable[Question]) -> "LoggedSearches":
        """The searches of these questions only."""
        idents = {owner.id for owner in owners}
        return LoggedSearches(tuple(one for one in self.searches if one.owner.id in idents), self.rule)


def logged_searches(folder: Path, split: str | None = None) -> LoggedSearches | None:
    """The searches of a run or label folder; `None` for any other path. Raises `DataError` for one without searches,
    `SettingError` for a `split`."""
    readers: dict[str, tuple[Callable[[Path], Iterator[LoggedSearch]], str]] = {
        "run.yaml": (_of_run, OF_RUN),
        "labels.yaml": (_of_labels, OF_LABELS),
    }
    for name, (read, rule) in readers.items():
        if (folder / name).is_file():
            if split is not None:
                raise SettingError(f"{folder} holds the searches of a run, which has no splits; leave out --split")
            found = LoggedSearches(tuple(read(folder)), rule)
            if not found.searches:
                raise DataError(f"{folder} holds no search, so there is nothing to measure")
            return found
    return None


def _of_run(folder: Path) -> Iterator[LoggedSearch]:
    for turn in turns_of(Run(folder)):
        yield LoggedSearch(turn.id, turn.question, turn.query, tuple(unseen(turn)))


def _of_labels(folder: Path) -> Iterator[LoggedSearch]:
    """A turn with several positives has a label set for each."""
    positives: dict[TurnId, LoggedSearch] = {}
    for label in LabelFolder(folder).sets():
        known = positives.get(label.turn)
        before = () if known is None else known.relevant
        relevant = tuple(dict.fromkeys((*before, label.positive)))
        positives[label.turn] = LoggedSearch(label.turn, label.question, label.query, relevant)
    yield from positives.values()
