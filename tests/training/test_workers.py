"""Many workers make the update that one makes."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.processes import run_workers
from tests.training.tiny import tiny_model
from tests.training.workers_run import ALGORITHMS, KINDS, OFFLOADED, Kind, go_on, imitate, in_worker, run_all, train
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from coseek.models.lora import merged_state_dict
from coseek.training.learner.policy import ADAPTER
from coseek.training.learner.workers import ALONE, Workers, workers_here

TOLERANCE = 1e-5


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_the_shares_of_all_workers_are_everything_once(items: list[int], world: int) -> None:
    workers = [Workers(rank, world) for rank in range(world)]
    assert [item for worker in workers for item in worker.contiguous_share(items)] == items
    shares = [list(worker.strided_share(items)) for worker in workers]
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_alone_nothing_is_waited_for_and_nothing_changes() -> None:
    assert workers_here() is ALONE and ALONE.is_main
    gradient = torch.nn.Parameter(torch.ones(2))
    ALONE.barrier()
    ALONE.all_reduce_gradients([gradient])
    assert gradient.grad is None
    assert ALONE.gather(3) == [3] and ALONE.broadcast(lambda: 4) == 4


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two workers made."""
    folder = tmp_path_factory.mktemp("two")
    run_workers(2, in_worker, run_all, folder)
    return folder


def gap(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of weights."""
    assert weights.keys() == others.keys()
    return max(float((weight - others[name]).abs().max()) for name, weight in weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_workers_end_with_the_weights_of_one(two_workers: Path, tmp_path: Path, algorithm: str, kind: Kind) -> None:
    # A whole copy of a sharded module has its adapters merged.
    weights = merged_state_dict if kind == "fsdp2" else nn.Module.state_dict
    trained = train(algorithm, kind, tmp_path, ALONE)
    alone = weights(trained.module)
    before = weights(train(algorithm, kind, tmp_path / "before", ALONE, steps=0).module)
    moved, apart = gap(alone, before), gap(alone, torch.load(two_workers / f"{algorithm}-{kind}.pt"))
    print(f"{algorithm}, {kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
    assert apart < TOLERANCE < moved / 100
    rows, others = (_timeless(folder / "metrics.jsonl") for folder in (tmp_path, two_workers / f"{algorithm}-{kind}"))
    assert len(rows) == len(others) == 2
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    policy = two_workers / f"{algorithm}-{kind}-policy"
    saved = AutoModelForCausalLM.from_pretrained(policy)
    assert type(saved).__name__ == "Lfm2ForCausalLM" and (policy / ADAPTER).exists() == (algorithm == "lora")
    assert gap(merged_state_dict(trained.module), saved.state_dict()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_supervised_training_by_two_workers_is_that_of_one_and_both_work(
    two_workers: Path, tmp_path: Path, kind: Kind
) -> None:
    alone = imitate(kind, tmp_path, ALONE).module.state_dict()
    moved = gap(alone, tiny_model().state_dict())
    apart = gap(alone, torch.load(two_workers / f"sft-{kind}.pt"))
    print(f"sft, {kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
    assert apart < TOLERANCE < moved / 100
    passes = torch.load(two_workers / f"sft-{kind}-passes.pt")
    assert len(passes) == 2 and min(passes) > 0.7 * max(passes)
    for name in ("round-1", "round-2"):
        rows, others = (
            _timeless(folder / name / "metrics.jsonl") for folder in (tmp_path, two_workers / f"sft-{kind}")
        )
        for row, other in zip(rows, others, strict=True):
            assert {**row, "tokens_per_s": 0} == pytest.approx({**other, "tokens_per_s": 0}, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "offload"), OFFLOADED)
def test_what_lies_in_the_host_s_memory_learns_what_lies_on_the_devices(
    two_workers: Path, algorithm: str, offload: tuple[str, ...]
) -> None:
    here, there = (torch.load(two_workers / f"{algorithm}-{kind}.pt") for kind in ("fsdp2", "-".join(offload)))
    assert gap(here, there) < 1e-6


@pytest.fixture(scope="module")
def gone_on_with_four(two_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that two workers began, with a third step by four."""
    folder = tmp_path_factory.mktemp("four")
    for kind in KINDS:
        shutil.copytree(two_workers / f"ppo-{kind}", folder / f"ppo-{kind}")
    run_workers(4, in_worker, go_on, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_two_workers_began_goes_on_with_one_and_with_four(
    two_workers: Path, gone_on_with_four: Path, tmp_path: Path, kind: Kind
) -> None:
    """Moments of Adam, the critic and the reference are among what is dealt anew."""
    shutil.copytree(two_workers / f"ppo-{kind}", tmp_path / "began")
    alone = train("ppo", kind, tmp_path / "alone", ALONE, steps=3).module.state_dict()
    gone_on = train("ppo", kind, tmp_path / "began", ALONE, steps=3, resume=True).module.state_dict()
    four = torch.load(gone_on_with_four / f"ppo-{kind}.pt")
    print(f"{kind}: {gap(alone, gone_on):.1e} with one, {gap(alone, four):.1e} with four")
    assert gap(alone, gone_on) < TOLERANCE and gap(alone, four) < TOLERANCE


@pytest.mark.slow
def test_a_stop_changes_no_bit_of_what_the_same_number_of_workers_learns(two_workers: Path) -> None:
    for kind in KINDS:
        whole, parts = (torch.load(two_workers / f"{name}-{kind}.pt") for name in ("whole", "parts"))
        assert gap(whole, parts) == 0.0


@pytest.mark.slow
def test_no_worker_writes_more_of_a_sharded_checkpoint_than_its_share(two_workers: Path) -> None:
    for kind in KINDS:
        sizes = [file.stat().st_size for file in (two_workers / f"ppo-{kind}/checkpoints/step-000002").glob("shard-*")]
        assert len(sizes) == 2 and max(sizes) < 0.6 * sum(sizes)


def _timeless(path: Path) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.endswith("_s")} for row in rows]
