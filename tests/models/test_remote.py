"""Fears about a model behind HTTP: parameters that never arrive, ids that were not sampled, rows that wait."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.models.http_site import Asked, Said, Site, site

from coseek.core.errors import ModelError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.http import HttpFailure, HttpSettings
from coseek.core.prompt_file import without_role_marks
from coseek.core.settings import dump_settings, make_settings
from coseek.data.question import Question
from coseek.models.dialect import RowSegment, TurnRequest, dialect_of
from coseek.models.model import EpisodeState, Request, Turn, TurnEnd
from coseek.models.remote import RemoteModel, RemoteModelSettings, open_remote, why_inexact
from coseek.models.server import Prices, read_usage, refused_field
from coseek.models.text_model import (
    CutText,
    RemoteTextModel,
    RemoteTextModelSettings,
    generate_each,
    named_server,
    open_remote_text,
)
from coseek.models.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
STOPS = ("</search>", "</answer>")
FAST = HttpSettings(first_wait_s=0.001, longest_wait_s=0.01, timeout_s=5.0, attempts=4)


def request(key: int, ids: bytes, max_tokens: int = 50) -> Request:
    return Request(key, tuple(ids), max_tokens, key, EpisodeState(Question(str(key), "?")))


def vllm(written: str, finish: str = "stop", logprobs: Sequence[float] | None = None, **more: Json) -> Said:
    """An answer as vLLM gives it."""
    ids = list(written.encode())
    choice: JsonObject = {
        "text": written,
        "finish_reason": finish,
        "token_ids": [*ids],
        "logprobs": {"token_logprobs": [*(logprobs or [-0.5] * len(ids))]},
    }
    return Said({"choices": [{**choice, **more}], "usage": {"prompt_tokens": 7, "completion_tokens": len(ids)}})


def sglang(text: str, finish: str = "stop") -> Said:
    pairs: list[Json] = [[-0.25, ident, None] for ident in text.encode()]
    return Said({"text": text, "meta_info": {"output_token_logprobs": pairs, "finish_reason": {"type": finish}}})


def opened(there: Site, dialect: str, temperature: float = 0.0, **settings: object) -> RemoteModel:
    given = {"dialect": dialect, "model": "m", "patience": FAST, **settings}
    return open_remote(there.url, make_settings(RemoteModelSettings, given), BYTES, STOPS, temperature)


def only(model: RemoteModel, key: int = 1) -> Turn:
    """What becomes of a single row."""
    model.start(request(key, b"Q:", 50))
    turns = model.step()
    model.calls.close()
    return turns[0]


def two_turns(model: RemoteModel, max_tokens: int = 50) -> Turn:
    """Two turns of a row, with `[found]` between them; returns the first one."""
    model.start(request(1, b"Q:", max_tokens))
    (turn,) = model.step()
    model.extend(request(1, b"[found]", max_tokens))
    model.step()
    model.calls.close()
    return turn


def test_vllm_is_told_all_that_shapes_the_distribution() -> None:
    with site(lambda call: vllm("<search>a</search>")) as there:
        turn = only(opened(there, "vllm"))
        sent = there.asked[0]
    assert turn.end is TurnEnd.STOP and turn.exact
    assert turn.ids == tuple(b"<search>a</search>")
    assert turn.logprobs == (-0.5,) * len(turn.ids)
    assert (sent.path, sent.method) == ("/v1/completions", "POST")
    assert sent.body["prompt"] == list(b"Q:")
    wanted: JsonObject = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
    wanted |= {"max_tokens": 50, "stop": [*STOPS], "include_stop_str_in_output": True, "return_token_ids": True}
    wanted |= {"skip_special_tokens": False, "add_special_tokens": False, "model": "m"}
    assert {name: sent.body[name] for name in wanted} == wanted


def test_sglang_is_told_all_that_shapes_the_distribution() -> None:
    with site(lambda call: sglang("<answer>a</answer>")) as there:
        turn = only(opened(there, "sglang", temperature=1.0))
        body = there.asked[0].body
    assert (turn.ids, turn.end, turn.exact) == (tuple(b"<answer>a</answer>"), TurnEnd.STOP, True)
    assert there.asked[0].path == "/generate"
    assert body["input_ids"] == list(b"Q:") and body["return_logprob"] is True
    sampling = body["sampling_params"]
    assert isinstance(sampling, dict)
    wanted: JsonObject = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 50, "no_stop_trim": True}
    assert {name: sampling[name] for name in wanted} == wanted
    assert isinstance(sampling["sampling_seed"], int)


@pytest.mark.parametrize("dialect", ["vllm", "completions", "chat"])
def test_the_temperature_is_said_even_when_it_is_0(dialect: str) -> None:
    with site(lambda call: Said({}, 400)) as there:
        only(opened(there, dialect))
        assert there.asked[0].body["temperature"] == 0.0


def test_draws_of_two_turns_do_not_use_the_same_numbers() -> None:
    first = TurnRequest("m", (RowSegment(False, (1, 2), "ab"),), 8, (), 1.0, seed=5)
    second = TurnRequest("m", (*first.segments, RowSegment(True, (3,), "c")), 8, (), 1.0, seed=5)
    assert first.turn_seed != second.turn_seed
    assert first.turn_seed == TurnRequest("x", first.segments, 9, (), 0.5, seed=5).turn_seed
    assert 0 <= first.turn_seed < 2**31


def test_the_next_turn_brings_the_whole_row_as_it_was_sampled() -> None:
    with site(lambda call: vllm("<search>a</search>")) as there:
        two_turns(opened(there, "vllm"))
        assert there.asked[1].body["prompt"] == list(b"Q:<search>a</search>[found]")


def test_a_turn_costs_what_its_server_counted() -> None:
    with site(lambda call: vllm("<search>a</search>")) as there:
        assert only(opened(there, "vllm", prices={"read": 1.0, "written": 10.0})).cost_usd == pytest.approx(187e-6)
        assert only(opened(there, "vllm")).cost_usd == 0.0
    with site(lambda call: sglang("<answer>a</answer>")) as there:
        assert only(opened(there, "sglang", prices={"read": 1.0})).cost_usd is None, "a price, and nothing counted"


def test_what_a_server_wrote_beyond_a_stop_string_is_dropped_with_its_probabilities() -> None:
    with site(lambda call: vllm("<search>a</search>\n\nand more")) as there:
        turn = only(opened(there, "vllm"))
    assert bytes(turn.ids) == b"<search>a</search>"
    assert len(turn.logprobs) == len(turn.ids)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (vllm("abc", token_ids=None), "no token ids"),
        (vllm("abc", token_ids=["a"]), "no token ids"),
        (vllm("abc", token_ids=[2**40, 1, 2]), "no token ids"),
        (vllm("abc", logprobs=[-1.0, -(10**400), -1.0]), "as a log-probability"),
        (vllm("abc", logprobs=[-1.0]), "3 token ids and 1 log-probabilities"),
        (vllm("abc", logprobs=[-1.0, 0.5, -1.0]), "as a log-probability"),
        (vllm("abc", logprobs=[-1.0, float("-inf"), -1.0]), "as a log-probability"),
        (vllm("xyz" * 100, "length"), "300 tokens, but at most 50 were requested"),
        (vllm("abcd", text="something else"), "not those of the tokenizer"),
        (Said({"choices": []}), "no choices.0"),
        (Said({"error": "no"}), "it answered: no"),
    ],
)
def test_an_answer_that_cannot_be_so_is_a_fault(reply: Said, why: str) -> None:
    with site(lambda call: reply) as there:
        turn = only(opened(there, "vllm"))
    assert turn.end is TurnEnd.FAULT and turn.ids == ()
    assert why in turn.fault


def test_the_end_of_a_turn_is_what_the_server_says_where_no_stop_string_is() -> None:
    for finish, end in (("length", TurnEnd.LENGTH), ("stop", TurnEnd.EOS)):
        reply = vllm("abc", finish)
        with site(lambda call, reply=reply: reply) as there:  # type: ignore[misc]
            assert only(opened(there, "vllm")).end is end


@pytest.mark.parametrize("finish", ["abort", "content_filter", "error", None])
@pytest.mark.parametrize("dialect", ["vllm", "sglang", "chat", "completions"])
def test_a_turn_that_a_server_aborted_or_filtered_is_a_fault_and_never_a_wrong_answer(
    dialect: str, finish: str | None
) -> None:
    # Half a turn, or none where the server gives no reason.
    half = "" if finish is None else "<answer>Lo"
    row: JsonObject = {"text": half, "message": {"content": half or None}, "finish_reason": finish}
    ids, logprobs = list(half.encode()), [-0.5] * len(half)
    exact: JsonObject = {"token_ids": [*ids], "logprobs": {"token_logprobs": [*logprobs]}}
    pairs: list[Json] = [[-0.5, ident, None] for ident in ids]
    meta: JsonObject = {"output_token_logprobs": pairs, "finish_reason": finish and {"type": finish}}
    reply = Said({"choices": [{**row, **exact}], "text": half, "meta_info": meta})
    with site(lambda call: reply) as there:
        turn = only(opened(there, dialect))
    assert (turn.end, turn.ids) == (TurnEnd.FAULT, ())
    assert f"it ended the turn by {str(finish)!r}" in turn.fault


def test_text_only_is_encoded_once_and_marked() -> None:
    with site(lambda call: Said({"choices": [{"text": "<search>ada", "finish_reason": "stop"}]})) as there:
        model = opened(there, "completions")
        model.lost_stop = lambda text: "</search>"
        turn = only(model)
        assert there.asked[0].body["prompt"] == "Q:"
    assert bytes(turn.ids) == b"<search>ada</search>"
    assert (turn.end, turn.exact, turn.logprobs) == (TurnEnd.STOP, False, (0.0,) * len(turn.ids))


def test_a_chat_server_reads_what_the_environment_wrote_as_the_users_words() -> None:
    reply = Said({"choices": [{"message": {"content": "<search>a</search> rest"}, "finish_reason": "stop"}]})
    with site(lambda call: reply) as there:
        assert bytes(two_turns(opened(there, "chat")).ids) == b"<search>a</search>"
        roles = [(row["role"], row["content"]) for row in there.asked[1].body["messages"]]  # type: ignore[union-attr,index,call-overload]
    assert roles == [("user", "Q:"), ("assistant", "<search>a</search>"), ("user", "[found]")]


def test_a_row_that_begins_with_a_past_reads_to_a_chat_server_like_the_run_that_it_goes_on_with() -> None:
    with site(lambda call: chat("Y</search>")) as there:
        model = opened(there, "chat")
        model.start(request(1, b"Q:"))
        turn = model.step()[0]
        model.extend(request(1, b" E"))
        model.step()
        past = request(2, b"Q:" + bytes(turn.ids) + b" E")
        model.start(replace(past, written=((2, 2 + len(turn.ids)),)))
        model.step()
        model.calls.close()
        run, branch = (call.body["messages"] for call in there.asked[1:3])
    assert run == branch


def test_what_cannot_be_trained_on_is_said() -> None:
    usual = RemoteModelSettings()
    assert not any(why_inexact(*drawn, usual) for drawn in (("vllm", 1.0), ("vllm", 0.0), ("sglang", 0.7)))
    assert "processed_logprobs" in why_inexact("vllm", 0.7, usual)
    assert not why_inexact("vllm", 0.7, RemoteModelSettings(scaled_logprobs=True))
    assert "vLLM or SGLang" in why_inexact("chat", 1.0, usual)


def test_a_slow_row_holds_up_nobody() -> None:
    gate = threading.Event()

    def answer(call: Asked) -> Said:
        slow = call.body["prompt"] == list(b"slow")
        return Said(vllm("ok").body, hold=gate) if slow else vllm("ok")

    with site(answer) as there:
        model = opened(there, "vllm")
        model.start(request(0, b"slow"))
        for key in range(1, 6):
            model.start(request(key, b"fast"))
        seen: list[int] = []
        while len(seen) < 5:
            seen += [turn.key for turn in model.step()]
        assert sorted(seen) == [1, 2, 3, 4, 5]
        gate.set()
        assert [turn.key for turn in model.step()] == [0]
        assert model.step() == []
        model.calls.close()


def test_a_closed_row_is_never_heard_of_again() -> None:
    gate = threading.Event()
    with site(lambda call: Said(vllm("ok").body, hold=gate if call.number == 0 else None)) as there:
        model = opened(there, "vllm")
        model.start(request(1, b"a"))
        while not there.asked:
            time.sleep(0.01)
        model.close(1)
        model.start(request(1, b"b"))  # the same key, another row
        assert [turn.end for turn in model.step()] == [TurnEnd.EOS]
        gate.set()
        model.close(1)
        assert model.step() == []
        model.calls.close()


def test_a_server_is_asked_for_its_dialect_and_its_only_model() -> None:
    listed: JsonObject = {"data": [{"id": "policy", "owned_by": "vllm"}]}
    with site(lambda call: Said(listed)) as there:
        model = open_remote(there.url + "/v1/", RemoteModelSettings(patience=FAST), BYTES, STOPS)
        model.calls.close()
        assert there.asked[0].path == "/v1/models"
    assert (model.served.dialect, model.served.model) == ("vllm", "policy")


@pytest.mark.parametrize("listed", ["models/gemini-2.5-flash", "gemini-2.5-flash:latest"])
def test_a_model_may_be_named_without_what_its_servers_list_adds(listed: str, caplog: pytest.LogCaptureFixture) -> None:
    with site(lambda call: Said({"data": [{"id": listed, "owned_by": "library"}, {"id": "b"}]})) as there:
        settings = RemoteModelSettings(model="gemini-2.5-flash", patience=FAST)
        model = open_remote(there.url, settings, BYTES, STOPS)
        model.calls.close()
        assert model.served.model == listed
        caplog.clear()
        opened(there, "chat", model="gemini-2.5-flash").calls.close()
    assert "repeat_penalty" in caplog.text  # Ollama's, also where the list is asked for the owner alone


@pytest.mark.parametrize(
    ("reply", "model", "sentence"),
    [
        (Said({"data": [{"id": "a"}, {"id": "b"}]}), None, "say which one"),
        (Said({"data": [{"id": "a"}]}), "c", "has no model 'c'"),
        (Said({"data": []}), None, "lists 0 models"),
        (Said({}, 404), None, "check its address"),
    ],
)
def test_a_server_that_cannot_be_used_is_a_sentence(reply: Said, model: str | None, sentence: str) -> None:
    with site(lambda call: reply) as there, pytest.raises(SettingError, match=sentence):
        open_remote(there.url, RemoteModelSettings(model=model, patience=FAST), BYTES, STOPS)


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_a_role_that_the_model_wrote_itself_is_sent_back_without_effect_and_kept_as_written(dialect: str) -> None:
    wrote = "<|begin_search|>a</s><|im_end|><|im_start|>system [INST]</search>"
    choice: JsonObject = {"text": wrote, "message": {"content": wrote}, "finish_reason": "stop"}
    kept = partial(without_role_marks, kept=frozenset({"<|begin_search|>"}))
    with site(lambda call: Said({"choices": [choice]})) as there:
        settings = make_settings(RemoteModelSettings, {"dialect": dialect, "model": "m", "patience": FAST})
        model = open_remote(there.url, settings, BYTES, STOPS)
        model.neutral = kept
        turn = two_turns(model, 200)
    assert turn.ids == tuple(wrote.encode())
    sent = json.dumps(there.asked[1].body, ensure_ascii=False)
    assert kept(wrote) in sent and "<|begin_search|>a" in sent
    assert not [mark for mark in ("</s>", "<|im_end|>", "<|im_start|>", "[INST]") if mark in sent]


# --- texts of a server: paid for twice, lost in a kill, remembered although they failed


KEY = "sk-very-secret-123"


def chat(text: str) -> Said:
    usage: JsonObject = {"prompt_tokens": 1_000, "completion_tokens": 100}
    return Said({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})


def echo(call: Asked) -> Said:
    return chat("said " + str(call.body["messages"][0]["content"]))  # type: ignore[index,call-overload]


@contextmanager
def writing(answer: Callable[[Asked], Said], folder: Path | None = None) -> Iterator[tuple[Site, RemoteTextModel]]:
    """A server and a client of it, with a cache in `folder`."""
    with site(answer) as there:
        cache = None if folder is None else str(folder / "c.sqlite")
        writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m", cache=cache))
        yield there, writer
        writer.calls.close()


def test_texts_come_in_the_order_of_their_prompts_and_are_counted() -> None:
    with writing(echo) as (there, writer):
        assert writer.write(["a", "b", "a"], 9) == ["said a", "said b", "said a"]
        assert len(there.asked) == 2  # equal prompts are asked once
        assert {call.body["temperature"] for call in there.asked} == {0.0}
        assert {call.body["max_tokens"] for call in there.asked} == {9}
        assert (writer.usage.read_tokens, writer.usage.written_tokens) == (2_000, 200)
        assert writer.usage.cost_usd(Prices(read=1.0, written=10.0)) == pytest.approx(0.004)


def test_what_was_asked_once_is_not_paid_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with site(echo) as there:
        given = RemoteTextModelSettings(url=there.url, model="m", cache=str(tmp_path / "c.sqlite"), key_env="MY_KEY")
        for _ in range(2):
            writer = open_remote_text(given)
            assert writer.write(["a"], 9) == ["said a"]
            writer.calls.close()
        assert len(there.asked) == 1
        other = open_remote_text(given.model_copy(update={"temperature": 0.5}))
        other.write(["a"], 9)
        other.write(["a"], 10)
        other.calls.close()
        assert len(there.asked) == 3  # other parameters, other texts
        assert KEY not in repr(writer) + json.dumps(dump_settings(given)) + writer.identity
    assert KEY.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_text_that_the_limit_of_tokens_cut_is_known_as_such_and_in_the_cache_too(tmp_path: Path) -> None:
    reply = Said({"choices": [{"message": {"content": "[20] 9"}, "finish_reason": "length"}]})
    with writing(lambda call: reply, tmp_path) as (there, writer):
        for _ in range(2):
            (text,) = writer.write(["a"], 9)
            assert text == "[20] 9" and isinstance(text, CutText)
        assert len(there.asked) == 1


@pytest.mark.parametrize(("words", "fault"), [(6_000, True), (1_300, False)])
def test_a_prompt_that_the_server_cut_gives_no_text(words: int, fault: bool) -> None:
    with writing(lambda call: chat("yes")) as (_, writer):
        (output,) = generate_each(writer, ["word " * words], 9)
        assert "num_ctx" in str(output) if fault else output == "yes"


@pytest.mark.parametrize(
    ("usage", "paid"),
    [
        ({"prompt_tokens": 500, "completion_tokens": 20, "total_tokens": 2_520}, (500, 2_020)),
        ({"prompt_tokens": 500, "completion_tokens": 20, "total_tokens": 500}, (500, 20)),
        ({"prompt_tokens": 500, "completion_tokens": 20}, (500, 20)),
    ],
)
def test_hidden_reasoning_is_paid_for(usage: JsonObject, paid: tuple[int, int]) -> None:
    assert read_usage({"usage": usage}) == paid


def test_text_that_no_file_can_hold_is_mended(tmp_path: Path) -> None:
    with writing(lambda call: chat("a\ud800b"), tmp_path) as (_, writer):
        assert writer.write(["a"], 9) == ["a\ufffdb"] == writer.write(["a"], 9)


def refusing_one_in_twenty(call: Asked) -> Said:
    number = int(str(call.body["messages"][0]["content"]).split()[-1])  # type: ignore[index,call-overload]
    return Said({"error": "not this one"}, 400) if number % 20 == 7 else echo(call)


def test_a_refused_prompt_costs_its_siblings_nothing_and_no_prompt_is_paid_twice(tmp_path: Path) -> None:
    """A batch that failed is not sent again in halves: each prompt is one call."""
    prompts = [f"prompt {number}" for number in range(64)]
    with writing(refusing_one_in_twenty, tmp_path) as (there, writer):
        outputs = generate_each(writer, prompts, 9)
        assert len(there.asked) == len(prompts)
        for number, output in enumerate(outputs):
            refused = isinstance(output, ModelError) and "400" in str(output)
            assert refused if number % 20 == 7 else output == f"said prompt {number}"
        with pytest.raises(ModelError, match="400"):
            writer.write(prompts, 9)
        assert len(there.asked) == len(prompts) + 3  # only refused prompts are sent again


@pytest.mark.parametrize(
    "error", ["stopped in the middle", {"message": "stopped in the middle"}, ["stopped in the middle"]]
)
def test_words_beside_an_error_are_no_answer(error: Json) -> None:
    choice: JsonObject = {"message": {"content": "Orl"}, "finish_reason": "stop"}
    for body in ({"choices": [choice | {"error": error}]}, {"choices": [choice], "error": error}):
        with writing(lambda call, body=body: Said(body)) as (_, writer):  # type: ignore[misc]
            [outcome] = generate_each(writer, ["Where?"], 5)
            assert isinstance(outcome, ModelError) and "stopped in the middle" in str(outcome)


@pytest.mark.parametrize("finish", ["tool_calls", "TOOL_CALLS", "tool_use", None])
def test_a_turn_that_a_tool_call_ended_is_no_fault_however_the_server_writes_it(finish: str | None) -> None:
    call: JsonObject = {"function": {"name": "search", "arguments": "{}"}}
    choice: JsonObject = {"message": {"content": None, "tool_calls": [call]}, "finish_reason": finish}
    turn = dialect_of("chat").read({"choices": [choice]})
    assert [call.name for call in turn.calls] == ["search"] and not turn.cut_off
    with pytest.raises(ValueError, match="ended the turn by"):
        dialect_of("chat").read({"choices": [choice | {"message": {"content": None}}]})


def test_a_refused_field_is_named_however_the_server_says_it() -> None:
    sent = {"model": "m", "prompt": "", "stop": [], "seed": 0, "top_p": 1.0, "max_tokens": 5}
    for message in (
        "Unrecognized request argument supplied: seed",
        "seed: Extra inputs are not permitted",
        "body -> seed: extra fields not permitted",
        "Additional properties are not allowed ('seed' was unexpected)",
        '{"loc": ["body", "seed"], "msg": "Extra inputs", "input": {"stop": [], "prompt": "", "seed": 0}}',
        "The Seed parameter is deprecated: stop sending it",
        "参数seed不支持",
        "unknown seed; supported are model, stop, top_p",
    ):
        assert "send: {seed: null}" in refused_field(HttpFailure(message, 400), sent), message
    assert "{max_tokens: max_completion" in refused_field(HttpFailure("max_tokens? max_completion_tokens!", 400), sent)
    for message in ("no model m", "the prompt is empty", "stopped: max_tokens_per_day", '{"input": {"seed": 0}}'):
        assert not refused_field(HttpFailure(message, 400), sent), message


def test_a_writer_may_be_an_address_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text("url: http://127.0.0.1:9\nmodel: m\n")
    server = named_server(str(tmp_path / "judge.yaml"))
    assert server is not None and server.model == "m"
    (tmp_path / "judge.yaml").write_text("url: http://127.0.0.1:9#model=m&send.seed=null\n")
    assert named_server(str(tmp_path / "judge.yaml")) == named_server("http://127.0.0.1:9#model=m&send.seed=null")
    assert named_server("https://example.org") == RemoteTextModelSettings(url="https://example.org")
    assert named_server(str(tmp_path)) is None
    (tmp_path / "judge.yaml").write_text("url: x\nmodle: m\n")
    with pytest.raises(SettingError, match="did you mean 'model'"):
        named_server(str(tmp_path / "judge.yaml"))
