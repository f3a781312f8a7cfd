"""Shipping: what a training made is opened by name, with a card that says where it comes from."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from bench.ship import ShippedRun, main
from tests.pipelines.card_check import checked_card
from tests.pipelines.test_base import tiny

from coseek.core.errors import DataError, SettingError
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.models.shipped import model_path
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe

TINY_ENCODER = {
    "encoder": None,
    "laptop": {"hidden": 16, "feed_forward": 16, "heads": 2, "vocabulary": 400},
    "synthetic": {
        "worlds": 1,
        "tokenizer_worlds": 1,
        "world": {"size": "tiny", "train": 20, "dev": 0, "test": 0},
        "held_out": {"size": "tiny", "train": 0, "dev": 5, "test": 0, "seed": 8},
    },
    "query_tokens": 32,
    "passage_tokens": 32,
    "training": {"steps": 2, "batch_size": 4},
    "held_out": {"turns": 10},
    "threads": 1,
}


def write_run(folder: Path, recipe: Mapping[str, object]) -> Path:
    """The record of a training, without a result."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"recipe": recipe, "commit": "0" * 40}))
    return folder


def test_weights_whose_data_are_not_ours_are_not_shipped(tmp_path: Path) -> None:
    labelled = write_run(tmp_path / "labelled", {"labels": ["somewhere"], "encoder": None})
    tuned = write_run(tmp_path / "tuned", {"synthetic": {}, "encoder": "minilm"})
    for run in (labelled, tuned):
        with pytest.raises(DataError, match="labels or another encoder"):
            ShippedRun(run, "encoder", "base")


def test_a_base_that_went_on_from_weights_that_are_not_ours_is_not_shipped(tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere", {"start": "somebody/model"})
    with pytest.raises(DataError, match="began with somebody/model, which is not shipped"):
        ShippedRun(elsewhere, "policy", "base")
    other = write_run(tmp_path / "other", {"start": "base"})  # its record names no digest
    with pytest.raises(DataError, match="another base than the shipped one; ship from the commit"):
        ShippedRun(other, "policy", "base")


def test_the_card_of_a_base_that_went_on_says_how_the_one_before_was_made(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"start": "base", "seed": 3})
    record = yaml.safe_load((run / "recipe.yaml").read_text())
    (run / "recipe.yaml").write_text(
        yaml.safe_dump({**record, "identities": {"start": fingerprint(model_path("base"))}})
    )
    (run / "base").mkdir()
    shipped, card = ShippedRun(run, "policy", "base"), (model_path("base") / "README.md").read_text()
    assert "EARLIER/base" in shipped.command and "seed=3" in shipped.command
    told = shipped.earlier["EARLIER"]
    digest = hashlib.sha256((model_path("base") / "model.safetensors").read_bytes()).hexdigest()
    assert "coseek train base " in told and digest in told and digest in card


def test_an_unfinished_run_and_a_path_as_a_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", {})
    with pytest.raises(DataError, match="finish the training"):
        ShippedRun(run, "policy", "base")
    for name in ("../base", "a/b", "Base", ""):
        with pytest.raises(SettingError, match="small letters"):
            ShippedRun(run, "policy", name)
    assert main([str(run), "--kind", "policy", "--name", "base", "--root", str(tmp_path / "weights")]) == 2
    assert "finish the training" in capsys.readouterr().err and not (tmp_path / "weights").exists()


def test_the_command_of_a_card_makes_the_same_recipe(tmp_path: Path) -> None:
    import shlex

    recipe = make_settings(RetrieverRecipe, {**TINY_ENCODER, "training": {"steps": 2, "optimiser": {"lr": 0.00001}}})
    run = write_run(tmp_path / "run", dump_settings(recipe))
    (run / "encoder").mkdir()
    words = shlex.split(ShippedRun(run, "encoder", "base").command)
    assert words[:4] == ["coseek", "train", "retriever", "base"]
    assert load_retriever_recipe("base", words[4:]) == recipe


@pytest.mark.slow
def test_a_trained_base_is_shipped_and_opened_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import load_file

    from coseek.graders.factory import open_generator
    from coseek.graders.generator import GeneratorSettings
    from coseek.hardware.placement import FLOAT32
    from coseek.models.pretrained import load_model
    from coseek.pipelines.base import BaseTraining

    training = BaseTraining(tiny(), tmp_path / "run")
    training.begin(resume=False)
    training.train()
    training.write_results(training.measure())
    root = tmp_path / "weights"
    assert main([str(tmp_path / "run"), "--kind", "policy", "--name", "base", "--root", str(root)]) == 0
    folder = model_path("base", "policy", root)
    assert folder == root / "policy" / "base" and str(folder) in capsys.readouterr().out

    trained, shipped = (load_file(one / "model.safetensors") for one in (training.trained_folder, folder))
    assert shipped.keys() == trained.keys() and {one.dtype for one in shipped.values()} == {torch.float16}
    assert all(torch.equal(shipped[name], weight.half()) for name, weight in trained.items())
    assert load_model(folder, FLOAT32).dtype == torch.float32
    generator = open_generator(GeneratorSettings(model=str(folder)))
    assert "Question" in generator.prompt.prompt  # its own

    card = (folder / "README.md").read_text()
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() in card
    settings = json.dumps(dump_settings(training.recipe), sort_keys=True)
    assert hashlib.sha256(settings.encode()).hexdigest() in card
    assert "license: apache-2.0\n" in card and "\ncoseek train base " in card and str(tmp_path) not in card
    abilities = json.loads((tmp_path / "run" / "table.json").read_text())["abilities"]
    for name in abilities:
        assert re.search(rf"\| {re.escape(name)} \| [\d.]+ (\[[\d.]+, [\d.]+\]|\(n=1\)) \|", card), name

    (training.trained_folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(Exception, match="header"):
        main([str(tmp_path / "run"), "--kind", "policy", "--name", "base", "--root", str(root)])
    assert (folder / "README.md").read_text() == card and [one.name for one in folder.parent.iterdir()] == ["base"]


@pytest.mark.slow
def test_a_trained_encoder_is_shipped_and_searched_with(tmp_path: Path) -> None:
    from coseek.data.passage import Corpus, Passage
    from coseek.pipelines.encoder import RetrieverTraining
    from coseek.retrieval.retrievers.dense import Dense, DenseSettings

    training = RetrieverTraining(make_settings(RetrieverRecipe, TINY_ENCODER), tmp_path / "run")
    training.begin(resume=False)
    training.train()
    training.results()
    front, text = checked_card(training.encoder_folder, tmp_path)
    assert front["library_name"] == "sentence-transformers" and "| trained − before | all |" in text
    assert "None: it was not measured" in checked_card(tmp_path / "run" / "start")[1]
    root = tmp_path / "weights"
    assert main([str(tmp_path / "run"), "--kind", "encoder", "--name", "base", "--root", str(root)]) == 0
    folder = model_path("base", "encoder", root)
    corpus = Corpus([Passage(str(number), f"name {number}", "some text") for number in range(5)])
    found, wanted = (
        Dense.over(corpus, DenseSettings(encoder=str(one), precision="float32")).search(["name 3"], 5)[0]
        for one in (folder, training.encoder_folder)
    )
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in wanted], abs=1e-2)
    card = (folder / "README.md").read_text()
    assert "\ncoseek train retriever base " in card and "| BM25 " in card and "recall@3" in card
