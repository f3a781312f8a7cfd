"""Fears about parts: what a kill leaves stays for ever, or a start sweeps away what another process is writing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coseek.core.files import atomic_folder, write_json
from coseek.core.lock import lock_folder
from coseek.core.parts import sweep

pytestmark = pytest.mark.skipif(os.name != "posix", reason="nothing is swept where files have no such locks")

WRITER = """
import sys
from pathlib import Path
from coseek.core.files import atomic_folder, atomic_write
out = Path(sys.argv[1])
def fill(folder):
    with atomic_write(folder / "half.json") as file:
        file.write("{")
        print("writes", flush=True)
        sys.stdin.readline()
        file.write("}")
atomic_folder(out, fill)
"""


@contextmanager
def writer(out: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process in the middle of writing a folder."""
    command = [sys.executable, "-c", WRITER, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "writes\n"
        yield process
        process.communicate("\n")


def test_a_part_of_a_killed_writer_is_swept_by_the_next_one(tmp_path: Path) -> None:
    with writer(tmp_path / "index") as process:
        process.kill()
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    atomic_folder(tmp_path / "index", lambda part: (part / "a").touch())
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_part_of_a_living_writer_stays(tmp_path: Path) -> None:
    with writer(tmp_path / "index"):
        sweep(tmp_path)
        atomic_folder(tmp_path / "index", lambda part: (part / "a").touch())
        assert sum(path.suffix == ".part" for path in tmp_path.iterdir()) == 1
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["half.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_part_of_another_name_is_left_alone_where_coseek_does_not_own_the_folder(tmp_path: Path) -> None:
    for name in (".notes.json.abcd1234.part", ".a.json.movie.part", ".a.json.old"):
        (tmp_path / name).touch()
    write_json(tmp_path / "a.json", 1)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_new_start_in_a_folder_with_a_record_finds_nothing_hidden_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "run.yaml", {})
    with writer(run / "policy" / "trained") as process:
        process.send_signal(signal.SIGKILL)
    (run / "deep").mkdir()
    (run / "deep" / ".lock").write_text("4711 on elsewhere\n")
    (run / "deep" / ".cached.lock").write_text("of another program")
    (run / "deep" / ".thesis.Chapter1.part").write_text("somebody's own")
    (run / "deep" / ".healthy.old").mkdir()
    with lock_folder(run):
        left = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    assert left == [".lock", "deep/.cached.lock", "deep/.thesis.Chapter1.part", "run.yaml"]
    assert (run / "deep" / "healthy").is_dir()
