"""Gold: the gold passages of a data set as positives, turn by turn, without any model.

The positive of a turn is the gold passage that this turn had to find. A gold passage is open while no search of an
earlier turn has shown it. Of the open ones it is the one that the retriever has highest among its candidates; if it
found none of them and `add_missing` is set, the one that has most words of the query and the reasoning in front of it,
equals in the question's order; it is put in with rank 0. A turn in which nothing was open gives no label (`all-shown`),
nor does one whose gold passages were not found and are not to be added (`not-found`). The negatives are drawn from the
candidates that are neither gold passages nor copies of one. With `every`, all open gold passages are positives in that
order, each in a label set of its own: what a later turn would have to find counts as found early.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.labels.candidates import Candidates, find_candidates
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled, MakerRequirements
from coseek.labels.negatives import not_equal_to, pick_negatives
from coseek.labels.resources import LabelResources
from coseek.retrieval.lexical.analyzer import words


class GoldSettings(Settings):
    """How gold passages become labels."""

    candidates: int = Field(default=20, ge=1)
    """Passages of the retriever among which positives and negatives are looked for."""
    negatives: int = Field(default=15, ge=1)
    """Negatives of a label set."""
    add_missing: bool = True
    """Put a gold passage in that the retriever did not find."""
    every: bool = False
    """Every open gold passage is a positive, each in a label set of its own, and not the first alone."""
    seed: int = 0
    """Of the draw of negatives."""


SETTINGS = GoldSettings


@dataclass(frozen=True)
class GoldMaker:
    """The maker."""

    settings: GoldSettings
    parts: LabelResources

    @cached_property
    def identity(self) -> str:
        return digest_of("gold", self.settings.model_dump_json(), self.parts.retriever.identity)

    def label(self, turns: Sequence[SearchTurn]) -> Iterator[Labelled]:
        found = find_candidates(self.parts.retriever, turns, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(turns, found, strict=True):
            if candidates is not None:
                yield from self._labels(turn, candidates)

    def _labels(self, turn: SearchTurn, candidates: Candidates) -> Iterator[Labelled]:
        still_open = unseen(turn)
        if not still_open:
            yield DroppedTurn(turn.id, "all-shown" if turn.question.gold_ids else "no-gold")
            return
        positives = self._positives(turn, still_open, candidates)
        if not positives:
            yield DroppedTurn(turn.id, "not-found")
            return
        weighed = (*positives, *(one for one in candidates if one not in positives))
        pool = [one.passage.id for one in not_equal_to(candidates, self._gold(turn.question, candidates))]
        if not pool:
            yield DroppedTurn(turn.id, "no-negatives")
            return
        for copy, positive in enumerate(positives):
            yield LabelSet(
                turn=turn.id,
                question=turn.question,
                query=turn.query,
                candidates=weighed,
                positive=positive.passage.id,
                negatives=pick_negatives(turn.id, pool, self.settings.negatives, self.settings.seed, copy),
                copy=copy,
            )

    def _positives(self, turn: SearchTurn, still_open: Sequence[str], candidates: Candidates) -> list[Candidate]:
        """The open gold passages: those that were found as the retriever has them, then the others as words match."""
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
        """The gold passages whose text is at hand."""
        found = {one.passage.id: one.passage for one in candidates}
        corpus = self.parts.retriever.corpus
        if corpus is not None:
            found |= {ident: corpus.by_id(ident) for ident in question.gold_ids if corpus.has(ident)}
        return [found[ident] for ident in question.gold_ids if ident in found]


def unseen(turn: SearchTurn) -> list[str]:
    """The gold passages that no search of an earlier turn has shown. Queries of one turn are asked at once: none of
    them is earlier than another."""
    earlier = turn.trajectory.searches[: turn.search]
    now = turn.trajectory.searches[turn.search].turn
    before = [search for search in earlier if now is None or search.turn != now]
    shown = {hit.passage.id for search in before for hit in search.hits}
    return [ident for ident in turn.question.gold_ids if ident not in shown]


def terms(settings: GoldSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: GoldSettings, parts: LabelResources) -> GoldMaker:
    if settings.add_missing:
        _ = parts.corpus  # refuses one that is not at hand before anything is searched
    _ = parts.retriever
    return GoldMaker(settings, parts)
