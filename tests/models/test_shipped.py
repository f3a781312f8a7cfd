"""Models of the package: opened by a bare name, and never taken for a folder of the user's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.networks import SMALL, TEXTS, halve
from tests.retrieval.tiny_encoder import make_encoder

from coseek.hardware.placement import FLOAT32, Placement
from coseek.models.laptop import make_policy
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.models.new_tokens import add_tokens
from coseek.models.pretrained import load_model
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shipped policy with float16 weights."""
    root = tmp_path_factory.mktemp("weights")
    make_policy(SMALL, TEXTS, (), root / "policy" / "base", seed=1)
    halve(root / "policy" / "base" / "model.safetensors")
    return root


def test_a_bare_name_is_the_shipped_model_and_a_path_is_not(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    assert model_path("base", "policy", root) == root / "policy" / "base"
    for own in ("./base", "base/", str(tmp_path / "base"), Path("base")):
        assert model_path(own, "policy", root).resolve() == tmp_path / "base"
    assert model_path("~/base", "policy", root) == Path.home() / "base"


def test_a_name_of_one_kind_names_no_model_of_the_other(root: Path) -> None:
    assert shipped_models("policy", root) == ["base"] and shipped_models("encoder", root) == []
    assert model_path("base", "encoder", root) == Path("base")


def test_a_misspelt_name_is_told_the_nearest_shipped_model(root: Path) -> None:
    known = shipped_models("policy", root)
    said = missing("model folder", Path("bse"), known=known)
    assert said == "there is no model folder bse; did you mean 'base', which coseek ships? Else check the path"
    for other in ("./bases", "a/b/base", "quickstart"):
        assert missing("model folder", other, known=known).endswith("; check the path")


def test_float16_weights_are_trained_and_sampled_in_float32(root: Path, tmp_path: Path) -> None:
    folder = model_path("base", "policy", root)
    stored = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float16}
    add_tokens(folder, ["<search>"], (), tmp_path / "tagged", seed=0)
    trained = Policy(load_model(folder, FLOAT32), LearnerSettings(), 0).model
    for model in (trained, load_model(folder, FLOAT32), load_model(tmp_path / "tagged", FLOAT32)):
        loaded = model.state_dict()
        assert {weight.dtype for weight in loaded.values() if weight.is_floating_point()} == {torch.float32}
        assert all(torch.equal(loaded[name][: len(weight)].cpu(), weight.float()) for name, weight in stored.items())
    assert load_file(tmp_path / "tagged" / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.float32
    assert load_model(folder, Placement(precision="bfloat16")).dtype == torch.bfloat16


def test_a_float16_encoder_gives_the_vectors_of_its_weights_in_float32(tmp_path: Path) -> None:
    from coseek.retrieval.vectors.encoder import load_encoder

    folder = make_encoder(tmp_path / "encoder")
    halve(folder / "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    loaded = load_encoder(folder, FLOAT32, "float32").state_dict()
    assert {weight.dtype for weight in loaded.values() if weight.is_floating_point()} == {torch.float32}
    found = {name.split("auto_model.")[-1].removeprefix("0.model."): weight for name, weight in loaded.items()}
    assert all(torch.equal(found[name].cpu(), weight.float()) for name, weight in stored.items())
