"""Shared by tests of the agent service: an agent's server in a thread, and the same questions in a run."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx
from tests.serve.live import WEB, EchoRetriever, in_a_thread

from coseek.agents.drivers import rollout
from coseek.agents.factory import limits_for, open_agent, settings_for, settled_for
from coseek.agents.limits import Limits
from coseek.core.settings import make_settings
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.serve.agent_app import make_agent_app
from coseek.serve.agent_service import AgentService
from coseek.serve.service import bound
from coseek.serve.settings import AgentServeSettings

SHORT = Limits(max_turns=3, max_turn_tokens=24, max_observation_tokens=64, max_tokens=2000)
LONG = SHORT.model_copy(update={"max_turn_tokens": 200})
"""With the tiny policy of seed 6: answers, a search, and turns without either."""
QUESTIONS = [f"Who wrote program {number} ?" for number in range(12)]


@contextmanager
def live_agent(
    name: str, retriever: EchoRetriever | None = None, limits: Limits | None = None, **settings: float | str
) -> Iterator[tuple[str, AgentService]]:
    """The URL of an agent's server in a thread, and its service."""
    given = make_settings(AgentServeSettings, {"port": 0, "log": False, **settings})
    chosen = settings_for(name, "search-r1")
    listening = bound(given.host, given.port)
    service = AgentService(
        settled_for(chosen, chosen), lambda: retriever or EchoRetriever(), limits or limits_for(chosen), given, "agent"
    )
    with in_a_thread(service, make_agent_app(service), listening) as url:
        yield url, service


def ask(url: str, question: str, **more: object) -> httpx.Response:
    row = {"messages": [{"role": "user", "content": question}], **more}
    return WEB.post(f"{url}/v1/chat/completions", json=row)


def measured(name: str, limits: Limits | None = None, questions: Sequence[Question] | None = None) -> list[Trajectory]:
    """The same questions in a run."""
    chosen = settings_for(name, "search-r1")
    agent = open_agent(settled_for(chosen, chosen))
    questions = questions or [Question("asked", text) for text in QUESTIONS]
    return rollout(agent, EchoRetriever(), questions, [5] * len(questions), limits or limits_for(chosen))


def until(true: Callable[..., bool]) -> None:
    """Wait until the condition is true, at most 20 s."""
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)
