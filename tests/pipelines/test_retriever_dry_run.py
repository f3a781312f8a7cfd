"""Fears about the dry runs of retrievers and co-training: other rows than the training's, something left behind."""

import json
from pathlib import Path
from typing import cast

import pytest

from coseek.cli.main import main
from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.retriever_dry_run import retriever_dry_run, together_dry_run, work_of
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.training.encoder.recipe import load_retriever_recipe
from coseek.training.learner.settings import GIB


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_world(WorldSettings(size="tiny", train=12, dev=4, test=4)).save(Path("mine"))
    return Path("mine")


def few(data: Path) -> list[str]:
    return [f"data.folder={data}", "encoder=base", "data.sentences=10", "threads=1", "training.batch_size=4"]


@pytest.mark.slow
def test_the_rows_and_updates_of_a_retriever_s_dry_run_are_those_of_its_training(data: Path, tmp_path: Path) -> None:
    recipe = load_retriever_recipe("documents", few(data))
    found = cast(dict[str, float], retriever_dry_run(recipe, NoProgress()).values)
    training = RetrieverTraining(recipe, tmp_path / "run")
    assert found["rows"] == len(training.rows()) and found["steps"] == round(-(-found["rows"] // 4) * 2)
    assert found["update_s"] > 0 and found["peak"] > 0
    assert found["searches"] == 2 * found["held_out"] > 0
    whole = retriever_dry_run(load_retriever_recipe("documents", [*few(data), "training.cached=false"]), NoProgress())
    assert found["needed"] < cast(float, whole.values["needed"])  # a micro-batch at a time
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.slow
def test_the_command_prints_the_dry_run_of_a_retriever_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "retriever", "documents", *few(data), "--dry-run", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["needed"] > 0 and tree["peak"] > 0 and tree["update_s"] > 0 and tree["searches"] > 0
    assert main(["train", "retriever", "documents", "data.folder=nowhere", "--dry-run"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_the_memory_of_a_training_is_known_before_its_labels_and_its_encoder_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = ["train", "retriever", "agentir", "encoder=models/Qwen3-Embedding-4B", "--labels", "next", "--dry-run"]
    assert main([*planned, "--json"]) == 2
    said = capsys.readouterr()
    assert 15 < json.loads(said.out)["needed"] / GIB < 25
    assert "hf download Qwen/Qwen3-Embedding-4B" in said.err and "next holds no labels" in said.err


def test_a_round_s_searches_and_scorer_calls_are_counted_from_its_recipe() -> None:
    work = work_of(load_together_recipe("agentic-r", ["labels.questions=1000"]))
    assert (work.runs, work.searches, work.candidates) == (1000, 5000, 20)
    assert (work.scorer_calls, work.continuations) == (5000, 100_000)
    half = work_of(
        load_together_recipe("agentic-r", ["labels.questions=1000", "labels.settings={window: 10, gac: false}"])
    )
    assert (half.scorer_calls, half.continuations) == (10_000, 0)
    gold = work_of(load_together_recipe("documents"))
    assert (gold.scorer_calls, gold.continuations) == (0, 0)


@pytest.mark.slow
def test_a_co_training_s_dry_run_names_everything_that_is_missing_and_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    local = ["labels.scorer=models/Qwen2.5-72B-Instruct", "labels.serve=null"]
    assert main(["train", "together", "agentic-r", "agent.threads=1", *local, "--dry-run", "--json"]) == 2
    said = capsys.readouterr()
    tree = json.loads(said.out)
    assert tree["scorer"] == pytest.approx(135 * GIB, rel=0.02)  # 72 billion in bfloat16, in each process
    assert "each of 8 processes would load labels.scorer=models/Qwen2.5-72B-Instruct, 135 GiB" in said.err
    assert tree["vectors"] == 4e6 * 768 and sum(tree["encoder"].values()) > GIB and tree["runs_s"] > 0
    for missing in ("data/wiki-18-agentic-r", "models/Qwen2.5-7B", "models/e5-base-v2", "labels.scorer"):
        assert missing in said.err
    assert not list(tmp_path.iterdir())
    laptop = together_dry_run(load_together_recipe("laptop", ["agent.threads=1"]))
    assert sum(cast(dict[str, float], laptop.values["encoder"]).values()) > 0
    assert cast(JsonObject, laptop.values["work"])["searches"] == 4800
    laptop.refuse()
