"""`coseek push` and `pull` as a user types them: a pulled folder opens, a mistake is one sentence."""

from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.hub.test_repository import TINY
from tests.retrieval.tiny_encoder import make_encoder

from coseek.models.laptop import make_policy


@pytest.mark.slow
def test_a_pulled_agent_runs_over_an_index_of_a_pulled_encoder_of_pulled_data(
    coseek: Type, world: Path, tmp_path: Path
) -> None:
    make_policy(TINY, ["a few words"], (), tmp_path / "policy", 0)
    make_encoder(tmp_path / "encoder")
    (tmp_path / "hub").mkdir()
    hub = ("--hub", tmp_path / "hub")
    for name, folder in (("policy", tmp_path / "policy"), ("encoder", tmp_path / "encoder"), ("data", world)):
        sent = coseek("push", folder, f"me/{name}", *hub)
        assert sent.code == 0 and "license: unknown" in sent.err and f"me/{name}: " in sent.out
        fetched = coseek("pull", f"me/{name}", tmp_path / "pulled" / name, *hub)
        assert fetched.code == 0 and "Try: coseek " in fetched.out
    data, encoder, agent = (tmp_path / "pulled" / name for name in ("data", "encoder", "policy"))
    made = coseek("index", data, "--retriever", "dense", "--encoder", encoder, "--out", tmp_path / "index")
    assert made.code == 0, made.err
    run = (
        "run",
        data,
        "--split",
        "test",
        "--agent",
        agent,
        "--retriever",
        tmp_path / "index",
        "--out",
        tmp_path / "run",
    )
    ended = coseek(*run, "count=2", "limits.max_turns=1", "limits.max_turn_tokens=4")
    assert ended.code == 0, ended.err
    assert "holds the same" in coseek("push", agent, "me/policy", *hub).out
    assert "all there already" in coseek("pull", "me/policy", agent, *hub).out


def test_mistakes_are_one_sentence(coseek: Type, world: Path, tmp_path: Path) -> None:
    hub = ("--hub", tmp_path)
    assert "there is no folder" in coseek("push", tmp_path / "polcy", "me/one", *hub).sentence
    assert "write OWNER/NAME" in coseek("push", world, "one", *hub).sentence
    assert "apache-2.0" in coseek("push", world, "me/one", "--license", "MIT License", *hub).sentence
    assert "--public is for the Hugging Face Hub" in coseek("push", world, "me/one", "--public", *hub).sentence
    assert "no repository me/one" in coseek("pull", "me/one", tmp_path / "x", *hub).sentence
    assert (
        "--kind is model or dataset, not 'date'"
        in coseek("pull", "me/one", tmp_path / "x", "--kind", "date", *hub).sentence
    )
    assert "to stand for the hub" in coseek("pull", "me/one", tmp_path / "x", "--hub", tmp_path / "hbu").sentence


def test_a_hub_that_is_not_asked_or_not_reached_is_said_plainly(
    coseek: Type, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refused = coseek("push", world, "me/one")
    assert refused.code == 2 and "cannot reach http://127.0.0.1:9" in refused.sentence and "--hub" in refused.sentence
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in coseek("pull", "me/one", tmp_path / "x").sentence
