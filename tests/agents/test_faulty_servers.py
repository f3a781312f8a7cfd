"""A model and a retriever behind servers that fail, stall and talk nonsense: every question is accounted for."""

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.models.http_site import Asked, Said, site

from coseek.agents.drivers import Agent, Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import run_questions
from coseek.core.files import JsonObject
from coseek.core.http import HttpSettings
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Author, StopReason
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.audit import audit_run
from coseek.retrieval.retrievers.remote import RemoteRetriever
from coseek.retrieval.retrievers.remote import RemoteRetrieverSettings as RetrieverSettings

PROTOCOL = load_protocol("search-r1", "laptop")
TOKENIZER = ByteTokenizer(PROTOCOL.grammar.special_tokens)
SEARCH = "<think> look </think><search> who </search>"
ANSWER = "<think> seen </think><answer> Ada </answer>"
EVIDENCE = "the one true passage"
LIMITS = Limits(max_tokens=4000, max_turn_tokens=1000, max_observation_tokens=1000)


def flaky(honest: Callable[[Asked], Said], rng: random.Random, gate: threading.Event) -> Callable[[Asked], Said]:
    """10 % of calls fail, 5 % stall, 5 % answer garbage."""

    def answer(asked: Asked) -> Said:
        draw = rng.random()
        if draw < 0.10:
            return Said({"error": "out of memory"}, 500)
        if draw < 0.15:
            return Said(b"{}", hold=gate)
        return Said(b"<html>a proxy's page</html>") if draw < 0.20 else honest(asked)

    return answer


def model(asked: Asked) -> Said:
    """Searches once, then answers."""
    prompt = asked.body["prompt"]
    assert isinstance(prompt, list)
    ids = TOKENIZER.encode(ANSWER if TOKENIZER.encode("</information>")[0] in prompt else SEARCH)
    choice: JsonObject = {"text": TOKENIZER.decode(ids), "finish_reason": "stop", "token_ids": [*ids]}
    choice["logprobs"] = {"token_logprobs": [-0.1] * len(ids)}
    return Said({"choices": [choice]})


def retriever(asked: Asked) -> Said:
    queries = asked.body["queries"]
    assert isinstance(queries, list)
    row: JsonObject = {"document": {"id": "p", "title": "T", "text": EVIDENCE}, "score": 1.0}
    return Said({"result": [[row] for _ in queries]})


@pytest.mark.slow
def test_questions_survive_servers_that_fail_a_fifth_of_all_calls(tmp_path: Path) -> None:
    gate = threading.Event()
    questions = [Question(f"q{number}", f"Who is {number} ?", ("Ada",)) for number in range(80)]
    rng = random.Random(11)
    with site(flaky(model, rng, gate)) as brain, site(flaky(retriever, rng, gate)) as shelf:
        patience = HttpSettings(attempts=2, timeout_s=0.5, first_wait_s=0.001, concurrency=32, break_after=1_000)
        settings = RemoteModelSettings(dialect="vllm", model="m", patience=patience)
        written = open_remote(brain.url, settings, TOKENIZER, PROTOCOL.grammar.stops)
        found = RemoteRetriever(
            RetrieverSettings(url=shelf.url, retries=1, timeout_s=0.5, backoff_s=0.001, break_after=999)
        )
        run = Run.create(tmp_path / "run", {"limits": {"max_tokens": 4000}})

        def stop_early(ended: int, total: int) -> None:
            if ended >= 30:
                raise KeyboardInterrupt

        agent = Agent(PROTOCOL, written)
        with pytest.raises(KeyboardInterrupt):
            run_questions(run, agent, found, questions, LIMITS, tell=stop_early)
        first = {trajectory.question.id: trajectory.to_json() for trajectory in run.trajectories()}
        run_questions(run, agent, found, questions, LIMITS)
        gate.set()
        written.calls.close()
        found.close()
    kept = list(run.trajectories())
    assert len(first) == 30
    by_id = {trajectory.question.id: trajectory.to_json() for trajectory in kept}
    assert {ident: by_id[ident] for ident in first} == first  # those were not done again
    assert [trajectory.question.id for trajectory in kept] == [question.id for question in questions]
    ends = Counter(trajectory.stop for trajectory in kept)
    assert set(ends) <= {StopReason.ANSWERED, StopReason.MODEL_ERROR, StopReason.RETRIEVER_ERROR}
    assert ends[StopReason.ANSWERED] >= 60
    for trajectory in kept:
        assert (trajectory.answer is None) == trajectory.stop.is_fault == bool(trajectory.stop_detail)
        for segment in trajectory.segments[1:]:
            assert "proxy" not in segment.text and "memory" not in segment.text
            assert segment.author is Author.AGENT or EVIDENCE in segment.text
    assert audit_run(tmp_path / "run").violations == ()
