"""`coseek push` and `pull` as a user types them: a pulled folder opens, a mistake is one sentence."""

from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.hub.hub_server import HubState
from tests.hub.test_sharing import TINY
from tests.hub.test_sharing import server as server  # a fixture
from tests.retrieval.tiny_encoder import make_encoder

from coseek.models.laptop import make_policy


@pytest.mark.slow
def test_a_pulled_agent_runs_over_an_index_of_a_pulled_encoder_of_pulled_data(
    coseek: Type, world: Path, tmp_path: Path, server: HubState
) -> None:
    make_policy(TINY, ["a few words"], (), tmp_path / "policy", 0)
    make_encoder(tmp_path / "encoder")
    for name, folder in (("policy", tmp_path / "policy"), ("encoder", tmp_path / "encoder"), ("data", world)):
        sent = coseek("push", folder, f"me/{name}")
        assert sent.code == 0 and "license: unknown" in sent.err and f"me/{name}: " in sent.out
        fetched = coseek("pull", f"me/{name}", tmp_path / "pulled" / name)
        assert fetched.code == 0 and "Try: coseek " in fetched.out
    data, encoder, agent = (tmp_path / "pulled" / name for name in ("data", "encoder", "policy"))
    made = coseek("index", data, "--retriever", "dense", "--encoder", encoder, "--out", tmp_path / "index")
    assert made.code == 0, made.err
    run = (
        "run", data, "--split", "test", "--agent", agent, "--retriever", tmp_path / "index", "--out",
        tmp_path / "run",
    )  # fmt: skip
    ended = coseek(*run, "count=2", "limits.max_turns=1", "limits.max_turn_tokens=4")
    assert ended.code == 0, ended.err
    assert "--force" in coseek("push", agent, "me/policy").sentence
    assert "choose a new folder" in coseek("pull", "me/policy", agent).sentence


def test_mistakes_are_one_sentence(coseek: Type, world: Path, tmp_path: Path, server: HubState) -> None:
    assert "there is no folder" in coseek("push", tmp_path / "polcy", "me/one").sentence
    assert "write OWNER/NAME" in coseek("push", world, "one").sentence
    assert "apache-2.0" in coseek("push", world, "me/one", "--license", "MIT License").sentence
    assert "no repository me/one" in coseek("pull", "me/one", tmp_path / "x").sentence
    assert (
        "'date' is not one of 'model', 'dataset'" in coseek("pull", "me/one", tmp_path / "x", "--kind", "date").sentence
    )


def test_a_hub_that_is_not_asked_or_not_reached_is_said_plainly(
    coseek: Type, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused = coseek("push", world, "me/one")
    assert refused.code == 2 and "cannot reach http://127.0.0.1:9" in refused.sentence
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in coseek("pull", "me/one", tmp_path / "x").sentence
