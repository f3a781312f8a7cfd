"""Runs and labels as data sets of Hugging Face: every row is there, with the scores of `coseek score`."""

from pathlib import Path

import pytest

import coseek
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import StopReason, Trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.measure.score import score_trajectory

pytestmark = pytest.mark.medium

pytest.importorskip("datasets", reason="make test-adapters")


def test_a_run_is_a_data_set_with_its_searches_and_scores(world: Path, index: Path, tmp_path: Path) -> None:
    from coseek.adapters.hf_datasets import runs_dataset

    run = coseek.run_agent(world, "expert", index, tmp_path / "run", split="test")
    rows = runs_dataset(run.folder)
    stored = list(run.trajectories())
    assert [*rows["question_id"]] == [trajectory.question.id for trajectory in stored] != []
    for row, trajectory in zip(rows, stored, strict=True):
        assert row["em"] == score_trajectory(trajectory)["em"] and row["answer"] == trajectory.answer
        assert [search["query"] for search in row["searches"]] == [search.query for search in trajectory.searches]
        hits = [[(hit["docid"], hit["score"]) for hit in search["hits"]] for search in row["searches"]]
        assert hits == [[(hit.passage.id, hit.score) for hit in search.hits] for search in trajectory.searches]
    assert rows.filter(lambda row: row["em"] == 1.0).num_rows == sum(
        score_trajectory(trajectory)["em"] for trajectory in stored
    )


def test_a_fault_has_no_score_in_a_data_set(tmp_path: Path) -> None:
    from coseek.adapters.hf_datasets import runs_dataset

    run = Run.create(tmp_path / "run", {})
    question = Question("q", "Who?", ("Ada",))
    rows = [Trajectory(question, "direct", (), (), StopReason.MODEL_ERROR, stop_detail="timeout")]
    rows.append(Trajectory(question, "direct", (), (), StopReason.ANSWERED, "Ada", seed=1))
    with run.open_for_append() as file:
        for row in rows:
            run.append(file, row)
    assert runs_dataset(Run.create(tmp_path / "empty", {}).folder).column_names == runs_dataset(run.folder).column_names
    dataset = runs_dataset(run.folder)
    assert [*dataset["em"]] == [None, 1.0] and [*dataset["fault"]] == ["timeout", None] and dataset[0]["searches"] == []


def test_labels_are_a_data_set_for_trainers_of_retrievers(world: Path, index: Path, tmp_path: Path) -> None:
    from coseek.adapters.hf_datasets import labels_dataset

    coseek.run_agent(world, "expert", index, tmp_path / "run", split="train")
    coseek.label(tmp_path / "run", "gold", tmp_path / "labels", {"negatives": 2})
    sets = list(LabelFolder(tmp_path / "labels").sets())
    rows = labels_dataset(tmp_path / "labels")
    assert len(rows) == len(sets) > 0
    for row, label in zip(rows, sets, strict=True):
        assert row["query"] == label.query.text
        assert [passage["docid"] for passage in row["positive_passages"]] == [label.positive]
        assert [passage["docid"] for passage in row["negative_passages"]] == [*label.negatives]
