"""Labels from the command line: what a user types, the files that come of it, and the sentences for mistakes."""

import json
import re
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.core.files import read_jsonl, write_jsonl
from coseek.data.dataset import Dataset
from coseek.labels.label_folder import LabelFolder


@pytest.fixture(scope="module")
def ran(world: Path, index: Path) -> Path:
    """A run of the faulty expert; its agent and its retriever are those that labels are made with."""
    from coseek.cli.main import main

    run = world.with_name("labelled-run")
    words = ("run", world, "--split", "train", "--agent", "faulty-expert", "--retriever", index, "--out", run)
    assert main([str(word) for word in words]) == 0
    return run


@pytest.mark.slow
def test_labels_take_the_runs_own_agent_and_retriever(ran: Path, tmp_path: Path, coseek: Type) -> None:
    out, rows = tmp_path / "labels", tmp_path / "rows.jsonl"
    words = ("label", ran, "--method", "agentic-r", "--scorer", "oracle", "--out", out, "--json", "--tevatron", rows)
    outcome = coseek(*words, "negatives=7", "limits.max_turns=3")
    assert outcome.code == 0, outcome.err
    said = json.loads(outcome.out)
    assert said["turns"] == said["labelled"] + sum(said["dropped"].values()) and said["left"] == 0
    assert max(len(one.negatives) for one in LabelFolder(out).sets()) == 7
    record = LabelFolder(out).record
    settings = record["settings"]
    assert isinstance(settings, dict)
    assert settings["agentic-r"]["negatives"] == 7 and settings["limits"]["max_turns"] == 3  # type: ignore[index,call-overload]
    assert len(str(record["identity"])) == 64 and {"versions", "commit", "created"} <= record.keys()
    exported = [row for _, row in read_jsonl(rows)]
    assert len(exported) == said["sets"]
    assert set(exported[0]) == {"query_id", "query", "positive_passages", "negative_passages"}
    assert " [SEP] " in str(exported[0]["query"])
    assert set(exported[0]["positive_passages"][0]) == {"docid", "title", "text"}  # type: ignore[index,arg-type]


def test_gold_labels_need_neither_agent_nor_scorer(ran: Path, tmp_path: Path, coseek: Type) -> None:
    outcome = coseek("label", ran, "--method", "gold", "--out", tmp_path / "g", "--count", 5)
    assert re.search(r"\d+ of \d+ search turns have a label, in \d+ label sets", outcome.out), outcome.err
    assert len({one.question.id for one in LabelFolder(tmp_path / "g").sets()}) <= 5


def test_resuming_finished_labels_changes_nothing(ran: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("label", ran, "--method", "agentic-r", "--scorer", "gold", "--out", tmp_path / "a", "--count", 6)
    assert coseek(*words).code == 0
    before = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert coseek(*words, "--resume").code == 0
    assert {path: path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()} == before
    assert "holds labels already" in coseek(*words).sentence
    assert "min_lr = 60, and now 50" in coseek(*words, "min_lr=50", "--resume").sentence


def test_mistakes_are_one_sentence_with_the_way_out(ran: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    out = ("--out", tmp_path / "x")
    assert "did you mean 'agentic-r'?" in coseek("label", ran, "--method", "agentic", *out).sentence
    agentic = ("label", ran, "--method", "agentic-r", *out)
    assert "name with --scorer" in coseek(*agentic).sentence
    assert "did you mean 'oracle'?" in coseek(*agentic, "--scorer", "oracel").sentence
    assert "no setting named 'negative'" in coseek(*agentic, "--scorer", "oracle", "negative=3").sentence
    assert "no setting named 'limits.turns'" in coseek(*agentic, "--scorer", "oracle", "limits.turns=3").sentence
    assert "'max_turns'; the agent's budgets are a group: limits.max_turns=" in coseek(*agentic, "max_turns=3").sentence
    assert "no query view named 'querry'" in coseek(*agentic, "--scorer", "oracle", "--view", "querry").sentence
    assert (
        "there is no retriever at nowhere" in coseek(*agentic, "--scorer", "oracle", "--retriever", "nowhere").sentence
    )
    (tmp_path / "agent.yaml").write_text("name: http://127.0.0.1:1\ntokenizer: bytes\n")
    again = ("label", ran, "--method", "dr-synth", "--agent", tmp_path / "agent.yaml", "samples=4", *out)
    assert "one run 4 times; add --temperature 1" in coseek(*again).sentence
    assert "is not a run" in coseek("label", world, "--method", "gold", *out).sentence
    (tmp_path / "rows").mkdir()
    exported = coseek("label", ran, "--method", "gold", "--out", tmp_path / "h", "--tevatron", tmp_path / "rows")
    assert f"{tmp_path / 'rows'} is a folder; name a file in it" in exported.sentence
    assert "holds something else" in coseek("label", ran, "--method", "gold", "--out", world).sentence
    assert (
        "is a file; choose a folder"
        in coseek("label", ran, "--method", "gold", "--out", tmp_path / "agent.yaml").sentence
    )
    assert "name a run folder" in coseek("label", "negatives=3", "--method", "gold", *out).sentence
    assert "two trajectories with the seed" in coseek("label", ran, ran, "--method", "gold", *out).sentence


def test_another_worlds_oracle_can_be_named_by_its_folder(ran: Path, world: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("label", ran, "--method", "agentic-r", "--count", 2, "--scorer", world, "--out", tmp_path / "x")
    assert coseek(*words).code == 0


def test_a_run_without_gold_passages_is_not_labelled_in_silence(
    world: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    rows = [one.to_json() | {"gold_ids": []} for one in Dataset(world).questions("test")[:2]]
    write_jsonl(tmp_path / "q.jsonl", rows)
    made = ("run", tmp_path / "q.jsonl", "--agent", "rules", "--retriever", index, "--out", tmp_path / "run")
    assert coseek(*made).code == 0
    said = coseek("label", tmp_path / "run", "--method", "gold", "--out", tmp_path / "labels")
    assert "no search has a label" in said.err and "--method answer-in-passage" in said.err
    assert coseek("label", tmp_path / "run", "--method", "opened-next", "--out", tmp_path / "used").code == 0
