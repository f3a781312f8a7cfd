"""Fears about drawing: hidden correlations, a token that cannot be drawn, a batch that leaks into a row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coseek.models.sampler import filter_logits, sample_tokens, uniforms


def numbers(seeds: list[int], positions: list[int]) -> list[float]:
    return [float(one) for one in uniforms(np.array(seeds, np.uint64), np.array(positions, np.int64))]


def test_numbers_are_spread_evenly_over_seeds_and_over_positions() -> None:
    for seeds, positions in (([7] * 20_000, list(range(20_000))), (list(range(20_000)), [7] * 20_000)):
        drawn = np.array(numbers(seeds, positions))
        counts, _ = np.histogram(drawn, bins=20, range=(0, 1))
        assert ((counts - 1000.0) ** 2 / 1000.0).sum() < 44  # χ² with 19 degrees of freedom: p > .001
        assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.025


def test_seeds_that_follow_each_other_share_no_stretch() -> None:
    streams = [tuple(numbers([seed] * 50, list(range(50)))) for seed in range(50)]
    # Of 2,500 numbers among 2^23 a pair or two may coincide; shared stretches would lose dozens.
    assert len({one for stream in streams for one in stream}) > 2490


@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 2**40), others=st.lists(st.integers(0, 2**64 - 1)))
def test_a_number_depends_on_its_seed_and_position_alone(seed: int, position: int, others: list[int]) -> None:
    (alone,) = numbers([seed], [position])
    assert 0 < alone < 1
    assert numbers([*others, seed], [3] * len(others) + [position])[-1] == alone


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
    uniform=st.sampled_from([2.0**-24, 0.1, 0.5, 0.9, 1 - 2.0**-24, 1.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_what_is_drawn_is_where_the_cumulative_distribution_passes_the_number(
    logits: list[float], uniform: float, temperature: float
) -> None:
    drawn, logprob = sample_tokens(torch.tensor([logits]), torch.tensor([uniform]), temperature)
    chances = (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(dim=-1)
    place = int(drawn)
    assert float(logprob) == pytest.approx(float(chances[place].log()), abs=1e-4)
    assert chances[:place].sum() <= uniform + 1e-5
    assert chances[: place + 1].sum() >= uniform - 1e-5


def test_a_token_of_no_chance_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).expand(4, -1)
    drawn, _ = sample_tokens(logits, torch.tensor([2.0**-24, 0.4999, 0.5001, 1.0]), 1.0)
    assert drawn.tolist() == [1, 1, 3, 3]


def test_the_most_likely_token_stays_however_much_is_cut() -> None:
    kept = filter_logits(torch.tensor([[0.0, 3.0, 1.0]]), 1.0, top_p=1e-9, top_k=0)
    assert kept.tolist() == [[-torch.inf, 3.0, -torch.inf]]


def test_cutting_keeps_the_likely_ones_up_to_the_mass() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    assert filter_logits(logits, 1.0, top_p=0.65, top_k=0).isfinite().tolist() == [[False, False, True, True]]
    assert filter_logits(logits, 1.0, top_p=1.0, top_k=3).isfinite().tolist() == [[False, True, True, True]]
    assert filter_logits(logits, 1.0, top_p=1.0, top_k=9).isfinite().all()
