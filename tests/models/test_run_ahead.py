"""Fears about sampling several tokens between two looks of the host, as on a GPU: rows must stay what they are."""

from collections.abc import Sequence

import pytest
from tests.models.networks import converse, network
from tests.models.test_sampler import ids, largest_gap, sampler
from transformers import PreTrainedModel

from coseek.models.engines.fused import FusedEngine
from coseek.models.model import TurnEnd
from coseek.models.sampler import Sampler


def ahead(model: PreTrainedModel, stops: Sequence[str] = (), **settings: object) -> Sampler:
    """A sampler whose engine does on the CPU what it does on a GPU, but for the capture of its steps."""
    made = sampler(model, stops, **settings)
    made._engine.stretch = 8
    if isinstance(made._engine, FusedEngine):
        made._engine.pads = True
    return made


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "mistral", "gpt2"])
def test_rows_that_run_ahead_of_the_host_are_those_that_it_looks_at_every_token(name: str) -> None:
    """With stop strings inside the stretch, budgets that end in it, rows that wait beside others, and every slot in
    use."""
    model, stops = network(name), (*"aeiou", "0b", "\n")
    plain = converse(sampler(model, stops, max_rows=9), range(16), lengths=30)
    for settings in ({"max_rows": 9}, {"max_rows": 3, "patience": 0.0}, {"max_rows": 16, "max_tokens": 200}):
        rows = converse(ahead(model, stops, **settings), range(16), lengths=30)
        assert ids(rows) == ids(plain)
        assert {key: [turn.end for turn in turns] for key, turns in rows.items()} == {
            key: [turn.end for turn in turns] for key, turns in plain.items()
        }
        assert largest_gap(model, rows) < 1e-4
    assert {turn.end for turns in plain.values() for turn in turns} >= {TurnEnd.STOP, TurnEnd.LENGTH}
