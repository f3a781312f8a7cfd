"""Fears about repeats: something asked for that cannot be known, more tokens than a step has, a spread that jumps."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from coseek.training.sft.trainer import LENGTH_RANGE, MAX_GAP, repeat_batch, varied_batch


@given(st.integers(2, 30), st.integers(0, 30), st.integers(0, 2**31))
def test_only_what_can_be_known_is_asked_for(length: int, gap: int, seed: int) -> None:
    batch = repeat_batch(50, 3, length, torch.Generator().manual_seed(seed), gap)
    again = slice(length + gap, 2 * length + gap)
    assert torch.equal(batch.ids_BT[:, :length], batch.ids_BT[:, again])
    assert not batch.agent_BT[:, : length + gap].any()
    assert batch.agent_BT[:, again].sum(dim=1).tolist() == [length - (gap > 0)] * 3, "where a gap ends nobody knows"


@given(st.floats(0, 1), st.integers(0, 2**31))
def test_lengths_and_distances_spread_from_one_distance_to_all(spread: float, seed: int) -> None:
    batch = varied_batch(50, 1536, 24, spread, torch.Generator().manual_seed(seed))
    rows, width = batch.ids_BT.shape
    distance = int(batch.agent_BT[0].nonzero()[0])
    length = width - distance
    assert LENGTH_RANGE[0] - 1 <= length <= LENGTH_RANGE[1]
    assert distance <= LENGTH_RANGE[1] + MAX_GAP + 1
    assert rows * width <= max(1536, width)
    if spread == 0.0:
        assert (length, distance) == (24, 24)
