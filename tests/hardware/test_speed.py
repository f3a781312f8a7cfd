"""The fastest precision is measured on the machine, once, and never guessed."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from tests.hardware.paces import FAST, SLOW, forget_speeds, kept, processor

from coseek.core.errors import SettingError
from coseek.core.files import read_json
from coseek.core.settings import dump_settings
from coseek.hardware import placement
from coseek.hardware.device import KERNELS, device_of, host_digest, instructions, memory_gib
from coseek.hardware.placement import WIDE, Place, Placement, Precision, Use, fastest, resolve_precisions
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.training.learner.settings import LearnerSettings


@pytest.mark.parametrize("ratio", [SLOW, 0.5, 1.0, 1.19])
def test_auto_takes_no_slower_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    processor(tmp_path, monkeypatch, ratio)  # nor where it is faster by what a busy machine may make up
    assert {fastest(use, 4096, "cpu") for use in Use} == {"float32"}
    assert placement.precision_of("bfloat16", Use.TRAINING) == "bfloat16"  # a name is a name


def test_auto_takes_bfloat16_where_it_wins_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path, monkeypatch, FAST, SLOW)
    taken = {use: fastest(use, 4096, "cpu") for use in Use}
    assert taken == {Use.TRAINING: "bfloat16", Use.SAMPLING: "float32", Use.ENCODING: "bfloat16"}


def test_narrow_models_are_sampled_in_float32_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(tmp_path, monkeypatch, FAST)
    assert (fastest(Use.SAMPLING, WIDE - 1), fastest(Use.SAMPLING, WIDE, "cpu")) == ("float32", "bfloat16")


def test_other_instructions_are_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = host_digest()
    assert here == host_digest()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2_VNNI")
    assert host_digest() != here and "ONEDNN_MAX_CPU_ISA=AVX2_VNNI" in instructions()


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"schema": 1, "hosts": {"HOST": {"seconds": {}}}}',
        '{"schema": 2, "hosts": {"HOST": {"many_rows": 2.0}}}',
        '{"schema": 2, "hosts": {"HOST": {"many_rows": 2.0, "few_rows": 2.0, "int8_search": 0.0}}}',
    ],
)
def test_an_invalid_file_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / placement.FILE
    path.write_text(text.replace("HOST", host_digest()))
    assert placement._read_hosts(path) == {}


@pytest.mark.slow
def test_a_probe_is_made_once_on_this_machine_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coseek" / placement.FILE
    path.parent.mkdir()
    other = {"many_rows": 2.0, "few_rows": 3.0, "int8_search": 4.0}
    path.write_text(json.dumps({"schema": 2, "hosts": {"another": other}}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget_speeds(monkeypatch)
    speedups = placement.speedups()
    assert speedups is not None and placement.cache_file() == path
    assert read_json(path) == {"schema": 2, "hosts": {"another": other, host_digest(): speedups.model_dump()}}
    forget_speeds(monkeypatch)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    assert placement.speedups() == speedups


def test_where_no_probe_can_be_made_nothing_new_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    forget_speeds(monkeypatch)
    assert placement.speedups() is None and fastest(Use.TRAINING, device="cpu") == "float32"
    assert not list(tmp_path.iterdir())


def test_a_slow_precision_that_is_named_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processor(tmp_path, monkeypatch, SLOW)
    float32, auto, bfloat16 = (LearnerSettings(precision=name) for name in ("float32", "auto", "bfloat16"))
    assert placement.warning(float32) == placement.warning(auto) == ""
    warning = placement.warning(bfloat16)
    assert warning.startswith("precision=bfloat16 is 50 times slower than float32 on this machine (")
    assert warning.endswith("take auto")
    assert placement.warning(bfloat16) == ""


# --- what auto resolves to


SETTINGS = """
precision=auto
graders.precision=auto
rl.critic.precision=float32
data.retriever_settings={precision: auto, dtype: float16}
stages={one: {rl: {policy: {precision: auto}}}, two: {rl: {steps: 3}}}
"""
RECIPE = load_recipe("quickstart", SETTINGS.strip().splitlines())
PLACES: dict[Place, Use] = {
    ("data", "retriever_settings", "precision"): Use.ENCODING,
    ("warm_start", "sft", "learner", "precision"): Use.TRAINING,
    ("graders", "precision"): Use.SAMPLING,
    ("rl", "policy", "precision"): Use.TRAINING,
    ("rejection", "sft", "learner", "precision"): Use.TRAINING,
    ("stages", "one", "rl", "policy", "precision"): Use.TRAINING,
    ("precision",): Use.SAMPLING,
}


def values(recipe: AgentRecipe) -> dict[Place, str]:
    return {place: value for place, _, value in placement.named(AgentRecipe, dump_settings(recipe))}


def test_every_auto_is_resolved_at_every_place() -> None:
    uses: dict[Place, Use] = {}

    def choose(use: Use, place: Place) -> Precision:
        uses[place] = use
        return "bfloat16" if use is Use.TRAINING else "float32"

    precisions = values(resolve_precisions(RECIPE, choose))
    assert uses == PLACES
    assert {place: precisions[place] for place in uses} == {
        place: "bfloat16" if use is Use.TRAINING else "float32" for place, use in PLACES.items()
    }
    assert precisions["rl", "critic", "precision"] == "float32" and "auto" not in precisions.values()
    stage = resolve_precisions(RECIPE, choose).stage("one")
    assert stage.rl.policy.precision == stage.rejection.sft.learner.precision == "bfloat16"


def test_what_was_begun_in_a_precision_goes_on_in_it() -> None:
    began = dump_settings(resolve_precisions(RECIPE, lambda use, place: "bfloat16"))

    def never(use: Use, place: Place) -> Precision:
        raise AssertionError(f"the precision of {place} was chosen again")

    resumed = resolve_precisions(RECIPE, never, began)
    assert set(values(resumed).values()) == {"bfloat16", "float32"}
    assert dump_settings(resumed) == began


def test_names_are_left_alone() -> None:
    recipe = resolve_precisions(RECIPE, lambda use, place: "float32")
    assert resolve_precisions(recipe, lambda use, place: "bfloat16") is recipe


# --- where a model runs


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


def test_memory_is_shared_by_the_processes_of_its_own_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_gib(torch.device("cpu"))
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert memory_gib(torch.device("cpu")) == pytest.approx(whole / 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert memory_gib(torch.device("cpu")) == pytest.approx(whole / 2)


def test_auto_is_chosen_for_the_device_of_its_own_model() -> None:
    tree = dump_settings(load_recipe("from-nothing", ["device=cuda:1", "graders.device=cpu"]))
    assert placement.device_at(tree, ("precision",)) == "cuda:1"
    assert placement.device_at(tree, ("rl", "policy", "precision")) == "cuda:1"  # a learner trains where the policy is
    assert placement.device_at(tree, ("graders", "precision")) == "cpu"


def test_kernels_kept_for_shapes_are_bounded_before_the_first_product(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KERNELS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LRU_CACHE_CAPACITY", "7")
    device_of("cpu")
    assert {name: os.environ[name] for name in KERNELS} == {**KERNELS, "LRU_CACHE_CAPACITY": "7"}
