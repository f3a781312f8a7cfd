"""Models of the package: opened by a bare name, and never taken for a folder of the user's."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.models.networks import SMALL, TEXTS, halve
from tests.retrieval.tiny_encoder import make_encoder

from coseek.hardware.placement import FLOAT32, Placement
from coseek.models.laptop import make_policy
from coseek.models.model_folder import WEIGHTS, Kind, missing, model_path, shipped_models
from coseek.models.new_tokens import add_tokens
from coseek.models.pretrained import load_model
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.dense import Dense, DenseSettings
from coseek.training.encoder.recipe import SyntheticSettings
from coseek.training.encoder.synthetic import synthetic_labels
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world


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


@pytest.mark.parametrize("kind", ["policy", "encoder"])
def test_without_shipped_models_every_name_is_a_path(kind: Kind, tmp_path: Path) -> None:
    for root in (tmp_path / "absent", tmp_path):
        assert shipped_models(kind, root) == []
        assert model_path("base", kind, root) == Path("base")


def test_a_half_written_model_is_none(tmp_path: Path) -> None:
    for name in (".base.x1.part", ".base.old"):
        (tmp_path / "policy" / name).mkdir(parents=True)
    (tmp_path / "policy" / "README.md").write_text("a file")
    assert shipped_models("policy", tmp_path) == []


def test_shipped_models_lie_inside_the_package() -> None:
    import coseek

    assert Path(str(coseek.__file__)).parent == WEIGHTS.parent


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


@pytest.mark.slow
def test_the_shipped_encoder_understands_short_queries_better_than_bm25() -> None:
    world = make_world(WorldSettings(seed=404, size="tiny", train=0, dev=120, test=0))
    for kind, least in (("short name+relation", 0.1), ("sub-question", -0.05)):
        settings = SyntheticSettings.model_validate({"kinds": {kind: 1.0}})
        asked = synthetic_labels(world, "dev", settings, seed=0)[kind]
        encoder = Dense.over(world.corpus, DenseSettings(encoder="base", batch_size=64))
        recall = [
            sum(
                one.positive in {hit.passage.id for hit in hits}
                for one, hits in zip(asked, retriever.search([one.query for one in asked], 3), strict=True)
            )
            / len(asked)
            for retriever in (encoder, Bm25.over(world.corpus))
        ]
        assert recall[0] >= recall[1] + least, (kind, recall, len(asked))
