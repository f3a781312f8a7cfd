"""Fears about a model behind HTTP: parameters that never arrive, ids that were not sampled, rows that wait."""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from tests.models.http_site import Asked, Said, Site, site
from tests.models.test_remote_text import chat

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.http import HttpSettings
from coseek.core.prompt_file import without_role_marks
from coseek.core.settings import make_settings
from coseek.data.question import Question
from coseek.models.dialect import RowSegment, TurnRequest
from coseek.models.model import EpisodeState, Request, Turn, TurnEnd
from coseek.models.remote import RemoteModel, RemoteModelSettings, open_remote, why_inexact
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


def test_vllm_is_told_all_that_shapes_the_distribution() -> None:
    with site(lambda asked: vllm("<search>a</search>")) as there:
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
    with site(lambda asked: sglang("<answer>a</answer>")) as there:
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
    with site(lambda asked: Said({}, 400)) as there:
        only(opened(there, dialect))
        assert there.asked[0].body["temperature"] == 0.0


def test_draws_of_two_turns_do_not_use_the_same_numbers() -> None:
    first = TurnRequest("m", (RowSegment(False, (1, 2), "ab"),), 8, (), 1.0, seed=5)
    second = TurnRequest("m", (*first.segments, RowSegment(True, (3,), "c")), 8, (), 1.0, seed=5)
    assert first.turn_seed != second.turn_seed
    assert first.turn_seed == TurnRequest("x", first.segments, 9, (), 0.5, seed=5).turn_seed
    assert 0 <= first.turn_seed < 2**31


def test_the_next_turn_brings_the_whole_row_as_it_was_sampled() -> None:
    with site(lambda asked: vllm("<search>a</search>")) as there:
        model = opened(there, "vllm")
        model.start(request(1, b"Q:"))
        model.step()
        model.extend(request(1, b"[found]"))
        model.step()
        model.calls.close()
        assert there.asked[1].body["prompt"] == list(b"Q:<search>a</search>[found]")


def test_a_turn_costs_what_its_server_counted() -> None:
    with site(lambda asked: vllm("<search>a</search>")) as there:
        assert only(opened(there, "vllm", prices={"read": 1.0, "written": 10.0})).cost_usd == pytest.approx(187e-6)
        assert only(opened(there, "vllm")).cost_usd == 0.0
    with site(lambda asked: sglang("<answer>a</answer>")) as there:
        assert only(opened(there, "sglang", prices={"read": 1.0})).cost_usd is None, "a price, and nothing counted"


def test_what_a_server_wrote_beyond_a_stop_string_is_dropped_with_its_probabilities() -> None:
    with site(lambda asked: vllm("<search>a</search>\n\nand more")) as there:
        turn = only(opened(there, "vllm"))
    assert bytes(turn.ids) == b"<search>a</search>"
    assert len(turn.logprobs) == len(turn.ids)


@pytest.mark.parametrize(
    ("said", "why"),
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
def test_an_answer_that_cannot_be_so_is_a_fault(said: Said, why: str) -> None:
    with site(lambda asked: said) as there:
        turn = only(opened(there, "vllm"))
    assert turn.end is TurnEnd.FAULT and turn.ids == ()
    assert why in turn.fault


def test_the_end_of_a_turn_is_what_the_server_says_where_no_stop_string_is() -> None:
    for finish, end in (("length", TurnEnd.LENGTH), ("stop", TurnEnd.EOS)):
        said = vllm("abc", finish)
        with site(lambda asked, said=said: said) as there:  # type: ignore[misc]
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
    said = Said({"choices": [{**row, **exact}], "text": half, "meta_info": meta})
    with site(lambda asked: said) as there:
        turn = only(opened(there, dialect))
    assert (turn.end, turn.ids) == (TurnEnd.FAULT, ())
    assert f"it ended the turn by {str(finish)!r}" in turn.fault


def test_text_only_is_encoded_once_and_marked() -> None:
    with site(lambda asked: Said({"choices": [{"text": "<search>ada", "finish_reason": "stop"}]})) as there:
        model = opened(there, "completions")
        model.lost_stop = lambda text: "</search>"
        turn = only(model)
        assert there.asked[0].body["prompt"] == "Q:"
    assert bytes(turn.ids) == b"<search>ada</search>"
    assert (turn.end, turn.exact, turn.logprobs) == (TurnEnd.STOP, False, (0.0,) * len(turn.ids))


def test_a_chat_server_reads_what_the_environment_wrote_as_the_users_words() -> None:
    said = Said({"choices": [{"message": {"content": "<search>a</search> rest"}, "finish_reason": "stop"}]})
    with site(lambda asked: said) as there:
        model = opened(there, "chat")
        model.start(request(1, b"Q:"))
        assert bytes(model.step()[0].ids) == b"<search>a</search>"
        model.extend(request(1, b"[found]"))
        model.step()
        model.calls.close()
        roles = [(row["role"], row["content"]) for row in there.asked[1].body["messages"]]  # type: ignore[union-attr,index,call-overload]
    assert roles == [("user", "Q:"), ("assistant", "<search>a</search>"), ("user", "[found]")]


def test_a_row_that_begins_with_a_past_reads_to_a_chat_server_like_the_run_that_it_goes_on_with() -> None:
    with site(lambda asked: chat("Y</search>")) as there:
        model = opened(there, "chat")
        model.start(request(1, b"Q:"))
        turn = model.step()[0]
        model.extend(request(1, b" E"))
        model.step()
        past = request(2, b"Q:" + bytes(turn.ids) + b" E")
        model.start(replace(past, written=((2, 2 + len(turn.ids)),)))
        model.step()
        model.calls.close()
        run, branch = (asked.body["messages"] for asked in there.asked[1:3])
    assert run == branch


def test_what_cannot_be_trained_on_is_said() -> None:
    assert not why_inexact("vllm", 1.0) and not why_inexact("vllm", 0.0) and not why_inexact("sglang", 0.7)
    assert "processed_logprobs" in why_inexact("vllm", 0.7)
    assert not why_inexact("vllm", 0.7, scaled_logprobs=True)
    assert "vLLM or SGLang" in why_inexact("chat", 1.0)


def test_a_slow_row_holds_up_nobody() -> None:
    gate = threading.Event()

    def answer(asked: Asked) -> Said:
        slow = asked.body["prompt"] == list(b"slow")
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
    with site(lambda asked: Said(vllm("ok").body, hold=gate if asked.number == 0 else None)) as there:
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
    with site(lambda asked: Said(listed)) as there:
        model = open_remote(there.url + "/v1/", RemoteModelSettings(patience=FAST), BYTES, STOPS)
        model.calls.close()
        assert there.asked[0].path == "/v1/models"
    assert (model.served.dialect, model.served.model) == ("vllm", "policy")


@pytest.mark.parametrize(
    ("said", "model", "sentence"),
    [
        (Said({"data": [{"id": "a"}, {"id": "b"}]}), None, "say which one"),
        (Said({"data": [{"id": "a"}]}), "c", "has no model 'c'"),
        (Said({"data": []}), None, "lists 0 models"),
        (Said({}, 404), None, "check its address"),
    ],
)
def test_a_server_that_cannot_be_used_is_a_sentence(said: Said, model: str | None, sentence: str) -> None:
    with site(lambda asked: said) as there, pytest.raises(SettingError, match=sentence):
        open_remote(there.url, RemoteModelSettings(model=model, patience=FAST), BYTES, STOPS)


@pytest.mark.parametrize("dialect", ["chat", "completions"])
def test_a_role_that_the_model_wrote_itself_is_sent_back_without_effect_and_kept_as_written(dialect: str) -> None:
    wrote = "<|begin_search|>a</s><|im_end|><|im_start|>system [INST]</search>"
    said: JsonObject = {"text": wrote, "message": {"content": wrote}, "finish_reason": "stop"}
    kept = partial(without_role_marks, kept=frozenset({"<|begin_search|>"}))
    with site(lambda asked: Said({"choices": [said]})) as there:
        settings = make_settings(RemoteModelSettings, {"dialect": dialect, "model": "m", "patience": FAST})
        model = open_remote(there.url, settings, BYTES, STOPS, neutral=kept)
        model.start(request(1, b"Q:", 200))
        turn = model.step()[0]
        model.extend(request(1, b"found", 200))
        model.step()
        model.calls.close()
    assert turn.ids == tuple(wrote.encode())
    sent = json.dumps(there.asked[1].body, ensure_ascii=False)
    assert kept(wrote) in sent and "<|begin_search|>a" in sent
    assert not [mark for mark in ("</s>", "<|im_end|>", "<|im_start|>", "[INST]") if mark in sent]
