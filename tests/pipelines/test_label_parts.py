"""Fears about labels that several workers make: other labels than one makes, and a kill that loses or repeats some."""

import shutil
from pathlib import Path

import pytest
from tests.pipelines.round_labels_run import co_training, label
from tests.processes import KILLED, run_workers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from coseek.labels.label_folder import LabelFolder
from coseek.pipelines.together.labelling import label_round

METHODS = ("agentic-r", "dr-synth")
FILES = ("labels.jsonl", "dropped.jsonl", "texts.jsonl")


def labels_in(folder: Path, method: str) -> Path:
    return folder / method / "round-1" / "labels"


def written(folder: Path, method: str) -> dict[str, bytes]:
    """The labels, the dropped turns, their long texts and the counts."""
    paths = [*(labels_in(folder, method) / name for name in FILES), folder / method / "round-1" / "labels.json"]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one worker makes."""
    folder = tmp_path_factory.mktemp("alone")
    for method in METHODS:
        label_round(co_training(folder, method), 1)
    return folder


@pytest.mark.slow
def test_two_workers_write_the_bytes_that_one_writes(alone: Path, tmp_path: Path) -> None:
    run_workers(2, label, tmp_path, METHODS)
    for method in METHODS:
        one, two = written(alone, method), written(tmp_path, method)
        assert len(one["labels.jsonl"].splitlines()) > 16 and one["dropped.jsonl"]
        assert two == one
        names = {path.name for path in labels_in(tmp_path, method).iterdir()}
        assert "parts" not in names and names == {path.name for path in labels_in(alone, method).iterdir()}


@pytest.mark.slow
def test_what_a_killed_worker_labelled_is_taken_over_by_another_number_of_workers(alone: Path, tmp_path: Path) -> None:
    method = "agentic-r"
    with pytest.raises(ChildFailedError, match=KILLED):
        run_workers(2, label, tmp_path, (method,), dies="labels")
    part = LabelFolder(labels_in(tmp_path, method) / "parts" / "1")
    turns = {row.turn for row in part.sets()} | {row.turn for row in part.dropped()}
    assert len(turns) == 6 and not (tmp_path / method / "round-1" / "labels.json").exists()
    shutil.copytree(tmp_path / method, tmp_path / "killed")
    run_workers(3, label, tmp_path, (method,))
    assert written(tmp_path, method) == written(alone, method)
    shutil.rmtree(tmp_path / method)
    shutil.move(tmp_path / "killed", tmp_path / method)
    label_round(co_training(tmp_path, method), 1)
    assert written(tmp_path, method) == written(alone, method)
    assert scored_once(labels_in(tmp_path, method) / "scores") > 8


def scored_once(folder: Path) -> int:
    """The number of lines of the scores, which are all different."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(set(lines)) == len(lines)
    return len(lines)
