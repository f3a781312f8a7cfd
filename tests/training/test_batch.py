"""The batch holds exactly what the ledgers hold."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most
from tests.training.tiny import agent, environment, random_trajectories, trajectory

from coseek.core.errors import DataError
from coseek.training.learner.batch import make_batch, micro_batches


@given(st.integers(1, 8), st.integers(0, 10_000))
@settings(max_examples=at_most(40))
def test_a_row_of_the_batch_is_the_ledger_and_nothing_else(count: int, seed: int) -> None:
    runs = random_trajectories(count, random.Random(seed))
    batch = make_batch(runs)
    for row, run in enumerate(runs):
        length = int(batch.lengths_B[row])
        assert tuple(batch.ids_BT[row, :length].tolist()) == run.ids
        assert tuple(batch.agent_BT[row, :length].tolist()) == run.agent_mask
        assert not batch.agent_BT[row, length:].any() and not batch.real_BT[row, length:].any()
        said = torch.tensor([value for segment in run.segments for value in segment.logprobs])
        assert torch.equal(batch.logprobs_BT[row][batch.agent_BT[row]], said)


def test_an_id_that_looks_like_padding_is_still_data() -> None:
    batch = make_batch([trajectory(environment(0, 0), agent(0, 0)), trajectory(environment(5), agent(6, 7, 8, 9, 10))])
    assert batch.lengths_B.tolist() == [4, 6]
    assert batch.agent_BT[0].tolist() == [False, False, True, True, False, False]
    assert batch.predicted_BT[0].tolist() == [False, True, True, True, False, False]


def test_a_run_that_begins_with_the_agent_is_refused() -> None:
    with pytest.raises(DataError, match="'q' begins without a prompt"):
        make_batch([trajectory(agent(1), environment(2))])
    with pytest.raises(DataError, match="at least one trajectory"):
        make_batch([])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 200))
@settings(max_examples=at_most(60))
def test_micro_batches_hold_every_row_once_and_keep_the_budget(lengths: list[int], budget: int) -> None:
    parts = micro_batches(torch.tensor(lengths), budget)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= budget
