"""Fears about texts of a server: paid for twice, lost in a kill, remembered although they failed."""

import json
from pathlib import Path

import pytest
from tests.models.http_site import Asked, Said, site

from coseek.core.errors import ModelError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.http import HttpFailure
from coseek.core.settings import dump_settings
from coseek.models.dialect import dialect_of
from coseek.models.server import Prices, refused_field
from coseek.models.text_model import RemoteTextModelSettings, generate_each, named_server, open_remote_text

KEY = "sk-very-secret-123"


def chat(text: str) -> Said:
    usage: JsonObject = {"prompt_tokens": 1_000, "completion_tokens": 100}
    return Said({"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage})


def echo(asked: Asked) -> Said:
    return chat("said " + str(asked.body["messages"][0]["content"]))  # type: ignore[index,call-overload]


def test_texts_come_in_the_order_of_their_prompts_and_are_counted() -> None:
    with site(echo) as there:
        writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m"))
        assert writer.write(["a", "b", "a"], 9) == ["said a", "said b", "said a"]
        assert len(there.asked) == 2  # equal prompts are asked once
        assert {asked.body["temperature"] for asked in there.asked} == {0.0}
        assert {asked.body["max_tokens"] for asked in there.asked} == {9}
        assert (writer.usage.read_tokens, writer.usage.written_tokens) == (2_000, 200)
        assert writer.usage.cost_usd(Prices(read=1.0, written=10.0)) == pytest.approx(0.004)
        writer.calls.close()


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


def test_text_that_no_file_can_hold_is_mended(tmp_path: Path) -> None:
    with site(lambda asked: chat("a\ud800b")) as there:
        writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m", cache=str(tmp_path / "c.sqlite")))
        assert writer.write(["a"], 9) == ["a\ufffdb"] == writer.write(["a"], 9)
        writer.calls.close()


def test_a_failed_text_is_a_model_error_and_the_others_are_kept(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Said:
        return Said({}, 400) if "bad" in json.dumps(asked.body) else echo(asked)

    with site(answer) as there:
        writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m", cache=str(tmp_path / "c.sqlite")))
        with pytest.raises(ModelError, match="400"):
            writer.write(["a", "bad", "b"], 9)
        assert writer.write(["a", "b"], 9) == ["said a", "said b"]
        assert len(there.asked) == 3
        writer.calls.close()


def refusing_one_in_twenty(asked: Asked) -> Said:
    number = int(str(asked.body["messages"][0]["content"]).split()[-1])  # type: ignore[index,call-overload]
    return Said({"error": "not this one"}, 400) if number % 20 == 7 else echo(asked)


def test_a_refused_prompt_costs_its_siblings_nothing_and_no_prompt_is_paid_twice(tmp_path: Path) -> None:
    """A batch that failed is not sent again in halves: each prompt is one call."""
    prompts = [f"prompt {number}" for number in range(64)]
    with site(refusing_one_in_twenty) as there:
        writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m", cache=str(tmp_path / "c.sqlite")))
        outputs = generate_each(writer, prompts, 9)
        assert len(there.asked) == len(prompts)
        faults = [place for place, one in enumerate(outputs) if isinstance(one, ModelError)]
        assert faults == list(range(7, 64, 20))
        assert all("400" in str(outputs[place]) for place in faults)
        assert [one for one in outputs if isinstance(one, str)] == [
            f"said {p}" for n, p in enumerate(prompts) if n % 20 != 7
        ]
        again = generate_each(writer, prompts, 9)
        assert len(there.asked) == len(prompts) + len(faults)  # only what was refused is asked again
        assert [str(one) for one in again] == [str(one) for one in outputs]
        writer.calls.close()


@pytest.mark.parametrize(
    "error", ["stopped in the middle", {"message": "stopped in the middle"}, ["stopped in the middle"]]
)
def test_words_beside_an_error_are_no_answer(error: Json, tmp_path: Path) -> None:
    choice: JsonObject = {"message": {"content": "Orl"}, "finish_reason": "stop"}
    for body in ({"choices": [choice | {"error": error}]}, {"choices": [choice], "error": error}):
        with site(lambda asked, body=body: Said(body)) as there:  # type: ignore[misc]
            writer = open_remote_text(RemoteTextModelSettings(url=there.url, model="m", dialect="chat"))
            [found] = generate_each(writer, ["Where?"], 5)
            assert isinstance(found, ModelError) and "stopped in the middle" in str(found)
            writer.calls.close()


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
    found = named_server(str(tmp_path / "judge.yaml"))
    assert found is not None and found.model == "m"
    (tmp_path / "judge.yaml").write_text("url: http://127.0.0.1:9#model=m&send.seed=null\n")
    assert named_server(str(tmp_path / "judge.yaml")) == named_server("http://127.0.0.1:9#model=m&send.seed=null")
    assert named_server("https://example.org") == RemoteTextModelSettings(url="https://example.org")
    assert named_server(str(tmp_path)) is None
    (tmp_path / "judge.yaml").write_text("url: x\nmodle: m\n")
    with pytest.raises(SettingError, match="did you mean 'model'"):
        named_server(str(tmp_path / "judge.yaml"))
