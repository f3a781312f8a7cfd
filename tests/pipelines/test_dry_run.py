"""Fears about dry runs: another machine than the one that was started."""

import json
from pathlib import Path
from typing import cast

import pytest
from tests.agents.test_chat_templates import TEMPLATE
from tests.models.networks import SMALL, TEXTS

from coseek.agents.agent_card import AgentCard
from coseek.cli.main import main
from coseek.core.errors import SettingError
from coseek.models.laptop import make_policy
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe, preset_names, recipe_names
from coseek.pipelines.demonstrations import policy_warnings
from coseek.pipelines.dry_run import dry_run
from coseek.pipelines.estimate import FULL, check_fits, memory_of, shape_of, share_of
from coseek.pipelines.stages import stages_of
from coseek.training.learner.settings import GIB

READER = "graders.generator.model=base"


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name in recipe_names() for preset in ("paper", *preset_names(name))]
)
def test_every_recipe_fits_the_machine_that_it_names(name: str, preset: str) -> None:
    read = [f"preset={preset}"]
    # In place of models that are trained first.
    made = {"laptop": "base", "smollm": "models/SmolLM2-135M-Instruct"}.get(preset)
    if made and name in ("s3", "qagent"):
        read.append(f"graders.generator.model={made}")
    if made and (preset == "smollm" or name == "s3"):
        read.append(f"policy.folder={made}")
    recipe = load_recipe(name, read)
    for stage in [one.recipe for one in stages_of(recipe, Path())] or [recipe]:
        assert share_of(stage, shape_of(stage)[0]) <= FULL


@pytest.mark.parametrize("protocol", ["search-r1", "search-r1-code", "tongyi", "s3"])
def test_a_policy_that_knows_another_protocol_or_an_unknown_mark_is_named(protocol: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    make_policy(SMALL, TEXTS, [], folder, seed=1)
    tokenizer = HfTokenizer.load(folder)
    recipe = load_recipe("search-r1-grpo", [f"policy.folder={folder}", f"protocol={protocol}"])
    for opened, read in (("", True), ("[THINK]", True), ("<think>\n\n</think>\n\n", True), ("<cot>", False)):
        tokenizer.fast.chat_template = TEMPLATE.replace("assistant\n{% endif", f"assistant\n{opened}{{% endif")
        tokenizer.save(folder)
        assert any("'<cot>'" in line for line in policy_warnings(recipe)) != (read or protocol == "tongyi")
    AgentCard(protocol="search-r1").write(folder)
    named = [line for line in policy_warnings(recipe) if "trained in the protocol search-r1" in line]
    assert not named if protocol.startswith("search-r1") else f"the recipe's is {protocol}" in named[0]
    taught = load_recipe("quickstart", [f"policy.folder={folder}", f"protocol={protocol}"])
    assert not any("trained in" in line for line in policy_warnings(taught))
    AgentCard(protocol="gone.yaml").write(folder)
    assert not any("trained in" in line for line in policy_warnings(recipe))


# --- processes


def test_one_process_of_a_recipe_for_eight_devices_is_refused_before_anything_is_loaded() -> None:
    recipe = load_recipe("search-r1-grpo")
    shape, _ = shape_of(recipe)
    assert memory_of(recipe, shape).needed / GIB < 60  # on eight
    with pytest.raises(SettingError, match=r"with 1 process .* about 15[0-9] GiB .*torchrun .*--nproc-per-node 8"):
        check_fits(recipe, 1, 80)
    check_fits(recipe, 8, 80)
    check_fits(load_recipe("search-r1-grpo", ["machine.check=false"]), 1, 80)
    check_fits(load_recipe("search-r1-grpo", ["policy.folder=models/unknown"]), 1, 80)  # of unknown shape


def test_a_training_that_cannot_fit_ends_before_its_folder_is_written(tmp_path: Path) -> None:
    training = AgentTraining(load_recipe("from-nothing", ["policy.laptop.hidden=262144"]), tmp_path / "run")
    with pytest.raises(SettingError, match=r"needs about 1\d,\d{3} GiB on each device"):
        training.begin(resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_dry_run_is_of_the_recipe_s_devices_or_of_the_processes_of_which_the_first_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = dry_run(
        load_recipe("r1", ["threads=1", "table.answer_with=[models/absent]", "rl.group_size=4", "rl.tree_roots=3"])
    )
    assert "table.answer_with" in found.missing  # told, not raised
    [look] = cast(list[dict[str, float]], found.values["stages"])
    assert look["needed"] / GIB < 80 and not look["way_out"]
    assert "--nproc-per-node 8" in str(found.tables[0].rows)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "agent", "r1", "threads=1", "--dry-run", "--json"]) == 2  # its files are not there
    [stage] = json.loads(capsys.readouterr().out)["stages"]
    assert stage["needed"] > 1.1 * look["needed"]
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "agent", "r1", "--dry-run"]) == 0 and not capsys.readouterr().out
