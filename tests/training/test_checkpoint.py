"""A checkpoint is complete or ignored, and a failure leaves the previous one intact."""

import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from coseek.core.errors import DiskFault, RunError
from coseek.training.learner.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def state(step: int, size: int = 8) -> Checkpoint:
    return {
        "step": step,
        "position": step * 4,
        "metrics_bytes": 0,
        "torch_rng": torch.get_rng_state(),
        "settings": {"lr": 0.1, "betas": [0.9, 0.98]},
        "learners": {
            "policy": {"module": {"w": torch.full((size,), float(step))}, "optimizer": {"adam": {}, "update": step}}
        },
        "frozen": {},
        "notes": {"chunk": 3},
    }


def loaded_step(folder: Path) -> int | None:
    checkpoint = load_checkpoint(folder, state(0))
    return None if checkpoint is None else checkpoint["step"]


def test_a_checkpoint_is_loaded_as_it_was_saved(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(3))
    checkpoint = load_checkpoint(tmp_path, state(0))
    assert checkpoint is not None
    assert checkpoint["step"] == 3 and checkpoint["notes"] == {"chunk": 3}
    assert torch.equal(checkpoint["learners"]["policy"]["module"]["w"], torch.full((8,), 3.0))
    assert loaded_step(tmp_path / "nowhere") is None


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        save_checkpoint(tmp_path, state(step))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000003", "step-000010"]


SHARD = "shard-00001-model-00001-of-00001.safetensors"


@pytest.mark.parametrize("name", [SHARD, "run.pt", "manifest.json"])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, name: str, is_gone: bool) -> None:
    save_checkpoint(tmp_path, state(1))
    file = save_checkpoint(tmp_path, state(2)) / name
    file.write_bytes(file.read_bytes()[:-9])
    if is_gone:
        file.unlink()
    assert loaded_step(tmp_path) == 1


def test_damage_of_all_checkpoints_is_an_error(tmp_path: Path) -> None:
    (save_checkpoint(tmp_path, state(7)) / SHARD).write_bytes(b"")
    with pytest.raises(RunError, match=r"all checkpoints .* are damaged \(steps \[7\]\)"):
        loaded_step(tmp_path)


@pytest.mark.parametrize("large", ["tensors", "notes"])
def test_a_full_disk_leaves_the_old_checkpoint_and_says_so(tmp_path: Path, large: str) -> None:
    """Files may not grow beyond 200 kB here: the system refuses the write half-way, as a full disk does."""
    save_checkpoint(tmp_path, state(1))
    new = state(2, size=1_000_000 if large == "tensors" else 8)
    if large == "notes":
        new["notes"] = {"long": "x" * 1_000_000}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(DiskFault, match=r"checkpoint of step 2 .*; the one of step 1 is kept; make room"):
            save_checkpoint(tmp_path, new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old_handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]
    assert loaded_step(tmp_path) == 1


def test_temporary_files_of_a_killed_write_are_removed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1))
    (tmp_path / ".step-000002.abcd1234.part").mkdir()
    (tmp_path / ".step-000002.abcd1234.part" / SHARD).write_bytes(b"half")
    assert loaded_step(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_an_interrupted_replacement_is_undone(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, state(1))
    os.replace(path, tmp_path / ".step-000001.old")
    assert loaded_step(tmp_path) == 1
