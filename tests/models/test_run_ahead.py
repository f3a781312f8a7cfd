"""Fears about sampling several tokens between two looks of the host, as on a GPU: rows must stay what they are."""

from collections.abc import Sequence

import pytest
import torch
from tests.models.networks import converse, network, request
from tests.models.test_sampler import ids, largest_gap, sampler
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from coseek.core.files import JsonObject
from coseek.models.engines.fused import FusedEngine
from coseek.models.model import TurnEnd
from coseek.models.sampler import Sampler


def ahead(model: PreTrainedModel, stops: Sequence[str] = (), **settings: object) -> Sampler:
    """A sampler whose engine does on the CPU what it does on a GPU, but for the capture of its steps."""
    made = sampler(model, stops, **settings)
    made._engine.run_ahead = 8
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


class Fetches(TorchFunctionMode):
    """Counts calls that bring a tensor to the host, which on a CPU are no operation."""

    CALLS = (torch.Tensor.cpu, torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.__bool__, torch.Tensor.__int__)
    count = 0

    def __torch_function__(
        self, func: object, types: Sequence[type], args: tuple[object, ...] = (), kwargs: JsonObject | None = None
    ) -> object:
        assert callable(func)
        self.count += func in self.CALLS
        return func(*args, **(kwargs or {}))


class Waits(TorchDispatchMode):
    """Counts operations for which an accelerator has to finish all that it was given, since the host needs their
    result, or its shape."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "repeat_interleave")

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: JsonObject | None = None
    ) -> object:
        name = func.overloadpacket.__name__
        listed = [one for given in args if isinstance(given, list) for one in given]
        by_mask = name.startswith("index") and any(getattr(one, "dtype", None) is torch.bool for one in listed)
        self.count += name in self.NAMES or by_mask
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, {"temperature": 0}, {"top_p": 0.9, "top_k": 20}])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_the_host_looks_at_most_once_in_eight_tokens(name: str, settings: dict[str, object]) -> None:
    one = ahead(network(name), (), max_rows=6, **settings)
    one._is_end[:] = False
    for key in range(6):
        one.start(request(key, [65, 66, 67 + key % 2], max_tokens=64))
    with Waits() as waits, Fetches() as fetches:
        turns = one.step()
    assert [len(turn.ids) for turn in turns] == [64] * 6
    assert 0 < waits.count + fetches.count <= 64 / 8
