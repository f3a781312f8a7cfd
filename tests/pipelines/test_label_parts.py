"""Fears about labels that several workers make: other labels than one makes, and a kill that loses or repeats some."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipelines.round_labels_run import course, label
from tests.processes import KILLED, run_workers
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from coseek.data.run import Run
from coseek.labels.label_folder import LabelFolder
from coseek.pipelines.together.labelling import label_round, take_over_parts

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
        label_round(course(folder, method), 1)
    return folder


@pytest.mark.slow
def test_a_kill_while_parts_are_taken_over_doubles_no_label_and_no_score(alone: Path, tmp_path: Path) -> None:
    source, whole = labels_in(alone, "agentic-r"), tmp_path / "labels"
    part = whole / "parts" / "1"
    for number, place in enumerate((whole, part)):
        place.mkdir(parents=True)
        shutil.copy(source / "labels.yaml", place)
        for name in ("labels.jsonl", "dropped.jsonl"):
            lines = (source / name).read_bytes().splitlines(keepends=True)
            (place / name).write_bytes(b"".join(lines[number::2]))
        if (source / "texts.jsonl").exists():
            shutil.copy(source / "texts.jsonl", place)
    shutil.copytree(source / "scores", part / "scores")
    shutil.copytree(whole / "parts", tmp_path / "parts")
    take_over_parts(whole)
    shutil.copytree(tmp_path / "parts", whole / "parts")
    with (whole / "labels.jsonl").open("ab") as file:
        file.truncate(file.tell() - 20)  # a kill in the last line, before the parts were removed
    take_over_parts(whole)
    turns = [row.turn for row in LabelFolder(whole).sets()]
    there = {row.turn for row in LabelFolder(source).sets()}
    assert len(set(turns)) == len(turns) >= len(there) - 4 and set(turns) <= there  # each mending removes a last turn
    assert scored_once(whole / "scores") == scored_once(source / "scores") > 8
    assert not (whole / "parts").exists()


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
    label_round(course(tmp_path, method), 1)
    assert written(tmp_path, method) == written(alone, method)
    assert scored_once(labels_in(tmp_path, method) / "scores") > 8


@pytest.mark.slow
def test_runs_of_a_method_s_own_that_a_killed_worker_made_are_taken_over_and_ranked_once(
    alone: Path, tmp_path: Path
) -> None:
    method = "dr-synth"
    with pytest.raises(ChildFailedError, match=KILLED):
        run_workers(2, label, tmp_path, (method,), dies="runs")
    labels = labels_in(tmp_path, method)
    made = {worker: Run(folder).done() for worker, folder in ((0, labels / "run"), (1, labels / "parts" / "1" / "run"))}
    assert 6 <= len(made[1]) < 16 and not made[0] & made[1] and not (labels / "labels.yaml").exists()
    run_workers(3, label, tmp_path, (method,))
    assert written(tmp_path, method) == written(alone, method)
    runs = [Run(labels_in(folder, method) / "run") for folder in (tmp_path, alone)]
    rows = [[replace(one, timings={}) for one in run.trajectories()] for run in runs]
    assert rows[0] == rows[1] and len(rows[0]) == 32
    assert scored_once(labels / "scores") == scored_once(labels_in(alone, method) / "scores") > 8


def scored_once(folder: Path) -> int:
    """The number of lines of the scores, which are all different."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert len(set(lines)) == len(lines)
    return len(lines)
