"""Going on with a training for more steps: what is made anew, what stays, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.pipelines.test_agent import FEW, TINY

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress
from coseek.core.settings import dump_settings, fixed_settings
from coseek.data.run import Run
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import train_and_measure

MOVING = ["rl.overlong={max_tokens: 400, margin_tokens: 390}"]
"""A cost of length, which differs from run to run of a policy that has learnt nothing, so that its weights move."""


def recipe(*more: str) -> AgentRecipe:
    few = "table={questions: 2, dev_questions: 1, sampled: false}"
    return load_recipe("from-nothing", [*TINY, *MOVING, *FEW, few, *more])


def train(folder: Path, *more: str, resume: bool = False) -> None:
    training = AgentTraining(recipe(*more), folder)
    training.begin(resume)
    training.train()


def begun(folder: Path, *more: str) -> None:
    """A training whose metrics tell of one step."""
    AgentTraining(recipe(*more), folder).begin(resume=False)
    (folder / "rl").mkdir()
    (folder / "rl" / "metrics.jsonl").write_text('{"step": 1}\n')


def train_with_table(folder: Path, *more: str, resume: bool = False) -> None:
    train_and_measure(recipe(*more), folder, resume, NoProgress())


def weights(folder: Path, name: str = "trained") -> dict[str, torch.Tensor]:
    return load_file(folder / "policy" / name / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def ids(cell: Path) -> list[list[tuple[int, ...]]]:
    return [[part.ids for part in one.segments] for one in Run(cell).trajectories()]


@pytest.mark.slow
def test_more_steps_end_as_if_asked_for_at_once_also_after_a_kill_before_them_and_leave_nothing_stale(
    tmp_path: Path,
) -> None:
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    train_with_table(whole, "rl.steps=4")
    train_with_table(longer, "rl.steps=2")
    short = weights(longer)
    cells = {path.name: Run(path).record["identities"] for path in (longer / "table").iterdir()}
    killed = AgentTraining(recipe("rl.steps=4"), longer)
    killed.begin(resume=True)  # and here it is killed
    del killed
    assert not (longer / "policy" / "trained").exists()
    train_with_table(longer, "rl.steps=4", resume=True)
    assert not same(short, weights(longer)) and same(weights(longer), weights(whole))
    assert same(short, weights(longer, "trained.2-steps"))  # nothing that was trained is lost
    lines = (longer / "rl" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert load_recipe(str(longer / "recipe.yaml")).rl.steps == 4
    for path in (longer / "table").iterdir():
        assert (Run(path).record["identities"] == cells[path.name]) == (not path.name.startswith("after."))
        assert ids(path) == ids(whole / "table" / path.name)
    assert "No alarm in 4 steps" in (longer / "table.md").read_text()

    finished = (longer / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns
    train(longer, "rl.steps=4", resume=True)  # the same steps once more train nothing
    assert (longer / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns == finished
    with pytest.raises(SettingError, match=r"rl\.steps cannot change from 4 to 3 in .*: 4 steps are taken already"):
        train(longer, "rl.steps=3", resume=True)
    (longer / "rl" / "checkpoints").rename(longer / "elsewhere")
    with pytest.raises(SettingError, match="holds no checkpoint to go on from"):
        train(longer, "rl.steps=6", resume=True)
    assert same(weights(longer), weights(whole))


STAGES = "stages={one: {}, two: {rl: {kl_coef: 0.0}}}"


@pytest.mark.slow
def test_what_is_spread_over_the_steps_or_built_upon_says_why_it_gets_no_more(tmp_path: Path) -> None:
    cosine = "rl.policy={optimizer: {lr_scheduler_type: cosine}}"
    begun(tmp_path / "cosine", cosine, "rl.steps=1")
    with pytest.raises(
        SettingError, match=r"rl\.policy\.optimizer\.lr_scheduler_type spreads a schedule over all steps"
    ) as refused:
        train(tmp_path / "cosine", cosine, "rl.steps=2", resume=True)
    assert f"policy.folder={tmp_path / 'cosine' / 'policy' / 'trained'}" in str(refused.value)
    assert load_recipe(str(tmp_path / "cosine" / "recipe.yaml")).rl.steps == 1

    noisy = "data.training_retriever={retriever: noisy, noise: {start: 0.0, end: 0.5}}"
    train(tmp_path / "noisy", noisy, "rl.steps=1")
    with pytest.raises(SettingError, match=r"data\.training_retriever spreads a schedule over all steps"):
        train(tmp_path / "noisy", noisy, "rl.steps=2", resume=True)

    train(tmp_path / "two", STAGES, "rl.steps=1")
    with pytest.raises(
        SettingError, match=r"stages\.one\.rl\.steps cannot change .* the stage two has already started"
    ):
        train(tmp_path / "two", STAGES, "stages.one.rl.steps=2", "rl.steps=1", resume=True)
    before = weights(tmp_path / "two", "one")
    train(tmp_path / "two", STAGES, "stages.two.rl.steps=2", "rl.steps=1", resume=True)
    assert same(before, weights(tmp_path / "two", "one"))
    assert (tmp_path / "two" / "policy" / "trained.1-steps").is_dir()


def test_steps_and_health_alone_may_change_in_a_stage() -> None:
    def fixed(*more: str) -> JsonObject:
        return fixed_settings(AgentRecipe, dump_settings(recipe(*more)))

    plain = fixed(STAGES)
    assert plain == fixed(STAGES, "stages.one.rl.steps=9", "rl.steps=7", "rl.monitor.stop=true")
    assert plain != fixed(STAGES, "stages.one.rl.kl_coef=0.1")
    assert plain != fixed("stages={one: {}, three: {}}")
