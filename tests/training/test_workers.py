"""Many workers make the update that one makes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training.workers_run import ALGORITHMS, KINDS, Kind, train

from coseek.training.trainer.workers import ALONE, Workers, workers_here

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-5


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_the_shares_of_all_workers_are_everything_once(items: list[int], world: int) -> None:
    workers = [Workers(rank, world) for rank in range(world)]
    assert [item for worker in workers for item in worker.stretch(items)] == items
    shares = [list(worker.mine(items)) for worker in workers]
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_nothing_is_waited_for_and_nothing_changes() -> None:
    assert workers_here() is ALONE and ALONE.first
    gradient = torch.nn.Parameter(torch.ones(2))
    ALONE.wait()
    ALONE.add_up_gradients([gradient])
    assert gradient.grad is None
    assert ALONE.gather(3) == [3] and ALONE.agree(lambda: 4) == 4


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes made that `torchrun` started."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", "2", "-m", "tests.training.workers_run", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_workers_end_with_the_weights_of_one(two_workers: Path, tmp_path: Path, algorithm: str, kind: Kind) -> None:
    alone = train(algorithm, kind, tmp_path, ALONE).module.state_dict()
    before = train(algorithm, kind, tmp_path / "before", ALONE, steps=0).module.state_dict()
    both = torch.load(two_workers / f"{algorithm}-{kind}.pt")
    assert both.keys() == alone.keys()
    moved = max(float((alone[name] - before[name]).abs().max()) for name in alone)
    apart = max(float((alone[name] - both[name]).abs().max()) for name in alone)
    print(f"{algorithm}, {kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
    assert apart < TOLERANCE < moved / 100
    rows, others = (_timeless(folder / "metrics.jsonl") for folder in (tmp_path, two_workers / f"{algorithm}-{kind}"))
    assert len(rows) == len(others) == 2
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_two_workers_began_goes_on_with_one(two_workers: Path, tmp_path: Path, kind: Kind) -> None:
    """A checkpoint holds whole tensors: moments of Adam and the critic's among them."""
    shutil.copytree(two_workers / f"ppo-{kind}", tmp_path / "began")
    alone = train("ppo", kind, tmp_path / "alone", ALONE, steps=3).module.state_dict()
    gone_on = train("ppo", kind, tmp_path / "began", ALONE, steps=3, resume=True).module.state_dict()
    apart = max(float((alone[name] - gone_on[name]).abs().max()) for name in alone)
    print(f"{kind}: {apart:.1e} from a run of one worker")
    assert apart < TOLERANCE


def _timeless(path: Path) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.endswith("_s")} for row in rows]
