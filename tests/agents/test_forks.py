"""Fears about groups whose runs fork: another past than the root's, tokens that nobody sampled, a lost run."""

import pytest
from tests.agents.test_branching import LIMITS, QUESTIONS, Anything, sampler

from coseek.agents.drivers import rollout
from coseek.agents.forks import rollout_groups
from coseek.agents.limits import Tree
from coseek.core.errors import SettingError
from coseek.data.trajectory import Author, Trajectory


def common_turns(one: Trajectory, other: Trajectory) -> int:
    """Leading turns of the agent that two runs have in common, with everything before them."""
    ends = zip(one.turn_spans, other.turn_spans, strict=False)
    return sum(one.ids[:end] == other.ids[:end] for (_, end), _ in ends)


def test_the_runs_of_a_tree_share_a_root_up_to_a_search_and_go_on_by_themselves() -> None:
    agent, _ = sampler("search-r1")
    asked = [question for question in QUESTIONS for _ in range(6)]
    seeds = range(100, 100 + len(asked))
    runs = rollout_groups(agent, Anything(), asked, seeds, LIMITS, Tree(6, 2))
    assert [run.question.id for run in runs] == [question.id for question in asked]
    assert [run.seed for run in runs] == [*seeds]
    roots = [place for place in range(len(asked)) if place % 6 < 2]
    alone = rollout(agent, Anything(), [asked[place] for place in roots], [seeds[place] for place in roots], LIMITS)
    assert [runs[place].segments for place in roots] == [run.segments for run in alone]
    forked = 0
    for place, run in enumerate(runs):
        if place % 6 >= 2:
            root = runs[place - place % 6 + (place % 6) % 2]
            if any(search.turn for search in root.searches) and not root.fault:
                assert common_turns(root, run) >= 1
                forked += run.ids != root.ids
        for segment in run.segments:
            assert segment.author is Author.ENVIRONMENT or len(segment.logprobs) == len(segment.ids)
    assert forked > 5
    again = rollout_groups(agent, Anything(), asked, seeds, LIMITS, Tree(6, 2))
    assert [run.segments for run in again] == [run.segments for run in runs]


def test_a_worker_with_a_part_of_a_group_is_told() -> None:
    agent, _ = sampler("search-r1")
    with pytest.raises(SettingError, match="no whole groups of 6"):
        rollout_groups(agent, Anything(), QUESTIONS, range(5), LIMITS, Tree(6, 2))
