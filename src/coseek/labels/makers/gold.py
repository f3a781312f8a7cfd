"""Gold: the gold passages of a data set as positives, turn by turn, without any model.

A gold passage is open in a turn if no search or visit of an earlier turn returned it. The positive is the open gold
passage that the retriever ranks highest. If the retriever returned none of them and `add_missing` is set, the positive
is the one that shares most words with the query and the reasoning before it (ties in the question's order); it gets
rank 0. A turn is dropped if no gold passage is open (`all-shown`), or if none was retrieved and none may be added
(`not-found`). The negatives are drawn from the candidates that are neither gold passages nor copies of one. With
`every`, all open gold passages are positives in that order, each in its own label set.
"""

from collections.abc import Sequence
from functools import partial

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.labels.label_set import Candidate, Candidates, not_equal_to
from coseek.labels.maker import MakerRequirements
from coseek.labels.resources import LabelResources
from coseek.labels.rule_maker import RuledTurn, RuleMaker, RuleSettings, shown_before
from coseek.retrieval.lexical.analyzer import words


class GoldSettings(RuleSettings):
    """Candidates, positives and negatives."""

    add_missing: bool = True
    """Add a gold passage that the retriever did not return."""


SETTINGS = GoldSettings


def judge(settings: GoldSettings, parts: LabelResources, turn: SearchTurn, candidates: Candidates) -> RuledTurn | str:
    """The open gold passages: retrieved ones in the retriever's order, then the others by shared words."""
    golds = _gold_passages(parts, turn.question, candidates)
    new_golds = not_equal_to([Candidate(passage, 0) for passage in golds], [*shown_before(turn).values()])
    shown_ids = {passage.id for passage in golds} - {gold.passage.id for gold in new_golds}  # in logs under other ids
    open_ids = [ident for ident in unseen(turn) if ident not in shown_ids]
    if not open_ids:
        return "all-shown" if turn.question.gold_ids else "no-gold"
    positives = [candidate for candidate in candidates if candidate.passage.id in open_ids]
    if settings.add_missing and (settings.every or not positives):
        retrieved = {candidate.passage.id for candidate in positives}
        missing_passages = [parts.corpus.by_id(ident) for ident in open_ids if ident not in retrieved]
        query_words = set(words(f"{turn.query.text} {turn.query.reasoning}"))
        missing_passages.sort(key=lambda passage: -len(query_words & set(words(f"{passage.title} {passage.text}"))))
        positives += [Candidate(passage, 0) for passage in missing_passages]
    return RuledTurn(positives, golds) if positives else "not-found"


def _gold_passages(parts: LabelResources, question: Question, candidates: Sequence[Candidate]) -> list[Passage]:
    """The gold passages whose text is known."""
    passages = {candidate.passage.id: candidate.passage for candidate in candidates}
    corpus = parts.retriever.corpus
    if corpus is not None:
        passages |= {ident: corpus.by_id(ident) for ident in question.gold_ids if corpus.has(ident)}
    return [passages[ident] for ident in question.gold_ids if ident in passages]


def unseen(turn: SearchTurn) -> list[str]:
    """The gold passages that no search or visit of an earlier turn returned."""
    shown_ids = shown_before(turn)
    return [ident for ident in turn.question.gold_ids if ident not in shown_ids]


def terms(settings: GoldSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: GoldSettings, parts: LabelResources) -> RuleMaker:
    if settings.add_missing:
        _ = parts.corpus  # raises where there is no corpus, before the first search
    return RuleMaker("gold", settings, parts, partial(judge, settings, parts))
