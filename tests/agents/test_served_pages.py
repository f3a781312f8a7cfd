"""Long runs over whole pages, through an index that is really served."""

from contextlib import closing

import pytest
from tests.agents.playing import QUESTION, WIDE, typist
from tests.serve.live import live

from coseek.agents.drivers import Agent, rollout
from coseek.agents.protocol import load_protocol
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason, Trajectory
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings
from coseek.retrieval.retrievers.remote import RemoteRetriever, RemoteRetrieverSettings

PAGES = 40
TEXT = " ".join(f"filler{number % 977}" for number in range(5_000))
CORPUS = Corpus([Passage(f"p{page}", f"Page {page}", f"topic{page:02} {TEXT}") for page in range(PAGES)])
LIMITS = WIDE.model_copy(update={"max_turns": 50, "passages_per_search": 5, "max_tokens": 10_000_000})


def run_over(view: str, count: int) -> tuple[Trajectory, list[int]]:
    """A run of so many searches that each find five pages, and the bytes of its requests."""
    turns = [
        '<think>why</think><tool_call>{"name": "search", "arguments": {"query": '
        f'"topic{number:02} filler1 filler2"}}}}</tool_call>'
        for number in range(count)
    ]
    protocol = load_protocol("react", "default")
    agent = Agent(protocol, typist(protocol, *turns, "<think>b</think><answer>x</answer>"))
    sizes: list[int] = []
    with (
        live({"pages": Bm25.over(CORPUS, Bm25Settings(view=view))}, sizes=sizes) as url,
        closing(RemoteRetriever(RemoteRetrieverSettings(url=url))) as client,
    ):
        return rollout(agent, client, [QUESTION], [7], LIMITS)[0], sizes


@pytest.mark.slow
@pytest.mark.parametrize("view", ["query", "question+query"])
def test_a_view_without_past_turns_has_requests_of_one_size_however_long_the_run_is(view: str) -> None:
    trajectory, sizes = run_over(view, 30)
    assert (trajectory.stop, [search.fault for search in trajectory.searches]) == (StopReason.ANSWERED, [None] * 30)
    assert all(len(search.hits) == 5 for search in trajectory.searches)
    assert len(sizes) == 30 and len(set(sizes)) == 1 and max(sizes) < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "count"),
    [("prior-queries", 30), pytest.param("prior-queries+reasonings+documents", 9, marks=pytest.mark.slow)],
)
def test_a_view_of_past_turns_never_sends_more_than_the_server_takes(view: str, count: int) -> None:
    trajectory, sizes = run_over(view, count)
    assert (trajectory.stop, [search.fault for search in trajectory.searches]) == (StopReason.ANSWERED, [None] * count)
    assert len(sizes) == count and max(sizes) < (1_100_000 if "documents" in view else 5_000)
