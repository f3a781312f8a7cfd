"""Where a model runs is found out in one place, and a device that is not here is refused in a sentence."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.source_tree import PACKAGE, nodes, sources

from coseek.core.errors import SettingError
from coseek.core.settings import dump_settings
from coseek.hardware.device import KERNELS, device_of
from coseek.hardware.placement import Placement
from coseek.hardware.precision import device_at
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


OPENERS = {
    "models/pretrained.py": {"from_pretrained"},
    "retrieval/vectors/encoder.py": {"SentenceTransformer"},
    "retrieval/retrievers/rerank.py": {"CrossEncoder"},
    # Nothing is run by these: a tokenizer, a configuration, and new models that are written to disk.
    "models/tokenizer.py": {"from_pretrained"},
    "pipelines/dry_run.py": {"from_pretrained", "from_config"},
    "training/encoder/laptop_encoder.py": {"SentenceTransformer"},
}
"""The files that may call a library's opener."""
LIBRARY = {"from_pretrained", "from_config", "SentenceTransformer", "CrossEncoder", "pipeline"}


def called(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


@pytest.mark.slow
def test_a_new_opener_goes_through_the_one_place() -> None:
    found: dict[str, set[str]] = {}
    for path in sources("src/coseek"):
        names = {name for name, _ in called(path)} & LIBRARY
        if names:
            found[str(path.relative_to(PACKAGE))] = names
    assert found == OPENERS


@pytest.mark.slow
def test_nothing_but_one_file_asks_which_devices_there_are() -> None:
    asks = {"is_available", "current_accelerator", "cuda", "set_device"}
    found = {
        str(path.relative_to(PACKAGE)): sorted(names)
        for path in sources("src/coseek")
        if path.name != "connections.py"  # an HTTP connection, too, has `is_available`
        if (names := {name for name, _ in called(path)} & asks)
    }
    # Workers join the process group of the GPUs, before any device is asked for.
    assert found == {
        "hardware/device.py": ["current_accelerator"],
        "training/trainer/workers.py": ["is_available", "set_device"],
    }


def test_kernels_kept_for_shapes_are_bounded_before_the_first_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNELS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    device_of("cpu")
    assert {name: os.environ[name] for name in KERNELS} == {**KERNELS, "LRU_CACHE_CAPACITY": "7"}
