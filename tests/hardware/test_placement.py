"""Where a model runs is found out in one place, and a device that is not here is refused in a sentence."""

import os

import pytest
import torch

from coseek.core.errors import SettingError
from coseek.core.settings import dump_settings
from coseek.hardware.device import KERNELS, device_of
from coseek.hardware.placement import Placement, device_at
from coseek.models.likelihood import LikelihoodSettings
from coseek.models.text_model import TextModelSettings
from coseek.pipelines.agent_recipe import load_recipe
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings

needs_no_gpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")


@needs_no_gpu
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu:0"])
def test_a_device_that_is_not_here_is_refused_with_the_way_out(name: str) -> None:
    with pytest.raises(SettingError, match=f"device '{name}': torch sees no accelerator here; take device=cpu, or"):
        Placement(device=name).torch_device()


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "cpu1"])
def test_what_is_no_device_is_refused_by_name(name: str) -> None:
    with pytest.raises(SettingError, match=f"torch has no device '{name}'; take cpu, cuda, cuda:1 …, or auto"):
        device_of(name)


def test_every_opener_has_the_same_default_and_its_own_use_of_auto() -> None:
    for kind in (Placement, TextModelSettings, LikelihoodSettings, EmbeddingSettings):
        assert kind().values() == {"device": "auto", "attention": "sdpa", "precision": "auto"}
    assert [str(kind.USE) for kind in (TextModelSettings, LikelihoodSettings)] == ["sampling", "encoding"]


def test_auto_is_chosen_for_the_device_of_its_own_model() -> None:
    tree = dump_settings(load_recipe("from-nothing", ["device=cuda:1", "graders.device=cpu"]))
    assert device_at(tree, ("precision",)) == "cuda:1"
    assert device_at(tree, ("rl", "policy", "precision")) == "cuda:1"  # a learner trains where the policy is
    assert device_at(tree, ("graders", "precision")) == "cpu"


def test_kernels_kept_for_shapes_are_bounded_before_the_first_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNELS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    device_of("cpu")
    assert {name: os.environ[name] for name in KERNELS} == {**KERNELS, "LRU_CACHE_CAPACITY": "7"}
