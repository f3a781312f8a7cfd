"""Muon: its update compared with torch's, and which parameters it updates."""

import pytest
import torch
from hypothesis import given, strategies as st
from pydantic import ValidationError
from tests.training.tiny import tiny_model
from torch.nn import Parameter

from coseek.training.learner.optimizer import Muon, orthogonalise
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings

SETTINGS = OptimizerSettings(algorithm="muon", lr=0.02, muon_lr_factor=3.0, weight_decay=0.1)
SIDES = st.integers(1, 24)


@given(SIDES, SIDES, st.integers(0, 1000), st.floats(1e-4, 1e4))
def test_an_update_has_the_gradients_directions_and_one_length_in_each(
    rows: int, columns: int, seed: int, scale: float
) -> None:
    drawn = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed))
    u, s, v = torch.linalg.svd(drawn, full_matrices=False)
    given_NIO = u @ torch.diag_embed(scale * s.clamp(min=0.05 * float(s.max()))) @ v  # of full rank
    update = orthogonalise(given_NIO)
    lengths = torch.diagonal(u.mT @ update @ v.mT, dim1=1, dim2=2)
    assert torch.allclose(update, u @ torch.diag_embed(lengths) @ v, atol=1e-3)
    assert float(lengths.min()) > 0.3 and float(lengths.max()) < 1.3


@pytest.mark.parametrize("shape", [(16, 16), (40, 16), (16, 40)])
def test_updates_are_torchs_own_up_to_its_precision(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator)
    ours, torchs = Parameter(start.clone()), Parameter(start.clone())
    optimizers = (
        Muon([ours], 0.02, weight_decay=0.1),
        torch.optim.Muon([torchs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    )
    for _ in range(4):
        gradient = torch.randn(shape, generator=generator)
        for parameter, optimizer in zip((ours, torchs), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
    moved, apart = (torchs - start).detach().norm(), (ours - torchs).detach().norm()
    assert float(apart) < 0.02 * float(moved)


def test_muon_updates_the_matrices_inside_the_layers_and_adamw_all_else() -> None:
    model = tiny_model()
    learner = Policy(model, LearnerSettings(optimizer=SETTINGS), 10)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    learner.optim_step()
    muon = learner.state()["optimizer"]["muon"]["state"]
    matrices = [name for name, weight in model.named_parameters() if "layers" in name and weight.ndim == 2]
    assert isinstance(muon, dict) and len(muon) == len(matrices) > 0
    adam = learner.state()["optimizer"]["adam"]["state"]
    assert isinstance(adam, dict) and len(adam) == len(list(model.parameters())) - len(matrices)


def test_muon_refuses_shards() -> None:
    with pytest.raises(ValidationError, match="set strategy=ddp"):
        LearnerSettings(optimizer=SETTINGS, strategy="fsdp2")
