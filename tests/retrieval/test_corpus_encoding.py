from pathlib import Path

import pytest
from tests.digests import digests
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import SettingError
from coseek.data.passage import Corpus
from coseek.hardware import device
from coseek.retrieval.index import build_index
from coseek.retrieval.retrievers.dense import DenseSettings

ROWS = 700


class Stopped(Exception):
    """What ends a build in these tests."""


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return sentences(ROWS)


class StopsAfter:
    """A report that ends the build after so many words."""

    def __init__(self, reports: int) -> None:
        self.left = reports
        self.first: int | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self.first = done if self.first is None else self.first
        self.left -= 1
        if not self.left:
            raise Stopped


@pytest.mark.slow
def test_a_build_that_is_stopped_anywhere_goes_on_to_the_same_bytes(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    settings = {"encoder": str(encoder), "batch_size": 8, "dtype": "float16", "search": "int8"}
    build_index(corpus, "dense", tmp_path / "whole" / "index", settings)
    target = tmp_path / "stopped" / "index"
    began: list[int | None] = []
    for reports in (3, 40, 9):
        report = StopsAfter(reports)
        with pytest.raises(Stopped):
            build_index(corpus, "dense", target, settings, report)
        assert not target.exists()
        began.append(report.first)
    build_index(corpus, "dense", target, settings)
    assert began == [0, 0, 256]
    assert digests(target) == digests(tmp_path / "whole" / "index")
    assert [path.name for path in target.parent.iterdir()] == ["index"]


@pytest.mark.slow
def test_processes_that_share_a_corpus_write_the_bytes_of_one(
    tmp_path: Path, encoder: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"encoder": str(encoder), "batch_size": 8, "device": "cpu"}
    build_index(corpus, "dense", tmp_path / "alone", settings)
    monkeypatch.setattr(device, "accelerators", lambda: (None, 0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # as torchrun has it
    assert DenseSettings.model_validate({**settings, "devices": "auto"}).spread == ["cpu", "cpu"]
    build_index(corpus, "dense", tmp_path / "together", {**settings, "devices": "auto"})
    assert digests(tmp_path / "together") == digests(tmp_path / "alone")


def test_devices_of_two_kinds_do_not_share_a_corpus(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    with pytest.raises(SettingError, match="differ in the last bits; take one kind"):
        build_index(corpus, "dense", tmp_path / "x", {"encoder": str(encoder), "devices": ["cpu", "cuda:0"]})
    assert not list(tmp_path.glob(".x*"))


def test_a_stopped_build_with_other_settings_or_another_encoder_begins_anew(tmp_path: Path, corpus: Corpus) -> None:
    for seed, prompt in ((1, ""), (1, "ba "), (2, "ba ")):
        encoder = make_encoder(tmp_path / "encoder", seed=seed)
        settings, report = {"encoder": str(encoder), "batch_size": 8, "passage_prompt": prompt}, StopsAfter(40)
        with pytest.raises(Stopped):
            build_index(corpus, "dense", tmp_path / "index", settings, report)
        assert report.first == 0
