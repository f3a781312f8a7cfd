"""Fears about `/v1/responses`: that the official client does not read it, and that its items are not the run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import openai
import pytest
from openai.types.responses import Response, ResponseFunctionWebSearch, ResponseInputParam, ResponseStreamEvent
from tests.models.tiny_policy import tiny_policy
from tests.serve.agent_live import LONG, QUESTIONS, live_agent, measured
from tests.serve.live import WEB, EchoRetriever

from coseek.agents.sources import reply_in_words
from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import StopReason
from coseek.retrieval.query import QueryLike
from coseek.serve.agent_chat import details, reasoning, usage


class Addressed(EchoRetriever):
    """Finds one passage, which has an address."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        page = Passage("ada", "Ada", "She wrote the first program.", meta={"url": "https://a.example/ada"})
        return [[Hit(page, 1.0)] for _ in queries]


@contextmanager
def client_of(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def thoughts(response: Response) -> str:
    return "".join(part.text for item in response.output if item.type == "reasoning" for part in item.content or [])


def without_ids(response: Response) -> dict[str, object]:
    row = response.model_dump(exclude={"id", "created_at"})
    return {**row, "output": [{**item, "id": ""} for item in row["output"]]}


def streamed(client: openai.OpenAI, question: str) -> list[ResponseStreamEvent]:
    stream = client.responses.create(model="agent", input=question, stream=True, extra_body={"seed": 5})
    return list(stream)


def check_order(events: list[ResponseStreamEvent]) -> Response:
    """Check what the events promise each other; returns the response of the last one."""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    opened: list[str] = []
    deltas: dict[str, str] = {}
    for event in events:
        if event.type == "response.output_item.added":
            assert event.output_index == len(opened) and event.item.status == "in_progress"  # type: ignore[union-attr]
            opened.append(str(event.item.id))
        elif event.type in ("response.reasoning_text.delta", "response.output_text.delta"):
            assert event.item_id == opened[-1] and event.output_index == len(opened) - 1
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
        elif event.type in ("response.reasoning_text.done", "response.output_text.done"):
            assert event.text == deltas.get(event.item_id, "")
        elif event.type == "response.output_item.done":
            assert event.item.id == opened[-1]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete", "response.failed")
    assert [item.id for item in last.response.output] == opened
    return last.response


@pytest.mark.slow
def test_the_official_client_reads_reasoning_searches_and_a_cited_answer() -> None:
    with live_agent("rules", Addressed()) as (url, _), client_of(url) as client:
        whole = client.responses.create(model="agent", input=QUESTIONS[0], extra_body={"seed": 5}, metadata={"a": "b"})
        events = streamed(client, QUESTIONS[0])
        with client.responses.stream(model="agent", input=QUESTIONS[0], extra_body={"seed": 5}) as stream:
            helped = stream.get_final_response()
    assert [item.type for item in whole.output][-3:] == ["web_search_call", "reasoning", "message"]
    assert whole.status == "completed" and whole.metadata == {"a": "b"} and whole.output_text
    search = next(item for item in whole.output if isinstance(item, ResponseFunctionWebSearch))
    assert search.action.type == "search" and search.action.sources
    assert search.action.sources[0].url == "https://a.example/ada"
    message = whole.output[-1]
    assert message.type == "message" and message.content[0].type == "output_text"
    (cited,) = message.content[0].annotations
    assert cited.type == "url_citation" and cited.title == "Ada" and cited.end_index == len(whole.output_text)
    last = check_order(events)
    assert "response.output_text.annotation.added" in [event.type for event in events]
    assert {**without_ids(whole), "metadata": {}} == without_ids(last)
    assert helped.output_text == whole.output_text
    assert [item.type for item in helped.output] == [item.type for item in whole.output]


@pytest.mark.slow
def test_what_a_model_answers_is_what_a_run_measures_streamed_and_whole(tmp_path: Path) -> None:
    folder = str(tiny_policy(tmp_path / "policy", seed=6))
    runs = measured(folder, LONG)
    with live_agent(folder, limits=LONG) as (url, _), client_of(url) as client:
        for question, run in zip(QUESTIONS, runs, strict=True):
            events = streamed(client, question)
            got = client.responses.create(model="agent", input=question, extra_body={"seed": 5})
            assert without_ids(check_order(events)) == without_ids(got)
            assert thoughts(got) == reasoning(run) and got.output_text == reply_in_words(run)
            found = [item.action.query for item in got.output if isinstance(item, ResponseFunctionWebSearch)]  # type: ignore[union-attr]
            assert found == [search.query for search in run.searches]
            assert got.model_extra is not None and got.model_extra["coseek"] == details(run)
            assert got.usage is not None and got.usage.total_tokens == usage(run)["total_tokens"]
            cut = run.stop in (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT)
            assert got.status == ("incomplete" if cut else "completed")
    assert {"answered", "invalid", "token_limit"} == {run.stop for run in runs} and any(run.searches for run in runs)


def test_what_was_answered_can_be_sent_back_as_input() -> None:
    with live_agent("rules") as (url, _), client_of(url) as client:
        first = client.responses.create(model="agent", input=QUESTIONS[0])
        items = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": QUESTIONS[0]}]},
            *(item.model_dump() for item in first.output),
            {"type": "message", "role": "user", "content": QUESTIONS[1]},
        ]
        again = client.responses.create(model="agent", input=cast(ResponseInputParam, items))
    assert again.status == "completed" and again.output_text == measured("rules")[1].answer


def test_a_fault_is_a_failed_response_and_no_answer() -> None:
    with live_agent("rules") as (url, _), client_of(url) as client:
        for question, sentence in (("fail", "the shelf fell down"), ("bug", "a bug of the service")):
            failed = check_order(streamed(client, question))
            assert failed.status == "failed" and failed.error is not None and sentence in failed.error.message
            assert not failed.output_text
        with pytest.raises(openai.InternalServerError, match="the shelf fell down"):
            client.responses.create(model="agent", input="fail")


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": " "}, "the last message is the question"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "the last message is the question"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "content"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id is not offered"),
        ({"input": "x", "conversation": "conv_1"}, "conversation is not offered"),
        ({"input": "x", "background": True}, "background is not offered"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference is not offered"),
    ],
)
def test_what_would_need_a_stored_response_is_refused(body: dict[str, object], sentence: str, small: str) -> None:
    got = WEB.post(f"{small}/v1/responses", json=body)
    assert got.status_code == 400 and sentence in got.json()["error"]["message"]


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    with live_agent("rules") as (url, _):
        yield url
