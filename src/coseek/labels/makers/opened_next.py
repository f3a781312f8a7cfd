"""Opened next: the passages that the agent used after a search as positives, without a model and without gold answers.

The kinds of use in `by` are tried in their order (`used_passages`): opened by a visit, selected, its words in the next
query, the final answer in it. The first kind that finds a passage gives the positives, best first. Passages that were
used in any way are no negatives. A turn is dropped if none was used (`not-used`), or if its search found nothing
(`not-found`).
"""

from functools import partial

from coseek.agents.search_turns import SearchTurn
from coseek.labels.label_set import Candidates
from coseek.labels.maker import MakerRequirements
from coseek.labels.resources import LabelResources
from coseek.labels.rule_maker import RuledTurn, RuleMaker, RuleSettings, Use, candidate_of, used


class OpenedSettings(RuleSettings):
    """Kinds of use, candidates, positives and negatives."""

    by: tuple[Use, ...] = ("opened", "selected", "query", "answer")
    """Kinds of use, the most telling first."""


SETTINGS = OpenedSettings


def judge(by: tuple[Use, ...], turn: SearchTurn, candidates: Candidates) -> RuledTurn | str:
    """The passages that were used after the search."""
    if not turn.trajectory.searches[turn.search].hits:
        return "not-found"
    groups = [passages for use in by if (passages := used(turn, use))]
    if not groups:
        return "not-used"
    # Passages with equal texts are one candidate.
    positives = {(candidate := candidate_of(passage, candidates)).passage.id: candidate for passage in groups[0]}
    return RuledTurn([*positives.values()], [passage for group in groups for passage in group])


def terms(settings: OpenedSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: OpenedSettings, parts: LabelResources) -> RuleMaker:
    _ = parts.retriever
    return RuleMaker("opened-next", settings, parts, partial(judge, settings.by))
