import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from tests.digests import digests
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import RunError, SettingError
from coseek.data.passage import Corpus
from coseek.retrieval.index import build_index

ROWS = 700
BUILDS: dict[str, dict[str, object]] = {
    "dense": {"batch_size": 8, "dtype": "float16", "search": "int8"},
    "hnsw": {"batch_size": 8},
    "ivf-pq": {"batch_size": 8},
}


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
@pytest.mark.parametrize("retriever", list(BUILDS))
def test_a_build_that_is_stopped_anywhere_goes_on_to_the_same_bytes(
    tmp_path: Path, encoder: Path, corpus: Corpus, retriever: str
) -> None:
    settings = {"encoder": str(encoder), **BUILDS[retriever]}
    build_index(corpus, retriever, tmp_path / "whole" / "index", settings)
    target = tmp_path / "stopped" / "index"
    began: list[int | None] = []
    for reports in (3, 40, 9, 50):
        report = StopsAfter(reports)
        with pytest.raises(Stopped):
            build_index(corpus, retriever, target, settings, report)
        assert not target.exists()
        began.append(report.first)
        # What a kill leaves in the middle of writing a file or a folder whole or not at all:
        building = target.with_name(".index.building")
        (building / "vectors" / ".progress.json.abcd1234.part").write_text("{")
        (building / ".int8.abcd1234.part").mkdir(exist_ok=True)
        (building / ".int8.abcd1234.part" / ".int8.json.efgh5678.part").write_text("{")
    build_index(corpus, retriever, target, settings)
    assert began == [0, 0, 256, 256]
    assert digests(target) == digests(tmp_path / "whole" / "index")
    assert [path.name for path in target.parent.iterdir()] == ["index"]


@pytest.mark.slow
def test_processes_that_share_a_corpus_write_the_bytes_of_one_also_when_one_is_killed(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    settings = {"encoder": str(encoder), "batch_size": 8, "device": "cpu"}
    build_index(corpus, "dense", tmp_path / "alone" / "index", settings)
    victims: list[int] = []

    def kill_one(what: str, done: int, total: int) -> None:
        if done and not victims:
            victims.extend(child.pid for child in multiprocessing.active_children() if child.pid is not None)
            os.kill(victims[0], signal.SIGKILL)

    target, together = tmp_path / "together" / "index", {**settings, "devices": ["cpu", "cpu"]}
    with pytest.raises(RunError, match=r"was killed.*repeat the command"):
        build_index(corpus, "dense", target, together, kill_one)
    assert len(victims) == 2 and not target.exists()
    began: list[int] = []
    build_index(corpus, "dense", target, together, lambda what, done, total: began.append(done))
    assert began[0] >= 256
    assert digests(target) == digests(tmp_path / "alone" / "index")


def test_devices_of_two_kinds_do_not_share_a_corpus(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    with pytest.raises(SettingError, match="differ in the last bits; take one kind"):
        build_index(corpus, "dense", tmp_path / "x", {"encoder": str(encoder), "devices": ["cpu", "cuda:0"]})
    assert not list(tmp_path.glob(".x*"))


@pytest.mark.slow
def test_a_stopped_build_with_other_settings_begins_anew(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    target = tmp_path / "index"
    for settings in ({}, {"passage_prompt": "ba "}):
        report = StopsAfter(40)
        with pytest.raises(Stopped):
            build_index(corpus, "dense", target, {"encoder": str(encoder), "batch_size": 8, **settings}, report)
        assert report.first == 0


def test_a_stopped_build_begins_anew_when_its_encoder_was_trained_on(tmp_path: Path, corpus: Corpus) -> None:
    folder = make_encoder(tmp_path / "encoder", seed=1)
    settings = {"encoder": str(folder), "batch_size": 8}
    with pytest.raises(Stopped):
        build_index(corpus, "dense", tmp_path / "index", settings, StopsAfter(40))
    make_encoder(folder, seed=2)
    report = StopsAfter(1)
    with pytest.raises(Stopped):
        build_index(corpus, "dense", tmp_path / "index", settings, report)
    assert report.first == 0
