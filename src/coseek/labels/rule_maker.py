"""Rule maker: labels from a rule that names positives, with negatives drawn from the retriever's candidates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.trajectory import met_passages
from coseek.labels.label_set import Candidate, Candidates, DroppedTurn, label_sets, not_equal_to
from coseek.labels.maker import Labelled
from coseek.labels.resources import LabelResources

LEAST_PART = 40
"""Least number of characters of a passage that counts as a part of another one."""


class RuleSettings(Settings):
    """Candidates, positives and negatives."""

    candidates: int = Field(default=20, ge=1)
    """Number of passages of the retriever per turn."""
    negatives: int = Field(default=15, ge=1)
    """Number of negatives per label set."""
    every: bool = False
    """Use every positive, each in its own label set, instead of only the first."""
    seed: int = 0
    """Seed of the negatives."""


@dataclass(frozen=True, slots=True)
class RuledTurn:
    """The positives of a turn, and the passages to keep out of its negatives."""

    positives: Sequence[Candidate]
    """Best first; a passage that the retriever did not return has rank 0."""
    not_negative: Sequence[Passage]
    """Passages that are neither positives nor negatives."""


Rule: TypeAlias = Callable[[SearchTurn, Candidates], RuledTurn | str]
"""Judge a turn, or return the reason why it has no label."""


@dataclass(frozen=True)
class RuleMaker:
    """Implements `LabelMaker` with a rule. `name` and `settings` identify the rule."""

    name: str
    settings: RuleSettings
    parts: LabelResources
    rule: Rule

    @cached_property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.model_dump_json(), self.parts.retriever.identity)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        return self.parts.each_searched(self._labels, turns, self.settings.candidates)

    def _labels(self, turn: SearchTurn, candidates: Candidates) -> Iterator[Labelled]:
        ruling = self.rule(turn, candidates)
        if isinstance(ruling, str):
            yield DroppedTurn(turn.id, ruling)
            return
        positives = ruling.positives if self.settings.every else ruling.positives[:1]
        chosen = {candidate.passage.id: candidate.passage for candidate in positives}
        rest = [candidate for candidate in candidates if candidate.passage.id not in chosen]
        excluded = [*(candidate.passage for candidate in ruling.positives), *ruling.not_negative]
        others = not_equal_to(rest, excluded)
        pool = [each.passage.id for each in others if not any(_is_part(each.passage, known) for known in excluded)]
        if not pool:
            yield DroppedTurn(turn.id, "no-negatives")
            return
        ranked = (*positives, *rest)
        yield from label_sets(turn, ranked, [*chosen.values()], pool, self.settings.negatives, self.settings.seed)


def _is_part(first: Passage, second: Passage) -> bool:
    """Whether one text contains the other, if that is long: a log may have several passages as one."""
    shorter, longer = sorted((" ".join(each.text.casefold().split()) for each in (first, second)), key=len)
    return len(shorter) >= LEAST_PART and shorter in longer


def shown_before(turn: SearchTurn) -> dict[str, Passage]:
    """By id what searches and visits of earlier turns returned. Searches of one turn run at once, so none of them is
    earlier than another."""
    number = turn.trajectory.searches[turn.search].turn
    earlier = [search for search in turn.trajectory.searches[: turn.search] if search.turn != number]
    visits = [visit for visit in turn.trajectory.visits if visit.turn < number]
    return met_passages(earlier, visits)
