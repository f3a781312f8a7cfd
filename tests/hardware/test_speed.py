"""What is fastest is found out on the machine, once, and never guessed."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hardware.paces import FAST, SLOW, begun_anew, kept, processor

from coseek.core.files import read_json
from coseek.hardware import speed
from coseek.hardware.host import Host
from coseek.hardware.precision import Use
from coseek.hardware.speed import FEW, MANY, WIDE, Timing, cache_file, fastest, precision_of, precision_pace, warning
from coseek.training.trainer.settings import LearnerSettings

BENCHMARK = Path(speed.__file__).with_name("benchmark.py")


@pytest.mark.parametrize("ratio", [SLOW, 0.5, 1.0, 1.19])
def test_auto_never_takes_bfloat16_where_it_is_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    processor(tmp_path, monkeypatch, ratio)  # nor where it is faster by what a busy machine may make up
    assert {fastest(use, 4096, "cpu") for use in Use} == {"float32"}
    assert precision_of("bfloat16", Use.TRAINING) == "bfloat16"  # a name is a name


def test_auto_takes_bfloat16_where_it_wins_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, monkeypatch, {MANY: FAST, FEW: SLOW})
    taken = {use: fastest(use, 4096, "cpu") for use in Use}
    assert taken == {Use.TRAINING: "bfloat16", Use.SAMPLING: "float32", Use.ENCODING: "bfloat16"}


def test_narrow_models_are_sampled_in_float32_whatever_a_trial_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path, monkeypatch, FAST)
    assert (fastest(Use.SAMPLING, WIDE - 1), fastest(Use.SAMPLING, WIDE, "cpu")) == ("float32", "bfloat16")


def test_other_instructions_are_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Host.here()
    assert here == Host.here() and here.digest == Host.here().digest
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI")
    other = Host.here()
    assert other.digest != here.digest
    assert other.instructions == f"{other.capability}, " + ", ".join(other.switches)
    assert "ONEDNN_MAX_CPU_ISA=AVX2_VNNI" in other.switches


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"schema": 2, "hosts": {"HOST": {"seconds": {"NAME": [1.0, 0.1]}}}}',
        '{"schema": 1, "hosts": []}',
        '{"schema": 1, "hosts": {"HOST": 3}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": [1.0]}}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": {"NAME": [1.0]}}}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": {"NAME": [1.0, 0.0]}}}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": {"NAME": [1.0, -1.0]}}}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": {"NAME": [1.0, NaN]}}}}',
        '{"schema": 1, "hosts": {"HOST": {"seconds": {"NAME": ["a", true]}}}}',
    ],
)
def test_a_broken_file_is_as_good_as_none_and_is_written_over(tmp_path: Path, text: str) -> None:
    path, host = tmp_path / speed.FILE, Host.here()
    path.write_text(text.replace("HOST", host.digest).replace("NAME", MANY))
    assert speed._kept(path, host, MANY) is None
    speed._keep(path, host, {MANY: Timing(1.0, 0.25)})
    assert speed._kept(path, host, MANY) == Timing(1.0, 0.25)
    path.write_bytes(b"\xff\xfe{")
    assert speed._kept(path, host, MANY) is None


def test_trials_of_several_hosts_stand_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, here = tmp_path / speed.FILE, Host.here()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    there = Host.here()
    for host, pace in ((here, Timing(1.0, 0.5)), (there, Timing(1.0, 50.0))):
        speed._keep(path, host, {MANY: pace})
        speed._keep(path, host, {FEW: pace})
    assert [speed._kept(path, host, FEW) for host in (here, there)] == [Timing(1.0, 0.5), Timing(1.0, 50.0)]
    assert [speed._kept(path, host, MANY) for host in (here, there)] == [Timing(1.0, 0.5), Timing(1.0, 50.0)]


@pytest.mark.slow
def test_a_trial_is_made_once_on_this_machine_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun_anew(monkeypatch)
    found = precision_pace(Use.TRAINING)
    assert found is not None and found.ratio > 0
    path = cache_file()
    assert path == tmp_path / "coseek" / speed.FILE
    written = read_json(path)
    begun_anew(monkeypatch)
    began = time.perf_counter()
    assert precision_pace(Use.TRAINING) == found and precision_pace(Use.SAMPLING) is not None
    assert time.perf_counter() - began < 1.0 and read_json(path) == written


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "coseek").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begun_anew(monkeypatch)
    assert precision_pace(Use.TRAINING) is not None
    assert [path.name for path in tmp_path.iterdir()] == ["coseek"]


def test_where_no_trial_can_be_made_nothing_new_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    begun_anew(monkeypatch)
    assert precision_pace(Use.TRAINING) is None and fastest(Use.TRAINING, device="cpu") == "float32"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_benchmark_times_layers_and_scans() -> None:
    names = ["linear/8/16/32", "scan/20/float16"]
    done = subprocess.run([sys.executable, "-P", BENCHMARK, *names], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert list(found) == names and all(0 < one < 5 for pair in found.values() for one in pair)


def test_a_slow_precision_that_is_named_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(tmp_path, monkeypatch, SLOW)
    assert warning(LearnerSettings(precision="float32")) == "" == warning(LearnerSettings(precision="auto"))
    told = warning(LearnerSettings(precision="bfloat16"))
    assert told.startswith("precision=bfloat16 is 50 times slower than float32 on this machine (")
    assert told.endswith("take auto")
    assert warning(LearnerSettings(precision="bfloat16")) == ""


def test_a_precision_that_is_hardly_slower_is_not_worth_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(tmp_path, monkeypatch, 0.6)
    assert warning(LearnerSettings(precision="bfloat16")) == ""
