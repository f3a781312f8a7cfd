"""Fears about servers on the command line: an option that one command has and another lacks, a key in a file."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Type
from tests.models.http_site import site
from tests.models.model_servers import KINDS, answers

from coseek.core.files import JsonObject
from coseek.models.server import split_settings, with_settings

PRINTED = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))


@given(st.dictionaries(st.sampled_from(["model", "key_env", "send.stop", "send.seed"]), st.none() | PRINTED))
def test_settings_behind_a_url_come_back(settings: JsonObject) -> None:
    url, found = split_settings(with_settings("http://127.0.0.1:1/v1", settings))
    flat = {name: value for name, value in found.items() if name != "send"}
    sent = found.get("send")
    flat |= {f"send.{name}": value for name, value in sent.items()} if isinstance(sent, dict) else {}
    assert (url, flat) == ("http://127.0.0.1:1/v1", settings)


def writes(messages: Sequence[JsonObject]) -> str:
    text = str(messages[-1]["content"])
    return "yes" if "judge" in text.lower() else "<think>I know.</think><answer>Ada</answer>"


OPTIONS = ["--model", "m", *(word for name in KINDS["gpt-5"].refuses[:4] for word in ("--no-send", name))]


@pytest.mark.slow
def test_the_same_options_reach_a_server_as_agent_generator_and_judge(
    tmp_path: Path, world: Path, index: Path, coseek: Type
) -> None:
    with site(answers(KINDS["gpt-5"], writes)) as there:
        asked = coseek("ask", "Who?", "--retriever", index, "--agent", there.url, *OPTIONS)
        assert (asked.code, asked.out.strip()) == (0, "Ada"), asked.err
        run = tmp_path / "run"
        words = ["run", world, "--split", "dev", "--count", "2", "--retriever", index, "--out", run]
        assert coseek(*words, "--agent", there.url, *OPTIONS).code == 0
        assert "#" not in (run / "run.yaml").read_text(encoding="utf-8")
        scored = coseek(
            "score", run, "--judge", there.url, "--answer-with", there.url, *OPTIONS, "--metrics", "judge_acc"
        )
        assert scored.code == 0, scored.err


def test_options_of_a_server_without_one_are_refused(index: Path, coseek: Type) -> None:
    said = coseek("ask", "Who?", "--retriever", index, "--agent", "extract", "--model", "m").sentence
    assert "http://HOST:PORT" in said
