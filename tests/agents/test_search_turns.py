"""What a retriever is told of a search turn: while a run happens, and from the finished run."""

from collections.abc import Sequence

import pytest

from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.agents.search_turns import reasoning_of, replay_queries
from coseek.core.errors import RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import PastTurn, Query, QueryLike
from coseek.retrieval.retriever import FixedRetriever

PROTOCOL = load_protocol("search-r1", "laptop")
TOKENIZER = ByteTokenizer(PROTOCOL.grammar.special_tokens)
CORPUS = Corpus([Passage("p1", "Ada", "born in 1815"), Passage("p2", "Bob", "a <search>cat</search>")])
QUESTION = Question("q1", "When was Ada born ?", ("1815",))
LIMITS = Limits(max_tokens=4000, max_turns=3, passages_per_search=2)
TURNS = (
    "<think> who is Ada</think><search> Ada</search>",
    "<think> and </think><think> Bob ?</think><search>Bob </search>",
    "so <search> Eve</search>",
    "<think> one too many</think><search> Eve</search>",
)


class Recorder(FixedRetriever):
    """Finds what is listed, and remembers what it was asked; `broken` queries fail."""

    def __init__(self, broken: str = "") -> None:
        super().__init__(CORPUS, {"Ada": ["p1", "p2"], "Bob": ["p2"], QUESTION.question: ["p1"]})
        self.asked: list[QueryLike] = []
        self.broken = broken

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.asked += queries
        if self.broken in [self.seen(query) for query in queries]:
            raise RetrieverError("the disk is gone")
        return super().search(queries, k)


class Typed:
    """A model that writes its texts in order."""

    def __init__(self, *texts: str, tokenizer: Tokenizer = TOKENIZER) -> None:
        self.tokenizer: Tokenizer = tokenizer
        self.texts = texts
        self.waiting: list[Request] = []

    def start(self, request: Request) -> None:
        self.waiting.append(request)

    extend = start

    def step(self) -> list[Turn]:
        turns: list[Turn] = []
        for request in self.waiting:
            ids = tuple(self.tokenizer.encode(self.texts[len(request.state.searches)]))
            turns.append(Turn(request.key, ids, (-0.5,) * len(ids), TurnEnd.STOP))
        self.waiting = []
        return turns

    def close(self, key: int) -> None:
        pass


def run(*texts: str, retriever: FixedRetriever, limits: Limits = LIMITS) -> Trajectory:
    return rollout(Agent(PROTOCOL, Typed(*texts)), retriever, [QUESTION], [7], limits)[0]


def test_a_search_carries_the_question_the_reasoning_in_front_of_it_and_what_came_before() -> None:
    retriever = Recorder()
    run(*TURNS, retriever=retriever)
    ada = PastTurn("Ada", "who is Ada", ('"Ada"\nborn in 1815', '"Bob"\na <search>cat</search>'))
    bob = PastTurn("Bob", "and Bob ?", ('"Bob"\na <search>cat</search>',))
    assert retriever.asked == [
        Query("Ada", QUESTION.question, "who is Ada"),
        Query("Bob", QUESTION.question, "and Bob ?", (ada,)),
        Query("Eve", QUESTION.question, "so", (ada, bob)),
    ]


def test_a_finished_run_says_again_what_the_driver_asked() -> None:
    retriever = Recorder()
    trajectory = run(*TURNS, retriever=retriever)
    assert [search.query for search in trajectory.searches] == ["Ada", "Bob", "Eve"]
    assert replay_queries(Trajectory.from_json(trajectory.to_json()), PROTOCOL) == retriever.asked


def test_a_search_that_failed_is_said_again_too() -> None:
    retriever = Recorder(broken="Bob")
    trajectory = run(*TURNS, retriever=retriever)
    assert trajectory.stop.is_fault and replay_queries(trajectory, PROTOCOL) == retriever.asked[:2]


@pytest.mark.parametrize("budget", range(60, 400, 20))
def test_a_run_cut_short_anywhere_says_only_the_searches_it_holds(budget: int) -> None:
    retriever = Recorder()
    trajectory = run(*TURNS, retriever=retriever, limits=LIMITS.model_copy(update={"max_tokens": budget}))
    assert replay_queries(trajectory, PROTOCOL) == retriever.asked[: len(trajectory.searches)]


def test_a_search_that_opens_the_run_is_the_question_without_reasoning() -> None:
    protocol = load_protocol("rag", "laptop")
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    retriever = Recorder()
    agent = Agent(protocol, Typed("", "<answer>1815</answer>", tokenizer=tokenizer))
    trajectory = rollout(agent, retriever, [QUESTION], [7], LIMITS)[0]
    assert trajectory.answer == "1815"
    assert retriever.asked == [Query(QUESTION.question, QUESTION.question)] == replay_queries(trajectory, protocol)


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
    assert reasoning_of(PROTOCOL.grammar, written) == reasoning
