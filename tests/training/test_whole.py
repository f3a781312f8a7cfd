"""The trainers on a tiny world, through the real sampler, driver, retriever and rewards."""

import json
from pathlib import Path

import pytest
from tests.training.small_rl import ALGORITHMS, prepare, train, weights_sum

from coseek.core.progress import NoProgress

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    prepare(folder)
    return folder


def rows_of(metrics: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def test_the_warm_start_learns(base: Path) -> None:
    rows = rows_of(base / "sft" / "round-1" / "metrics.jsonl")
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_three_steps_through_the_real_sampler_and_driver(base: Path, tmp_path: Path, algorithm: str) -> None:
    train(base, algorithm, 3, tmp_path, False, NoProgress())
    rows = rows_of(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["runs"] == 32 and row["faults"] == 0 and row["updates"] > 0 for row in rows)
    # The trainer's log-probabilities are the sampler's, on every step: the sampler follows the weights.
    assert all(row["logprob_gap"] < 1e-4 for row in rows)
    assert weights_sum(tmp_path / "policy") != weights_sum(base / "policy")
