"""Fears about parts: what a kill leaves stays for ever, or a start sweeps away what another process is writing."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coseek.core.files import atomic_folder
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
