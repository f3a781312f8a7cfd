"""Paths that begin with `~/` where no shell expands them: every command reads and writes there, and nowhere else."""

from pathlib import Path

import pytest

from coseek.cli.main import main
from coseek.core.files import write_jsonl, write_yaml
from coseek.core.settings import make_settings
from coseek.pipelines.agent_recipe import DataSettings
from coseek.retrieval.index import IndexCard


def test_index_run_and_their_settings_read_and_write_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    write_jsonl(home / "data" / "corpus.jsonl", [{"id": "a", "title": "Orlen", "text": "Orlen lies on the Tave."}])
    write_jsonl(home / "data" / "questions.test.jsonl", [{"id": "q", "question": "Orlen?", "answers": ["Tave"]}])
    assert main(["index", "~/data", "--out=~/index"]) == 0
    assert IndexCard.read(home / "index").passages == 1
    write_yaml(home / "bm25.yaml", {"retriever": "index", "path": "~/index", "settings": {}})
    for number, retriever in enumerate(("~/index", "~/bm25.yaml")):
        words = ["run", "~/data", "--split", "test", "--agent", "rules", "--retriever", retriever]
        assert main([*words, f"--out=~/run-{number}"]) == 0
        assert (home / f"run-{number}" / "trajectories.jsonl").is_file()
    capsys.readouterr()
    assert main(["search", "~/index", "~/nothing of that name, a query"]) == 0
    assert not list(here.iterdir())
    assert make_settings(DataSettings, {"folder": "~/data"}).folder == str(home / "data")
