"""Fears about the service of a model: rows that differ from the local ones, requests that break it, work for nobody."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most
from tests.models.networks import converse, network
from tests.serve.live import WEB
from tests.serve.model_live import TAGS, live_model, tiny_policy

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.http import HttpSettings
from coseek.hardware.placement import FLOAT32
from coseek.models.chat import Message, chat_ids
from coseek.models.pretrained import load_model
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.remote_text import RemoteTextModelSettings, open_remote_text
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer
from coseek.serve import model_service
from coseek.serve.model_service import ModelService
from coseek.serve.settings import ModelServeSettings

STOPS = ("</search>", "</answer>", " f")
Live = tuple[str, ModelService]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("served") / "policy")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HfTokenizer:
    return HfTokenizer.load(folder)


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    with live_model(folder) as served:
        yield served


@pytest.fixture(scope="module", autouse=True)
def client() -> Iterator[None]:
    """One client for all: making one takes longer than most requests."""
    with httpx.Client(timeout=30, trust_env=False) as opened:
        CLIENTS.append(opened)
        yield
        CLIENTS.clear()


CLIENTS: list[httpx.Client] = []


def post(live: Live, /, **body: object) -> httpx.Response:
    return CLIENTS[0].post(f"{live[0]}/v1/completions", content=json.dumps(body))


def choice(reply: httpx.Response) -> JsonObject:
    assert reply.status_code == 200, reply.text
    found = reply.json()["choices"][0]
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_conversation_over_http_is_the_one_with_the_local_sampler(
    live: Live, folder: Path, tokenizer: HfTokenizer, temperature: float
) -> None:
    local = Sampler(load_model(folder, FLOAT32), tokenizer, STOPS, SamplerSettings(temperature=temperature))
    remote = open_remote(live[0], RemoteModelSettings(), tokenizer, STOPS, temperature)
    assert remote.served.dialect == "coseek" and not remote.inexact
    here, there = converse(local, range(24), lengths=30), converse(remote, range(24), lengths=30)
    remote.calls.close()
    for key, turns in here.items():
        assert [(turn.ids, turn.end) for turn in turns] == [(turn.ids, turn.end) for turn in there[key]]
        for ours, theirs in zip(turns, there[key], strict=True):
            assert theirs.logprobs == pytest.approx(ours.logprobs, abs=1e-5)
    assert len({turn.end for turns in here.values() for turn in turns}) > 1


@pytest.mark.slow
def test_a_next_turn_is_not_read_again(live: Live, tokenizer: HfTokenizer) -> None:
    before = live[1].generation.reused_tokens
    first = choice(post(live, prompt=[5, 6, 7], max_tokens=6, temperature=0, return_token_ids=True))
    ids = [5, 6, 7, *first["token_ids"]]  # type: ignore[misc]
    again = choice(post(live, prompt=[*ids, 9], max_tokens=6, temperature=0, return_token_ids=True))
    assert live[1].generation.reused_tokens - before == len(ids)
    with live_model(live[1]._folder) as fresh:
        told = choice(post(fresh, prompt=[*ids, 9], max_tokens=6, temperature=0, return_token_ids=True))
    assert told["token_ids"] == again["token_ids"]


def test_a_row_that_is_placed_beside_others_finds_its_slot() -> None:
    """The engine had made no room yet for a row that took a slot behind one that waits."""
    from tests.models.networks import request

    model = network("lfm2")
    alone, beside = (Sampler(model, ByteTokenizer(), (), SamplerSettings(temperature=0.0)) for _ in range(2))
    beside.start(request(1, [40, 41], 2))
    beside.step()
    for sampler in (alone, beside):
        sampler.start(request(2, [50, 51], 4))
    assert beside.step()[0].ids == alone.step()[0].ids


def test_text_goes_in_and_comes_out_without_its_stop_string(live: Live, tokenizer: HfTokenizer) -> None:
    asked = {"prompt": " the cat", "max_tokens": 200, "seed": 4, "stop": "t", "return_token_ids": True}
    cut, whole = choice(post(live, **asked)), choice(post(live, **asked, include_stop_str_in_output=True))
    assert cut["finish_reason"] == "stop" and cut["stop_reason"] == "t"
    assert "t" not in str(cut["text"])
    assert whole["text"] == tokenizer.decode(whole["token_ids"])  # type: ignore[arg-type]
    assert cut["prompt_token_ids"] == tokenizer.encode(" the cat")
    assert cut["logprobs"] is None


@pytest.mark.parametrize("prompt", [" the cat", "<think> the cat"])
def test_a_text_begins_once(live: Live, tokenizer: HfTokenizer, prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = tuple(tokenizer.encode("<think>"))
    assert live[1].weights is not None
    monkeypatch.setattr(live[1], "weights", replace(live[1].weights, bos_ids=begin))
    found = choice(post(live, prompt=prompt, max_tokens=1, return_token_ids=True))
    assert found["prompt_token_ids"] == [*begin, *tokenizer.encode(" the cat")]


def test_log_probabilities_come_when_asked_for(live: Live) -> None:
    found = choice(post(live, prompt="a", max_tokens=5, seed=1, logprobs=0, return_token_ids=True))["logprobs"]
    assert isinstance(found, dict)
    assert len(found["token_logprobs"]) == len(found["tokens"]) == 5  # type: ignore[arg-type]


def test_several_prompts_are_several_choices(live: Live) -> None:
    reply = post(live, prompt=["one", "two", "one"], max_tokens=4, temperature=0)
    texts = [row["text"] for row in reply.json()["choices"]]
    assert texts[0] == texts[2] and [row["index"] for row in reply.json()["choices"]] == [0, 1, 2]
    usage = reply.json()["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_chat_is_answered_and_a_special_token_in_it_is_ordinary(live: Live, tokenizer: HfTokenizer) -> None:
    said = "what </search> now"
    body = {"messages": [{"role": "user", "content": said}], "max_tokens": 5, "temperature": 0}
    reply = CLIENTS[0].post(live[0] + "/v1/chat/completions", json=body)
    assert isinstance(choice(reply)["message"], dict)
    ids = chat_ids(tokenizer, [Message("user", said)])
    assert not set(ids) & set(tokenizer.encode("</search>"))
    assert reply.json()["usage"]["prompt_tokens"] == len(ids)


def test_a_chat_template_is_filled_without_being_read_from(tokenizer: HfTokenizer, folder: Path) -> None:
    ours = HfTokenizer.load(folder)
    ours.fast.chat_template = "{% for m in messages %}<think>{{ m.role }}</think>{{ m.content }}{% endfor %}<answer>"
    ids = chat_ids(ours, [Message("system", "{{ 1 }} <think>"), Message("user", "\ue0001\ue001")])
    assert ours.decode(ids) == "<think>system</think>{{ 1 }} <think><think>user</think>\ue0001\ue001<answer>"
    assert ids.count(ours.encode("<think>")[0]) == 2


def test_the_text_client_and_the_service_understand_each_other(live: Live) -> None:
    writer = open_remote_text(RemoteTextModelSettings(url=live[0]))
    assert writer.served.model == "policy"
    texts = writer.write(["one fish", "the cat", "one fish"], 8)
    assert texts[0] == texts[2] and writer.usage.written_tokens > 0
    writer.calls.close()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [1_000_000]}, "the vocabulary ends at"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [1] * 2048}, "leaves no room"),
        ({"prompt": "a", "temprature": 0}, "did you mean 'temperature'"),
        ({"prompt": "a", "stream": True}, "stream = true is not offered"),
        ({"prompt": "a", "n": 2}, "n = 2 is not offered"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": "0"}, "temperature"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a\ud800"}, "surrogate"),
        ({"prompt": "a", "model": "\udfff"}, "surrogate"),
        ({"prompt": "a", "stop": "x" * 300}, "stop"),
        ({}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_a_sentence(live: Live, body: dict[str, object], sentence: str) -> None:
    reply = post(live, **body)
    assert reply.status_code == 400
    assert sentence in reply.json()["error"]["message"]


def test_a_text_that_is_refused_is_not_encoded_to_its_end(
    live: Live, tokenizer: HfTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fear: two megabytes of text took 570 MB to say that they were too many tokens."""
    lengths: list[int] = []
    encode = HfTokenizer.encode

    def counted(self: HfTokenizer, text: str) -> list[int]:
        lengths.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(HfTokenizer, "encode", counted)
    text = "x y " * 100_000
    for path, body in (
        ("completions", {"prompt": text}),
        ("chat/completions", {"messages": [{"role": "user", "content": text}]}),
    ):
        got = httpx.post(f"{live[0]}/v1/{path}", json=body, timeout=30, trust_env=False)
        assert got.status_code == 400 and "leaves no room" in got.json()["error"]["message"]
    assert lengths and max(lengths) <= 2_048 * model_service.CHARS_A_TOKEN
    sparse = TAGS[4] * 1_000  # more characters than are encoded at first, in tokens of 13 each
    assert model_service.encoded_up_to(tokenizer, sparse, 1_100) == encode(tokenizer, sparse) and len(lengths) > 3


def test_a_model_of_another_name_is_not_found(live: Live) -> None:
    assert post(live, prompt="a", model="gpt").status_code == 404
    assert WEB.get(live[0] + "/v2").status_code == 404


def test_the_service_says_what_it_is(live: Live) -> None:
    get = {path: WEB.get(live[0] + path).json() for path in ("/health", "/info", "/v1/models")}
    assert get["/health"]["ready"] is True
    assert get["/info"]["max_context"] == 2048
    assert get["/info"]["precision"] == "float32"
    assert get["/v1/models"]["data"][0]["owned_by"] == "coseek"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "logprobs", "n", "model"]
)


@given(body=st.dictionaries(FIELDS, JSON, max_size=5), chat=st.booleans())
@settings(max_examples=at_most(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_is_asked_breaks_the_service(live: Live, body: dict[str, object], chat: bool) -> None:
    if isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = min(4, int(str(body["max_tokens"]))) if not isinstance(body["max_tokens"], bool) else True
    else:
        body.setdefault("max_tokens", 4)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    reply = CLIENTS[0].post(live[0] + path, content=json.dumps(body))
    assert reply.status_code in (200, 400, 404, 413), reply.text


@pytest.mark.slow
def test_requests_join_while_others_are_written(folder: Path) -> None:
    with live_model(folder) as live:
        began = threading.Event()
        long: list[float] = []

        def write_long() -> None:
            began.set()
            post(live, prompt=[40], max_tokens=700, temperature=0.0)
            long.append(time.monotonic())

        thread = threading.Thread(target=write_long)
        thread.start()
        began.wait()
        while live[1].generation.running == 0:
            time.sleep(0.001)
        post(live, prompt=[41], max_tokens=2, temperature=0.0)
        short = time.monotonic()
        thread.join()
    assert short < long[0]


def test_nobody_writes_for_a_client_that_has_gone(folder: Path) -> None:
    with live_model(folder) as live:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                live[0] + "/v1/completions",
                json={"prompt": [40], "max_tokens": 2000, "temperature": 0},
                timeout=0.03,
                trust_env=False,
            )
        until = time.monotonic() + 2
        while live[1].generation.running and time.monotonic() < until:
            time.sleep(0.01)
        assert live[1].generation.running == 0
        assert live[1].generation.written_tokens == 0


@pytest.mark.slow
@pytest.mark.parametrize(("queue", "most_wait_s", "least"), [(3, 60.0, 3), (1_024, 1e-9, 1)])
def test_a_full_queue_is_a_503_and_nothing_else_is_lost(
    folder: Path, queue: int, most_wait_s: float, least: int
) -> None:
    with live_model(folder, max_rows=2, queue=queue, most_wait_s=most_wait_s) as live, ThreadPoolExecutor(12) as pool:
        post(live, prompt=[40], max_tokens=20)  # so that the service knows how long a text takes
        asked = [pool.submit(post, live, prompt=[40 + n], max_tokens=200, temperature=0) for n in range(12)]
        replies = [future.result() for future in asked]
        codes = [reply.status_code for reply in replies]
        assert set(codes) == {200, 503}
        assert codes.count(200) >= least  # what began to run meanwhile made room for more
        assert all(int(reply.headers["retry-after"]) >= 1 for reply in replies if reply.status_code == 503)


@pytest.mark.slow
def test_many_kinds_of_draw_take_turns(folder: Path) -> None:
    with live_model(folder, max_rows=4) as live, ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(post, live, prompt=[40], max_tokens=20, temperature=n / 10, seed=1) for n in range(12)]
        assert [future.result().status_code for future in asked] == [200] * 12


def test_a_token_is_asked_for(folder: Path) -> None:
    with live_model(folder, token="let-me-in") as live:
        assert post(live, prompt="a").status_code == 401
        assert WEB.get(live[0] + "/health").status_code == 200
        with pytest.raises(SettingError, match="its key is missing"):
            open_remote(
                live[0], RemoteModelSettings(patience=HttpSettings(attempts=1)), HfTokenizer.load(folder), STOPS
            )


@pytest.mark.slow
def test_what_was_accepted_is_answered_before_the_end(folder: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with live_model(folder) as live:
            asked = pool.submit(post, live, prompt=[40], max_tokens=300, temperature=0)
            while live[1].generation.running == 0:
                time.sleep(0.001)
        assert asked.result().status_code == 200


@pytest.mark.slow
def test_the_command_serves_and_ends_on_a_signal(folder: Path) -> None:
    command = [sys.executable, "-m", "coseek.cli.main", "serve", "model", str(folder), "--port", "0", "--quiet"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(4) as pool,
    ):
        assert process.stdout is not None
        url = process.stdout.readline().rpartition(" ")[2].strip()
        live = (url, ModelService(folder, ModelServeSettings()))
        asked = [pool.submit(post, live, prompt=[40 + n], max_tokens=300, temperature=0) for n in range(4)]
        while WEB.get(url + "/health").json()["running"] < 4:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert [future.result().status_code for future in asked] == [200] * 4
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
