"""What is fastest is found out on the machine, once, and never guessed."""

import json
import sys
from pathlib import Path

import pytest
from tests.hardware.paces import FAST, SLOW, begun_anew, kept, processor

from coseek.core.files import read_json
from coseek.hardware import placement
from coseek.hardware.device import host_digest, instructions
from coseek.hardware.placement import WIDE, Use, cache_file, fastest, precision_of, speedups, warning
from coseek.training.trainer.settings import LearnerSettings


@pytest.mark.parametrize("ratio", [SLOW, 0.5, 1.0, 1.19])
def test_auto_never_takes_bfloat16_where_it_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    processor(tmp_path, monkeypatch, ratio)  # nor where it is faster by what a busy machine may make up
    assert {fastest(use, 4096, "cpu") for use in Use} == {"float32"}
    assert precision_of("bfloat16", Use.TRAINING) == "bfloat16"  # a name is a name


def test_auto_takes_bfloat16_where_it_wins_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, monkeypatch, FAST, SLOW)
    taken = {use: fastest(use, 4096, "cpu") for use in Use}
    assert taken == {Use.TRAINING: "bfloat16", Use.SAMPLING: "float32", Use.ENCODING: "bfloat16"}


def test_narrow_models_are_sampled_in_float32_whatever_a_probe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path, monkeypatch, FAST)
    assert (fastest(Use.SAMPLING, WIDE - 1), fastest(Use.SAMPLING, WIDE, "cpu")) == ("float32", "bfloat16")


def test_other_instructions_are_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_digest()
    assert here == host_digest()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI")
    assert host_digest() != here and "ONEDNN_MAX_CPU_ISA=AVX2_VNNI" in instructions()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1, "hosts": {"HOST": {"seconds": {}}}}',
        '{"schema": 2, "hosts": {"HOST": {"many_rows": 2.0}}}',
        '{"schema": 2, "hosts": {"HOST": {"many_rows": 2.0, "few_rows": 2.0, "int8_search": 0.0}}}',
    ],
)
def test_an_invalid_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / placement.FILE
    path.write_text(text.replace("HOST", host_digest()))
    assert placement._read(path) == {}


@pytest.mark.slow
def test_a_probe_is_made_once_on_this_machine_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coseek" / placement.FILE
    path.parent.mkdir()
    other = {"many_rows": 2.0, "few_rows": 3.0, "int8_search": 4.0}
    path.write_text(json.dumps({"schema": 2, "hosts": {"another": other}}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun_anew(monkeypatch)
    found = speedups()
    assert found is not None and cache_file() == path
    assert read_json(path) == {"schema": 2, "hosts": {"another": other, host_digest(): found.model_dump()}}
    begun_anew(monkeypatch)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert speedups() == found


def test_where_no_probe_can_be_made_nothing_new_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    begun_anew(monkeypatch)
    assert speedups() is None and fastest(Use.TRAINING, device="cpu") == "float32"
    assert not list(tmp_path.iterdir())


def test_a_slow_precision_that_is_named_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(tmp_path, monkeypatch, SLOW)
    assert warning(LearnerSettings(precision="float32")) == "" == warning(LearnerSettings(precision="auto"))
    told = warning(LearnerSettings(precision="bfloat16"))
    assert told.startswith("precision=bfloat16 is 50 times slower than float32 on this machine (")
    assert told.endswith("take auto")
    assert warning(LearnerSettings(precision="bfloat16")) == ""
