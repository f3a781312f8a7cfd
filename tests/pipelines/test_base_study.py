"""The study of the base model: an arm differs from the recipe by what it is named after."""

import json
from pathlib import Path

from bench.base_study import AGAIN, ARMS, LENGTH, SIZES, TASKS, WHOLE, by_minutes, main

from coseek.core.settings import apply_overrides, changed_settings, dump_settings, make_settings
from coseek.pipelines.base_recipe import BaseRecipe


def recipe_of(arm: str) -> BaseRecipe:
    return make_settings(BaseRecipe, apply_overrides(dump_settings(BaseRecipe()), [*LENGTH, *ARMS[arm]]))


def test_every_arm_is_the_whole_but_for_its_size_its_seed_or_one_task() -> None:
    whole = recipe_of(WHOLE)
    for arm in SIZES.keys() - {WHOLE}:
        assert changed_settings(recipe_of(arm), whole).keys() == {"laptop"}
    assert len({recipe_of(arm).laptop.hidden for arm in SIZES}) == 4
    assert [changed_settings(recipe_of(arm), whole).keys() for arm in AGAIN] == [{"seed"}, {"seed"}]
    for arm in TASKS:
        other = recipe_of(arm)
        assert changed_settings(other, whole).keys() == {"tasks"}
        assert [name for name, share in other.tasks.shares.items() if not share] == [arm.removeprefix("no ")]


def test_a_look_has_the_minute_of_its_tokens_at_the_pace_so_far(tmp_path: Path) -> None:
    path = tmp_path / "training" / "round-1" / "metrics.jsonl"
    path.parent.mkdir(parents=True)
    rows = ({"step": 10, "tokens_per_s": 5.0}, {"step": 20, "tokens": 12000, "tokens_per_s": 10.0, "eval/em": 0.25})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert "| whole | 0.25 (20) |" in by_minutes({"whole": tmp_path}).markdown()


def test_nothing_made_is_nothing_shown(tmp_path: Path) -> None:
    assert main(["--show", "--out", str(tmp_path)]) == 0
