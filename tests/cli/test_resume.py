"""A run that was stopped goes on, and ends as if it had not been."""

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.serve.live import live

from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.data.passage import Hit
from coseek.data.run import Run
from coseek.retrieval.index import open_index
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever


def rows(run: Path) -> list[JsonObject]:
    """The trajectories without their clocks, as they are stored."""
    return [{**trajectory.to_json(), "timings": None} for trajectory in Run(run).trajectories()]


class Interrupted(LayeredRetriever):
    """A retriever that fails after `left` searches."""

    name, identity, left = "interrupted", "interrupted", 1_000

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.left -= 1
        if self.left < 0:
            raise RetrieverError("the shelf fell down")
        return self.over.search(queries, k)


def stop_midway(
    words: list[str], how: signal.Signals, run: Path, first: str = "trajectories.jsonl"
) -> subprocess.CompletedProcess[str]:
    """Start a command, and send it a signal as soon as there is something in the file that it writes `first`."""
    with subprocess.Popen(
        [sys.executable, "-m", "coseek.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts what runs in the background deaf to Ctrl-C, and deafness is inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        while process.poll() is None and not any(path.stat().st_size for path in run.glob(first)):
            time.sleep(0.001)
        process.send_signal(how)
        out, err = process.communicate()
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.slow
def test_a_stopped_run_ends_as_if_it_had_not_been(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ["run", str(world), "--split", "dev", "--agent", "faulty-expert", "--retriever", str(index)]
    words += ["--samples", "16"]
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    stop_midway([*words, "--out", str(stopped)], signal.SIGKILL, stopped)
    kept = len(Run(stopped).trajectories_path.read_bytes().splitlines())
    assert kept < 480, "the run was over before it could be stopped"
    assert coseek(*words, "--out", stopped, "--resume").code == 0
    assert coseek(*words, "--out", whole).code == 0
    assert len(rows(whole)) == 480
    assert rows(stopped) == rows(whole)


@pytest.mark.slow
def test_a_stopped_command_says_in_one_sentence_how_to_go_on(world: Path, index: Path, tmp_path: Path) -> None:
    words = ["run", str(world), "--split", "dev", "--agent", "expert", "--retriever", str(index), "--samples", "64"]
    done = stop_midway([*words, "--out", str(tmp_path / "run")], signal.SIGINT, tmp_path / "run")
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].endswith("Resume with: the same command with --resume")
    assert "Traceback" not in done.stderr and not list((tmp_path / "run").glob(".*"))


def test_resume_begins_a_run_that_is_not_there(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("run", world, "--split", "dev", "--count", 2, "--agent", "expert", "--retriever", index)
    assert coseek(*words, "--out", tmp_path / "r", "--resume").code == 0
    assert len(rows(tmp_path / "r")) == 2


def test_resuming_a_finished_run_changes_nothing(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    named = ("run", world, "--split", "dev", "--count", 4, "--agent", "expert", "--retriever", index)
    words = (*named, "--out", tmp_path / "r")
    assert coseek(*words).code == 0
    before = (tmp_path / "r" / "trajectories.jsonl").read_bytes()
    assert coseek(*words, "--resume").code == 0
    assert (tmp_path / "r" / "trajectories.jsonl").read_bytes() == before


@pytest.mark.slow
def test_questions_that_a_dead_retriever_ended_are_asked_again(
    world: Path, index: Path, tmp_path: Path, coseek: Type
) -> None:
    served = Interrupted(open_index(index))
    with live({"bm25": served}) as url:
        far = tmp_path / "far.yaml"
        far.write_text(f"retriever: remote\nurl: {url}\nindex: bm25\nretries: 1\nbackoff_s: 0\n", encoding="utf-8")
        words = ("run", world, "--split", "dev", "--count", 6, "--agent", "expert", "--retriever", far, "--out")
        assert coseek(*words, tmp_path / "whole").code == 0
        served.left = 1
        assert coseek(*words, tmp_path / "r").code == 0
        assert any(row["stop"] == "retriever_error" for row in rows(tmp_path / "r"))
        served.left = 1_000
        assert coseek(*words, tmp_path / "r", "--resume").code == 0
    assert rows(tmp_path / "r") == rows(tmp_path / "whole")


def test_more_samples_change_none_of_the_first(world: Path, index: Path, tmp_path: Path, coseek: Type) -> None:
    words = ("run", world, "--split", "dev", "--count", 5, "--agent", "faulty-expert", "--retriever", index)
    assert coseek(*words, "--out", tmp_path / "one").code == 0
    assert coseek(*words, "--out", tmp_path / "three", "--samples", 3).code == 0
    three = rows(tmp_path / "three")
    assert all(row in three for row in rows(tmp_path / "one"))
