"""Fears about locks: two writers at once, a lock that outlives its holder, a lock file that is taken for a result."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coseek.core.errors import InUse, UserError
from coseek.core.files import atomic_folder, check_output_folder
from coseek.core.lock import kept_lock, lock_beside, lock_folder
from coseek.data.grade_cache import GradeCache, Verdict

HOLDER = """
import sys
from pathlib import Path
from coseek.core.lock import lock_beside, lock_folder
lock = {"folder": lock_folder, "beside": lock_beside}[sys.argv[1]](Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def holder(kind: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, kind, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        if process.poll() is None:
            process.communicate("\n")


@pytest.mark.medium
def test_of_two_processes_the_second_hears_at_once_who_is_writing(tmp_path: Path) -> None:
    with holder("folder", tmp_path / "run") as other:
        with pytest.raises(UserError) as refused:
            lock_folder(tmp_path / "run")
        assert isinstance(refused.value, InUse)
        start = f"{tmp_path / 'run'} is being written by another process ({other.pid}); wait until it ends, or choose"
        assert str(refused.value).startswith(start)
    with lock_folder(tmp_path / "run"):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with holder("folder", tmp_path / "run") as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert (tmp_path / "run" / ".lock").exists()
        with lock_folder(tmp_path / "run"):
            assert (tmp_path / "run" / ".lock").read_text().startswith(f"{os.getpid()} ")
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_lock_is_nothing_that_a_folder_holds(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "run"):
        check_output_folder(tmp_path / "run", "run.yaml")
    assert not (tmp_path / "run").exists()  # nothing was written there
    with lock_folder(tmp_path / "run"):
        (tmp_path / "run" / "run.yaml").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.yaml"]


def test_a_process_takes_its_own_lock_again_and_has_it_until_the_last_claim_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    outer = lock_folder(tmp_path)
    with lock_folder(tmp_path / "link"):
        pass
    assert (tmp_path / ".lock").exists()
    outer.release()
    assert not (tmp_path / ".lock").exists()


@pytest.mark.medium
def test_a_lock_beside_a_folder_survives_its_replacement(tmp_path: Path) -> None:
    target = tmp_path / "index"
    atomic_folder(target, lambda folder: (folder / "old").touch())
    with holder("beside", target):
        atomic_folder(target, lambda folder: (folder / "new").touch())
        with pytest.raises(InUse, match="is being written by another process"):
            lock_beside(target)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_build_that_must_be_alone_is_alone_in_its_own_process_too(tmp_path: Path) -> None:
    with lock_beside(tmp_path / "index"), pytest.raises(InUse, match=f"this process \\({os.getpid()}\\) already"):
        lock_beside(tmp_path / "index", again=False)


def test_a_start_that_fails_gives_its_folder_back_though_its_error_is_still_looked_at(tmp_path: Path) -> None:
    with pytest.raises(UserError) as failed, kept_lock(tmp_path / "run"):
        raise UserError("a wrong path")
    assert failed.traceback and not (tmp_path / "run").exists()
    with kept_lock(tmp_path / "run") as lock:
        pass
    assert (tmp_path / "run" / ".lock").exists()
    lock.release()


@pytest.mark.medium
def test_a_sheet_beside_a_run_has_one_writer(tmp_path: Path) -> None:
    where = GradeCache.beside(tmp_path, Verdict, "judge", {})
    with holder("beside", where.path):
        assert where.entries() == {}  # reading asks nobody
        with pytest.raises(InUse, match=where.path.name), where.appending():
            pass
