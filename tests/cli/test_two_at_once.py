"""Two processes on one `--out`: the second gets a sentence at once, and the first ends as if it had been alone."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.cli.test_resume import rows
from tests.pipelines.test_agent import FEW, TINY

from coseek.data.run import Run
from coseek.labels.label_folder import LabelFolder

pytestmark = pytest.mark.slow


@contextmanager
def other_process(words: list[object], writes: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command in a process of its own, stopped in its tracks as soon as `writes` is there."""
    command = [sys.executable, "-m", "coseek.cli.main", *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not (writes.exists() and writes.stat().st_size):
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        assert process.poll() is None, "it was over before the other one could begin"
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.communicate()


def test_two_runs_never_write_into_one_folder(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "run"
    words: list[object] = ["run", world, "--split", "dev", "--agent", "rules", "--retriever", index, "--samples", 8]
    words += ["--out", out]
    with other_process(words, out / "trajectories.jsonl") as process:
        for more in ([], ["--resume"]):
            sentence = coseek(*words, *more).sentence
            said = f"{out} is being written by another process ({process.pid}); wait until it ends, or choose another"
            assert sentence == f"{said} folder"
    assert process.returncode == 0
    assert coseek(*words[:-1], tmp_path / "alone").code == 0
    assert len(rows(out)) == 240 and rows(out) == rows(tmp_path / "alone")


def test_two_labellings_never_write_into_one_folder(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    run, out = tmp_path / "run", tmp_path / "labels"
    words: list[object] = ["run", world, "--split", "dev", "--agent", "faulty-expert", "--retriever", index]
    assert coseek(*words, "--out", run).code == 0
    words = ["label", run, "--method", "agentic-r", "--scorer", "oracle", "--out", out]
    with other_process(words, out / "labels.yaml") as process:
        for more in ([], ["--resume"]):
            outcome = coseek(*words, *more)
            assert outcome.code == 2
            assert f"{out} is being written by another process ({process.pid})" in outcome.sentence
    assert process.returncode == 0
    assert coseek(*words[:-1], tmp_path / "alone").code == 0
    alone = LabelFolder(tmp_path / "alone")
    for path, same in (
        (LabelFolder(out).sets_path, alone.sets_path),
        (LabelFolder(out).dropped_path, alone.dropped_path),
    ):
        assert path.read_bytes() == same.read_bytes()


def test_two_trainings_never_write_into_one_folder_and_a_kill_leaves_it_free(tmp_path: Path, coseek: Type) -> None:
    out = tmp_path / "training"
    words: list[object] = ["train", "agent", "from-nothing", *TINY, *FEW, "--out", out]
    with other_process(words, out / "policy" / "start" / "config.json") as process:
        for more in ([], ["--resume"]):
            sentence = coseek(*words, *more).sentence
            assert f"{out} is being written by another process ({process.pid})" in sentence
        process.send_signal(signal.SIGKILL)
    assert coseek(*words, "--resume").code == 0
    cells = list((out / "table").iterdir())
    assert len(cells) == 12 and all(len(list(Run(cell).trajectories())) == 3 for cell in cells)
    assert not list(out.rglob(".lock"))
