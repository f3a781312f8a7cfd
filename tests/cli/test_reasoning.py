"""Fears about reading reasonings: a study that finds no row, a model that reads nothing and scores 0."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Type


@pytest.fixture
def run(world: Path, index: Path, tmp_path: Path, coseek: Type) -> Path:
    words = ("run", world, "--split", "test", "--count", 12, "--agent", "expert", "--retriever", index)
    assert coseek(*words, "--out", tmp_path / "run").code == 0
    return tmp_path / "run"


def test_more_reasonings_cover_more_and_all_of_them_everything(
    run: Path, world: Path, tmp_path: Path, coseek: Type
) -> None:
    words = ("reasoning", run, "--read-with", world, "--latest", "1,2,all", "--out", tmp_path / "read", "--json")
    outcome = coseek(*words)
    assert outcome.code == 0, outcome.err
    assert [row["latest"] for row in json.loads(outcome.out)["rows"]] == ["k = 1", "k = 2", "k = all"]
    rows = [json.loads(line) for line in (tmp_path / "read" / "questions.jsonl").read_text().splitlines()]
    covered = {name: {row["id"]: row["metrics"].get("coverage") for row in rows if row["run"] == name}
               for name in ("k = 1", "k = 2", "k = all")}  # fmt: skip
    known = [ident for ident, share in covered["k = all"].items() if share is not None]
    assert known and all(
        covered["k = 1"][one] <= covered["k = 2"][one] <= covered["k = all"][one] == 1 for one in known
    )
    assert any(covered["k = 1"][one] < 1 for one in known)


def test_a_list_of_other_words_is_refused(run: Path, world: Path, coseek: Type) -> None:
    outcome = coseek("reasoning", run, "--read-with", world, "--latest", "1,some")
    assert outcome.code == 2 and "write for example 1,2,all" in outcome.err
