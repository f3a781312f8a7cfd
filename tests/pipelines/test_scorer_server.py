"""Fears about a scorer that a command serves: one too many, one left running, and a fault that nobody reads."""

import os
import socket
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.pipelines.test_together import recipe
from tests.processes import run_workers

from coseek.core.errors import RunError, SettingError
from coseek.pipelines.together import labelling
from coseek.pipelines.together.labelling import serving
from coseek.pipelines.together.paths import CoTrainingPaths

SERVER = """
import http.server, os, sys
port, folder = int(sys.argv[1]), sys.argv[2]
open(f"{folder}/pids", "a").write(f"{os.getpid()}\\n")

class Models(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

http.server.HTTPServer(("127.0.0.1", port), Models).serve_forever()
"""


@pytest.fixture
def address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def command(folder: Path, address: str) -> str:
    (folder / "server.py").write_text(SERVER)
    return f"{sys.executable} -S {folder / 'server.py'} {address.rpartition(':')[2]} {folder}"


def ask(training: CoTrainingPaths, number: int) -> None:
    """In place of labels: every worker asks the scorer."""
    with urlopen(f"{training.recipe.labels.scorer}/v1/models") as answer:
        (training.folder.parent / f"asked-{training.workers.rank}").write_bytes(answer.read())
    training.workers.barrier()


def work(folder: Path, address: str) -> None:
    labelling._label = ask
    served = [f"labels.scorer={address}", f"labels.serve={command(folder, address)}"]
    own = folder / "recipes" / os.environ["RANK"]
    labelling.label_round(CoTrainingPaths(recipe(own, *served), folder / "run"), 1)


@pytest.mark.slow
def test_two_workers_ask_one_scorer_which_ends_after_the_labels(tmp_path: Path, address: str) -> None:
    run_workers(2, work, tmp_path, address)
    assert sorted(path.name for path in tmp_path.glob("asked-*")) == ["asked-0", "asked-1"]
    [pid] = (tmp_path / "pids").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_a_scorer_that_does_not_start_says_why(tmp_path: Path, address: str) -> None:
    (tmp_path / "bad.py").write_text("import sys; print('loading', flush=True); sys.exit('no such model')")
    with (
        pytest.raises(RunError, match=r"ended with exit status 1: no such model \(more in .*serve.log\)"),
        serving(f"{sys.executable} -S {tmp_path / 'bad.py'}", address, tmp_path),
    ):
        raise AssertionError


def test_the_scorer_of_another_is_not_taken_for_one_s_own(tmp_path: Path, address: str) -> None:
    started = command(tmp_path, address)
    with (
        serving(started, address, tmp_path),
        pytest.raises(SettingError, match=r"answers at .* already"),
        serving(started, address, tmp_path),
    ):
        raise AssertionError
