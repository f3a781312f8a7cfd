"""Hub: the name of a model on a hub, given where a folder is needed, is answered with the line that fetches it."""

from pathlib import Path

import pytest

from coseek.core.errors import DataError
from coseek.models.model_folder import fetch_command, way_out
from coseek.models.tokenizer import HfTokenizer
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
