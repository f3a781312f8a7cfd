"""`search: auto` is the fastest exact way on this machine; which it is changes nothing that is found."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.hardware.paces import SLOW, kept
from tests.retrieval.brute import unit_rows
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.hardware.device import memory_bytes
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers.dense import CODES, Dense
from coseek.retrieval.vectors import exact as way
from coseek.retrieval.vectors.exact import MIN_ROWS, choose_method, fastest_method
from coseek.retrieval.vectors.store import VectorStore

WINS, LOSES = 3.0, 0.3
QUERIES = ["ba be", "do", "gu go ge"]


def scans(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """A machine on which a scan in int8 has this speed, and bfloat16 none worth having."""
    kept(folder, monkeypatch, SLOW, SLOW, int8_search=ratio)


def test_auto_takes_int8_only_where_it_wins_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ratio, expected in ((LOSES, "exact"), (1.0, "exact"), (1.19, "exact"), (1.21, "int8"), (WINS, "int8")):
        scans(tmp_path, monkeypatch, ratio)
        found = choose_method(MIN_ROWS, 24, "float32", "cpu")
        assert found.taken == expected and f"{ratio:.2g} × the speed" in found.why


def test_few_vectors_need_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = VectorStore.of(unit_rows(np.random.default_rng(0), 1_000, 24))
    assert fastest_method(store, "cpu").taken == "exact"
    assert choose_method(10**9, 140_000, "float32", "cpu").taken == "exact"  # sums overflow 32 bits
    assert not list(tmp_path.iterdir())


def test_vectors_that_do_not_fit_into_memory_are_scanned_in_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scans(tmp_path, monkeypatch, LOSES)
    fit = int(memory_bytes() * way.MEMORY_SHARE) // (4 * 384)
    assert [choose_method(rows, 384, "float32", "cpu").taken for rows in (fit - 1, fit + 1)] == ["exact", "int8"]


@pytest.mark.slow
def test_auto_finds_what_every_way_finds_on_every_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way, "MIN_ROWS", 100)
    make_encoder(tmp_path / "encoder")
    corpus, settings = sentences(300), {"encoder": str(tmp_path / "encoder")}
    scans(tmp_path / "cache", monkeypatch, WINS)  # so that all encode in one precision
    plain = build_index(corpus, "dense", tmp_path / "plain", {**settings, "search": "exact"})
    assert isinstance(plain, Dense)
    for name, ratio, first in (("quick", WINS, "int8"), ("slow", LOSES, "exact")):
        scans(tmp_path / "cache", monkeypatch, ratio)
        built = build_index(corpus, "dense", tmp_path / name, settings)
        assert isinstance(built, Dense) and built.method == first
        assert (tmp_path / name / CODES).exists() == (first == "int8")
        assert built.search(QUERIES, 20) == plain.search(QUERIES, 20)
        # The index is carried to the other machine: a copy that is there is used where it wins, and none is missed.
        scans(tmp_path / "cache", monkeypatch, LOSES if ratio == WINS else WINS)
        carried = open_index(tmp_path / name, corpus)
        assert isinstance(carried, Dense) and carried.method == "exact"
        assert carried.search(QUERIES, 20) == plain.search(QUERIES, 20)
        assert carried.identity == built.identity


@pytest.mark.slow
def test_int8_multiplies_integers_exactly_without_the_newest_instructions(tmp_path: Path) -> None:
    """These add pairs of products in 16 bits. (On other processors the variable says nothing.)"""
    code = f"""
import numpy as np
from pathlib import Path
from tests.retrieval.brute import brute_force, near_ties, outliers, unit_rows
from coseek.retrieval.vectors.int8 import Int8Search, largest_query_code, quantise
from coseek.retrieval.vectors.store import VectorStore

assert largest_query_code() >= 64
rng = np.random.default_rng(0)
for number, vectors in enumerate((unit_rows(rng, 3_000, 48), near_ties(rng, 3_000, 48), outliers(rng, 3_000, 48))):
    store, folder = VectorStore.of(vectors), Path({str(tmp_path)!r}) / str(number)
    quantise(store, folder)
    for queries in (vectors[:1], vectors[:5], unit_rows(rng, 64, 48)):
        assert np.array_equal(Int8Search(store, folder).search(queries, 10)[0], brute_force(vectors, queries, 10))
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
