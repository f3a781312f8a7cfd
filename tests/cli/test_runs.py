"""Fears about the list of runs: a stopped training that looks finished, a run inside a training listed beside it."""

import json
from pathlib import Path

from tests.cli.conftest import Type

from coseek.core.files import write_yaml
from coseek.core.lock import lock_folder


def training(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    write_yaml(folder / "recipe.yaml", {"recipe": {"about": "mine", "rl": {}}, "created": "2026-01-02T03:04:05+00:00"})
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_", ".", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_training_is_finished_where_its_table_is_and_else_says_how_far_it_is(tmp_path: Path, coseek: Type) -> None:
    table = "# mine\n\n| em | test |\n| --- | --- |\n| before | 0.1 [0, 1] |\n| after | 0.3 [0, 1] |\n"
    training(tmp_path / "runs/done", table_md=table)
    write_yaml(tmp_path / "runs/done/table/after.test/run.yaml", {"settings": {}})
    training(tmp_path / "runs/half", rl__metrics_jsonl='{"step": 1}\n{"step": 2}\n{"st')
    training(tmp_path / "runs/now")
    training(tmp_path / "runs/unmeasured", encoder__config_json="{}")
    training(
        tmp_path / "runs/unmeasured-yet", encoder__config_json="{}", before_json="{}", metrics_jsonl='{"step": 3}\n'
    )
    write_yaml(tmp_path / "runs/theirs/run.yaml", {"settings": {"traces": ["logs.jsonl"]}})
    with lock_folder(tmp_path / "runs/now"):
        rows = {Path(row["folder"]).name: row for row in json.loads(coseek("runs", tmp_path / "runs", "--json").out)}
    assert set(rows) == {"done", "half", "now", "unmeasured", "unmeasured-yet", "theirs"}
    assert (rows["done"]["state"], rows["done"]["result"]) == ("finished", "em on test: before 0.1, after 0.3")
    assert (rows["half"]["state"], rows["half"]["result"]) == ("stopped, rl step 2", "")
    assert (rows["unmeasured"]["state"], rows["unmeasured-yet"]["state"]) == ("finished", "stopped, step 3")
    assert rows["theirs"]["about"] == "logs: logs.jsonl"
    assert rows["now"]["state"] == "running" and rows["now"]["what"] == "agent"
    assert "done" in coseek("runs", tmp_path / "runs").out


def test_a_wrong_place_is_one_sentence(tmp_path: Path, coseek: Type) -> None:
    assert "coseek runs DIR" in coseek("runs", tmp_path / "nowhere").sentence
    assert "holds no training" in coseek("runs", tmp_path).out
