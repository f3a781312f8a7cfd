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
from coseek.labels.candidates import Candidates
from coseek.labels.label_set import Candidate, DroppedTurn
from coseek.labels.maker import Labelled
from coseek.labels.negatives import label_sets, not_equal_to
from coseek.labels.resources import LabelResources


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

    positives: Sequence[Passage]
    """Best first."""
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
        ruled = self.rule(turn, candidates)
        if isinstance(ruled, str):
            yield DroppedTurn(turn.id, ruled)
            return
        positives = [_candidate_of(passage, candidates) for passage in ruled.positives]
        positives = positives if self.settings.every else positives[:1]
        chosen = {one.passage.id: one.passage for one in positives}
        rest = [one for one in candidates if one.passage.id not in chosen]
        pool = [one.passage.id for one in not_equal_to(rest, [*ruled.positives, *ruled.not_negative])]
        if not pool:
            yield DroppedTurn(turn.id, "no-negatives")
            return
        ranked = (*positives, *rest)
        yield from label_sets(turn, ranked, [*chosen.values()], pool, self.settings.negatives, self.settings.seed)


def _candidate_of(passage: Passage, candidates: Candidates) -> Candidate:
    """The candidate with this text, which may have another id in a run of another system; else the passage, with rank
    0."""
    same = (one for one in candidates if (one.passage.title, one.passage.text) == (passage.title, passage.text))
    return next(same, Candidate(passage, 0))
