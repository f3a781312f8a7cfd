"""Answer in passage: the passages that hold a gold answer as positives, without a model and without gold passages.

A candidate is a positive if it holds a gold answer as a run of whole words, and no search or visit of an earlier turn
returned it. The best-ranked one is the first. Negatives hold no answer. Answers that are yes, no or a number say
nothing about a passage and do not count. A turn is dropped without such an answer (`no-answer`), if no candidate holds
one (`not-found`), or if an earlier turn had returned all that do (`all-shown`). For questions of several steps, only
the searches for the last step get a label.
"""

from coseek.agents.search_turns import SearchTurn
from coseek.labels.label_set import Candidates, not_equal_to
from coseek.labels.maker import MakerRequirements
from coseek.labels.resources import LabelResources
from coseek.labels.rule_maker import RuledTurn, RuleMaker, RuleSettings, shown_before
from coseek.measure.corpus_coverage import answer_words, holds_answer, is_decidable

SETTINGS = RuleSettings


def judge(turn: SearchTurn, candidates: Candidates) -> RuledTurn | str:
    """The candidates that hold an answer."""
    answers = [phrase for answer in turn.question.answers if is_decidable(phrase := answer_words(answer))]
    if not answers:
        return "no-answer"
    texts = [f"{candidate.passage.title} {candidate.passage.text}" for candidate in candidates]
    holders = [candidate for candidate, text in zip(candidates, texts, strict=True) if holds_answer(text, answers)]
    if not holders:
        return "not-found"
    positives = not_equal_to(holders, [*shown_before(turn).values()])  # a log may have the texts under other ids
    return RuledTurn(positives, [candidate.passage for candidate in holders]) if positives else "all-shown"


def terms(settings: RuleSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: RuleSettings, parts: LabelResources) -> RuleMaker:
    return RuleMaker("answer-in-passage", settings, parts, judge)
