"""The context of a search turn that a retriever receives, during a run and from the stored run."""

import pytest
from tests.agents.playing import QUESTION, Shelf, typist

from coseek.agents.branching import ReplayPoint
from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.search_turns import reasoning_of, replay_queries
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import Trajectory
from coseek.models.written import REASONING_MARKS
from coseek.retrieval.query import PastTurn, Query

PROTOCOL = load_protocol("search-r1", "laptop")
CORPUS = Corpus([Passage("p1", "Ada", "born in 1815"), Passage("p2", "Bob", "a <search>cat</search>")])
LIMITS = Limits(max_tokens=4000, max_turns=3, passages_per_search=2)
TURNS = (
    "<think> who is Ada</think><search> Ada</search>",
    "<think> and </think><think> Bob ?</think><search>Bob </search>",
    "so <search> Eve</search>",
    "<think> one too many</think><search> Eve</search>",
)


def shelf() -> Shelf:
    return Shelf(CORPUS, {"Ada": ["p1", "p2"], "Bob": ["p2"], QUESTION.question: ["p1"]})


def run(*texts: str, retriever: Shelf, protocol: Protocol = PROTOCOL, limits: Limits = LIMITS) -> Trajectory:
    return rollout(Agent(protocol, typist(protocol, *texts)), retriever, [QUESTION], [7], limits)[0]


def test_a_search_carries_the_question_the_reasoning_in_front_of_it_and_what_came_before() -> None:
    retriever = shelf()
    run(*TURNS, retriever=retriever)
    ada = PastTurn("Ada", "who is Ada", ('"Ada"\nborn in 1815', '"Bob"\na <search>cat</search>'))
    bob = PastTurn("Bob", "and Bob ?", ('"Bob"\na <search>cat</search>',))
    assert retriever.asked == [
        Query("Ada", QUESTION.question, "who is Ada"),
        Query("Bob", QUESTION.question, "and Bob ?", (ada,)),
        Query("Eve", QUESTION.question, "so", (ada, bob)),
    ]


def test_later_searches_are_told_which_earlier_ones_were_made_in_one_turn() -> None:
    protocol, retriever = load_protocol("qagent", "laptop"), shelf()
    turns = (
        "<plan>a</plan><search><query>Ada</query><query>Bob</query></search>",
        "<reflection>b</reflection><search><query>Ada</query></search>",
        "<reflection>c</reflection><search><query>Bob</query></search>",
    )
    trajectory = run(*turns, "<reflection>d</reflection><answer>1815</answer>", retriever=retriever, protocol=protocol)
    queries = [Query.of(query) for query in retriever.asked]
    shared = [[turn.same_turn for turn in query.history] for query in queries]
    assert shared == [[], [], [False, True], [False, True, False]]
    assert replay_queries(trajectory, protocol) == queries
    assert ReplayPoint.of(trajectory, 3, protocol).episode(0, 1).history == list(queries[3].history)


@pytest.mark.parametrize("budget", [*range(60, 400, 40), 4000])
def test_a_run_that_a_limit_or_a_fault_ends_says_only_the_searches_it_holds(budget: int) -> None:
    limits = LIMITS.model_copy(update={"max_tokens": budget})
    for turns in (TURNS, [turn.replace("Bob", "bad") for turn in TURNS]):
        retriever = shelf()
        trajectory = run(*turns, retriever=retriever, limits=limits)
        assert replay_queries(trajectory, PROTOCOL) == retriever.asked[: len(trajectory.searches)]


@pytest.mark.parametrize(
    ("written", "reasoning"),
    [
        ("<think> a</think><search>q</search><think>later</think>", "a"),
        ("<think> not closed <search>q</search>", "not closed"),
        ("</think> loose <search>q</search>", "loose"),
        ("<information> forged</information><search>q</search>", "forged"),
        ("<search>q</search>", ""),
        ("", ""),
    ],
)
def test_reasoning_is_all_that_stands_in_front_of_the_query_without_tags(written: str, reasoning: str) -> None:
    assert reasoning_of(PROTOCOL.grammar, PROTOCOL.grammar.parse(written)) == reasoning


@pytest.mark.parametrize("thought", ["a", "", "a </think> b"])
@pytest.mark.parametrize(("opening", "closing"), REASONING_MARKS)
@pytest.mark.parametrize("opened", [False, True])
def test_a_thought_that_a_protocol_has_no_tag_for_is_reasoning_without_its_marks(
    thought: str, opening: str, closing: str, opened: bool
) -> None:
    call = '<tool_call>{"name": "search", "arguments": {"query": ["q"]}}</tool_call>'
    grammar = load_protocol("tongyi").grammar
    reasoning = reasoning_of(grammar, grammar.parse(f"{'' if opened else opening}\n{thought}\n{closing}\n{call}"))
    assert reasoning.split() == thought.replace("</think>", "").split()
