"""Gold: the gold passages of a data set as positives, turn by turn, without any model.

A gold passage is open in a turn if no search of an earlier turn returned it. The positive is the open gold passage that
the retriever ranks highest. If the retriever returned none of them and `add_missing` is set, the positive is the one
that shares most words with the query and the reasoning before it (ties in the question's order); it gets rank 0. A turn
is dropped if no gold passage is open (`all-shown`), or if none was retrieved and none may be added (`not-found`). The
negatives are drawn from the candidates that are neither gold passages nor copies of one. With `every`, all open gold
passages are positives in that order, each in its own label set.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.labels.candidates import Candidates
from coseek.labels.label_set import Candidate, DroppedTurn
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.negatives import label_sets, not_equal_to
from coseek.labels.resources import LabelResources
from coseek.labels.used_passages import shown_before
from coseek.retrieval.lexical.analyzer import words


class GoldSettings(Settings):
    """Candidates, positives and negatives."""

    candidates: int = Field(default=20, ge=1)
    """Number of passages of the retriever per turn."""
    negatives: int = Field(default=15, ge=1)
    """Number of negatives per label set."""
    add_missing: bool = True
    """Add a gold passage that the retriever did not return."""
    every: bool = False
    """Use every open gold passage as a positive, each in its own label set, instead of only the first."""
    seed: int = 0
    """Seed of the negatives."""


SETTINGS = GoldSettings


@dataclass(frozen=True)
class GoldMaker:
    """Implements `LabelMaker`."""

    settings: GoldSettings
    parts: LabelResources

    @cached_property
    def identity(self) -> str:
        return digest_of("gold", self.settings.model_dump_json(), self.parts.retriever.identity)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        return self.parts.each_searched(self._labels, turns, self.settings.candidates)

    def _labels(self, turn: SearchTurn, candidates: Candidates) -> Iterator[Labelled]:
        still_open = unseen(turn)
        if not still_open:
            yield DroppedTurn(turn.id, "all-shown" if turn.question.gold_ids else "no-gold")
            return
        positives = self._positives(turn, still_open, candidates)
        if not positives:
            yield DroppedTurn(turn.id, "not-found")
            return
        ranked = (*positives, *(one for one in candidates if one not in positives))
        pool = [one.passage.id for one in not_equal_to(candidates, self._gold(turn.question, candidates))]
        if not pool:
            yield DroppedTurn(turn.id, "no-negatives")
            return
        chosen = [one.passage for one in positives]
        yield from label_sets(turn, ranked, chosen, pool, self.settings.negatives, self.settings.seed)

    def _positives(self, turn: SearchTurn, still_open: Sequence[str], candidates: Candidates) -> list[Candidate]:
        """The open gold passages: retrieved ones in the retriever's order, then the others by shared words."""
        found = [one for one in candidates if one.passage.id in still_open]
        if found and not self.settings.every:
            return found[:1]
        there = {one.passage.id for one in found}
        missing = [ident for ident in still_open if ident not in there] if self.settings.add_missing else []
        asked = set(words(f"{turn.query.text} {turn.query.reasoning}"))
        passages = sorted(
            (self.parts.corpus.by_id(ident) for ident in missing),
            key=lambda passage: -len(asked & set(words(f"{passage.title} {passage.text}"))),
        )
        positives = [*found, *(Candidate(passage, 0) for passage in passages)]
        return positives if self.settings.every else positives[:1]

    def _gold(self, question: Question, candidates: Sequence[Candidate]) -> list[Passage]:
        """The gold passages whose text is known."""
        found = {one.passage.id: one.passage for one in candidates}
        corpus = self.parts.retriever.corpus
        if corpus is not None:
            found |= {ident: corpus.by_id(ident) for ident in question.gold_ids if corpus.has(ident)}
        return [found[ident] for ident in question.gold_ids if ident in found]


def unseen(turn: SearchTurn) -> list[str]:
    """The gold passages that no search of an earlier turn returned."""
    shown = shown_before(turn)
    return [ident for ident in turn.question.gold_ids if ident not in shown]


def terms(settings: GoldSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: GoldSettings, parts: LabelResources) -> GoldMaker:
    if settings.add_missing:
        _ = parts.corpus  # raises where there is no corpus, before the first search
    _ = parts.retriever
    return GoldMaker(settings, parts)
