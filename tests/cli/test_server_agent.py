"""`--agent URL`: same trajectories as with the served folder; text-only runs are marked and refused for training."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.cli.conftest import Type
from tests.models.http_site import site
from tests.models.model_servers import KINDS, answers
from tests.models.tiny_policy import tiny_policy
from tests.models.vllm_server import vllm_server

from coseek.agents.factory import limits_for, open_agent, settings_for
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.data.run import Run
from coseek.models.remote import RemoteModelSettings
from coseek.models.server import split_settings, with_settings
from coseek.pipelines.audit import audit_run


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_policy(tmp_path_factory.mktemp("agents") / "policy")


@pytest.fixture(scope="module")
def url(policy: Path) -> Iterator[str]:
    with vllm_server(policy) as server:
        yield server.url


def rows(run: Path) -> tuple[list[JsonObject], list[float]]:
    """The stored trajectories, sorted by question and seed, without timings; and their log-probabilities."""
    plain, logprobs = [], []
    for line in (run / "trajectories.jsonl").read_text().splitlines():
        row = json.loads(line)
        del row["timings"]
        plain.append(row)
    plain.sort(key=lambda row: (row["question"]["id"], row["seed"]))
    for row in plain:
        for segment in row["segments"]:
            logprobs += segment.pop("logprobs", [])
    return plain, logprobs


@pytest.mark.slow
def test_a_server_runs_as_its_folder(
    coseek: Type, world: Path, index: Path, policy: Path, url: str, tmp_path: Path
) -> None:
    words = ["--retriever", index, "--split", "dev", "--count", 12, "--seed", 3]
    small = "limits.max_turn_tokens=60"
    here, there = tmp_path / "here", tmp_path / "there"
    assert coseek("run", world, small, "--agent", policy, "--out", here, *words).code == 0
    done = coseek("run", world, small, "--agent", url, "--tokenizer", policy, "--out", there, *words)
    assert done.code == 0, done.err
    assert f"{url}: " in done.err and "tokens read" in done.err
    (kept, mine), (served, theirs) = rows(here), rows(there)
    assert kept == served
    # Batches of other shapes differ in the last bits, on some processors beyond rounding to a digit.
    assert theirs == pytest.approx(mine, abs=1e-4)
    assert coseek("audit", there).code == 0
    again = coseek("run", world, small, "--agent", url, "--tokenizer", policy, "--out", there, *words, "--resume")
    assert again.code == 0


@pytest.mark.slow
def test_text_is_not_trained_on(coseek: Type, world: Path, index: Path, policy: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"name: {url}\ntokenizer: {policy}\nserver:\n  dialect: completions\n")
    words = ["--retriever", index, "--split", "dev", "--count", 3, "limits.max_turn_tokens=40"]
    done = coseek("run", world, "--agent", tmp_path / "a.yaml", "--out", tmp_path / "run", *words)
    assert done.code == 0, done.err
    assert "not for training" in done.err
    kept = list(Run(tmp_path / "run").trajectories())
    assert not any(run.exact for run in kept)
    assert audit_run(tmp_path / "run").violations == ()
    from coseek.training.learner.batch import make_batch

    with pytest.raises(DataError, match="cannot be trained on"):
        make_batch(kept)


@pytest.mark.medium
def test_bytes_are_no_tokens_of_a_server_that_exchanges_ids(url: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"name: {url}\nserver: {{dialect: vllm}}\n")
    with pytest.raises(SettingError, match="exchanges token ids"):
        open_agent(settings_for(str(tmp_path / "a.yaml"), tokenizer="bytes"))


def test_an_agent_file_says_what_options_cannot(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: http://x\ntokenizer: bytes\nserver: {dialect: chat, key_env: MY_KEY}\n")
    settings = settings_for(str(tmp_path / "a.yaml"), protocol="rag")
    assert settings.server == RemoteModelSettings(dialect="chat", key_env="MY_KEY")
    assert settings.protocol == "rag"
    assert limits_for(settings).max_tokens == 128_000
    (tmp_path / "a.yaml").write_text("tokenizer: bytes\n")
    with pytest.raises(DataError, match="`name` itself"):
        settings_for(str(tmp_path / "a.yaml"))


# --- options: one that one command has and another lacks, a key in a file


PRINTED = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]))


@given(st.dictionaries(st.sampled_from(["model", "key_env", "send.stop", "send.seed"]), st.none() | PRINTED))
def test_settings_behind_a_url_come_back(settings: JsonObject) -> None:
    url, read_back = split_settings(with_settings("http://127.0.0.1:1/v1", settings))
    flat = {name: value for name, value in read_back.items() if name != "send"}
    sent = read_back.get("send")
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
        outcome = coseek("ask", "Who?", "--retriever", index, "--agent", there.url, *OPTIONS)
        assert (outcome.code, outcome.out.strip()) == (0, "Ada"), outcome.err
        run = tmp_path / "run"
        words = ["run", world, "--split", "dev", "--count", "2", "--retriever", index, "--out", run]
        assert coseek(*words, "--agent", there.url, *OPTIONS).code == 0
        assert "#" not in (run / "run.yaml").read_text(encoding="utf-8")
        scored = coseek(
            "score", run, "--judge", there.url, "--answer-with", there.url, *OPTIONS, "--metrics", "judge_acc"
        )
        assert scored.code == 0, scored.err


def test_options_of_a_server_without_one_are_refused(index: Path, coseek: Type) -> None:
    sentence = coseek("ask", "Who?", "--retriever", index, "--agent", "extract", "--model", "m").sentence
    assert "http://HOST:PORT" in sentence
