"""What a dry run says of memory is what training holds, byte by byte counted."""

from pathlib import Path

import pytest
from tests.pipelines.counted_memory import BAR, counted_rows, make_model

from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.estimate import FULL, memory_of, shape_of, share_of, ways_out


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_the_estimate_counts_what_every_worker_holds(workers: int, tmp_path: Path) -> None:
    """PPO with a KL, and GRPO of adapters: after rollouts, before optimizer steps, and at the peak of a pass."""
    make_model(tmp_path / "model")
    rows = counted_rows(workers, tmp_path)
    assert [name for name, *_ in rows] == ["ppo", "lora"]
    for name, counted, estimate in rows:
        for phase, value in counted.items():
            print(f"{name}, {workers} workers, {phase}: {value:.0f} counted, {estimate[phase]:.0f} estimated")
            assert estimate[phase] == pytest.approx(value, rel=BAR), (name, phase)


LOCAL = ["graders.generator.model=models/Qwen2.5-14B-Instruct", "graders.judge.model=models/Qwen2.5-14B-Instruct"]


@pytest.mark.parametrize(
    ("name", "overrides", "named"),
    [
        ("search-r1-ppo", ["cache_gib=null"], "cache_gib="),
        ("search-r1-ppo", ["cache_gib=null"], "lora={rank: 16}"),
        ("search-r1-ppo", ["rl.policy.strategy=ddp"], "rl.policy.strategy=fsdp2"),
        ("search-r1-ppo", ["machine.devices=1"], "machine.devices=8"),
        ("search-r1-grpo", ["rl.policy.micro_batch_tokens=32768"], "rl.policy.micro_batch_tokens="),
        ("s3", LOCAL, "graders.generator.model=http://"),
        (
            "sft",
            ["warm_start.sft.learner.strategy=ddp", "machine.memory_gib=24"],
            "warm_start.sft.learner.strategy=fsdp2",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_names_changes_and_each_of_them_helps(
    name: str, overrides: list[str], named: str
) -> None:
    recipe = load_recipe(name, overrides)
    shape, _ = shape_of(recipe)
    said = ways_out(recipe, shape)
    assert share_of(recipe, shape) > FULL and named in said
    for way in said.removeprefix("it fits with ").split(", or with "):
        changes = way.replace("rank: ", "rank:_").split()
        fitting = load_recipe(name, [*overrides, *(change.replace(":_", ": ") for change in changes)])
        assert share_of(fitting, shape) <= FULL, way


def test_what_no_change_helps_is_said_as_plainly() -> None:
    recipe = load_recipe("search-r1-ppo", ["machine.memory_gib=4"])
    assert "smaller model" in ways_out(recipe, shape_of(recipe)[0])


def test_models_that_are_asked_count_where_they_are_loaded_and_nowhere_else() -> None:
    recipe, local = load_recipe("s3"), load_recipe("s3", [*LOCAL, "graders.precision=bfloat16"])
    shape, _ = shape_of(recipe)
    assert memory_of(recipe, shape).graders == 0.0
    assert memory_of(local, shape).graders == 2 * 2 * 14_770_033_664
