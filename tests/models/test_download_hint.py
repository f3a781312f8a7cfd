"""Hub: the name of a model on a hub, given where a folder is needed, is answered with the line that fetches it."""

from pathlib import Path

import pytest

from coseek.core.errors import DataError, UserError
from coseek.models.model_folder import FAMILIES, fetch_command, way_out
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_check import check_paths
from coseek.pipelines.agent_recipe import load_recipe, paths_of, recipe_names
from coseek.retrieval.retrievers.rerank import check_folder
from coseek.retrieval.vectors.encoder import encoder_folder


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("BAAI/bge-small-en-v1.5", ("BAAI/bge-small-en-v1.5", "models/bge-small-en-v1.5")),
        ("Qwen/Qwen2.5-7B-Instruct", ("Qwen/Qwen2.5-7B-Instruct", "models/Qwen2.5-7B-Instruct")),
        ("models/Qwen2.5-7B", ("Qwen/Qwen2.5-7B", "models/Qwen2.5-7B")),
        ("/big disk/e5-base-v2", ("intfloat/e5-base-v2", "/big disk/e5-base-v2")),
        ("Qwen2.5-3B", ("Qwen/Qwen2.5-3B", "models/Qwen2.5-3B")),
        ("somebody/their_model.v2", ("somebody/their_model.v2", "models/their_model.v2")),
        ("models", None), ("nowhere", None), ("a/b/c", None), ("../up", None), ("./here", None), ("/abs/path", None),
        ("a/b; rm -rf x", None), ("owner/", None), ("", None), (".", None), ("~/model", None),
    ],
)  # fmt: skip
def test_what_may_be_on_a_hub_is_told_from_a_path(
    name: str, found: tuple[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fetch_command(name) == found
    assert ("hf download" in way_out(name)) == (found is not None)


def test_a_path_below_a_folder_that_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert fetch_command("runs/policy") is None and way_out("runs/policy") == "check the path"


def test_every_place_that_needs_a_folder_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "BAAI/bge-small-en-v1.5"
    line = "hf download BAAI/bge-small-en-v1.5 --local-dir models/bge-small-en-v1.5, then name models/bge-small-en-v1.5"
    for refuse in (
        lambda: HfTokenizer.load(Path(name)), lambda: encoder_folder(name), lambda: check_folder(Path(name)),
    ):  # fmt: skip
        with pytest.raises(DataError, match=line):
            refuse()


@pytest.mark.parametrize("recipe", ["search-r1-ppo", "s3", "qagent"])
def test_a_model_that_our_recipes_name_is_known_by_its_publisher(recipe: str) -> None:
    named = [one for one in paths_of(load_recipe(recipe)) if one.holds == "model"]
    assert named and all(fetch_command(str(one.path)) for one in named)
    assert recipe in recipe_names() and FAMILIES
    with pytest.raises(UserError, match=r"there is no data/wiki-18, .* data.folder; check the path \(docs/ref"):
        check_paths(load_recipe(recipe))
