"""A recipe computes in what is fastest here, says so, and goes on in what it was begun with."""

import json
from pathlib import Path

import pytest
import yaml
from tests.hardware.paces import FAST, SLOW, processor
from tests.pipelines.test_recipes import PAPERS
from tests.pipelines.trainings import begin
from tests.watching import Heard

from coseek.core.errors import SettingError
from coseek.core.settings import Settings, dump_settings
from coseek.graders.generator import GeneratorSettings
from coseek.hardware.placement import named
from coseek.lab.pipelines.recipes import GeneratorRecipe
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe, preset_names, recipe_names
from coseek.pipelines.run_record import FILE, resolve_recipe
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.training.encoder.recipe import load_retriever_recipe, retriever_recipe_names
from coseek.training.sft.settings import SftSettings

OTHER_PAPERS = ("r1-searcher", "search-e1", "simpledeepsearcher")
"""Recipes at the size of a paper, besides those of the five."""


def precisions(settings: Settings) -> dict[str, str]:
    return {".".join(place): value for place, _, value in named(type(settings), dump_settings(settings))}


def laptop_recipes() -> dict[str, Settings]:
    """Everything that is to run on any processor."""
    agents = [name for name in recipe_names() if name not in (*PAPERS, *OTHER_PAPERS)]
    presets = [(name, preset) for name in recipe_names() for preset in preset_names(name)]
    small = [(name, preset) for name, preset in presets if preset in ("laptop", "smollm")]
    return {
        **{name: load_recipe(name) for name in agents},
        **{f"{name} {preset}": load_recipe(name, [f"preset={preset}"]) for name, preset in small},
        **{f"retriever/{name}": load_retriever_recipe(name, labels=["x"]) for name in retriever_recipe_names()},
        "together/laptop": load_together_recipe("laptop"),
        "generator": GeneratorRecipe(),
        "sft": SftSettings(),
    }


def test_no_laptop_recipe_names_a_precision() -> None:
    taken = {name: precisions(recipe) for name, recipe in laptop_recipes().items()}
    assert len(taken) > 15 and all(taken.values())
    assert not [(name, place) for name, places in taken.items() for place, kind in places.items() if kind == "bfloat16"]
    learners = ("warm_start.sft.learner.precision", "rl.policy.precision")
    assert {taken["quickstart"][learner] for learner in learners} == {"auto"}


def test_the_quickstart_trains_in_bfloat16_and_samples_in_float32_where_bfloat16_is_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path, monkeypatch, FAST)
    recipe = resolve_recipe(load_recipe("from-nothing", ["precision=auto"]))
    assert recipe.warm_start is not None and recipe.warm_start.sft.learner.precision == "bfloat16"
    assert (recipe.rl.policy.precision, recipe.precision) == ("bfloat16", "float32")


def test_nothing_of_a_laptop_recipe_is_in_bfloat16_where_that_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path, monkeypatch, SLOW)
    for recipe in laptop_recipes().values():
        assert set(precisions(resolve_recipe(recipe)).values()) == {"float32"}


@pytest.mark.medium
@pytest.mark.parametrize(("first", "then", "taken"), [(FAST, SLOW, "bfloat16"), (SLOW, FAST, "float32")])
def test_a_resumed_run_keeps_the_precision_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: float, then: float, taken: str
) -> None:
    processor(tmp_path / "cache", monkeypatch, first)
    began = begin(tmp_path / "run", load_recipe("from-nothing"), resume=False)
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")  # work: a folder without any is begun anew
    assert began.rl.policy.precision == taken
    written = (tmp_path / "run" / FILE).read_bytes()
    assert yaml.safe_load(written)["recipe"]["rl"]["policy"]["precision"] == taken
    processor(tmp_path / "cache", monkeypatch, then)  # another library, or a trial that met a busy machine
    assert resolve_recipe(load_recipe("from-nothing")).rl.policy.precision != taken
    assert begin(tmp_path / "run", load_recipe("from-nothing"), resume=True) == began
    assert (tmp_path / "run" / FILE).read_bytes() == written


def test_a_run_that_was_begun_by_name_goes_on_when_its_recipe_says_auto(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path / "cache", monkeypatch, SLOW)
    name = "rl.policy.precision=bfloat16"
    begin(tmp_path / "run", load_recipe("from-nothing", [name]), resume=False)
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert begin(tmp_path / "run", load_recipe("from-nothing"), resume=True).rl.policy.precision == "bfloat16"
    with pytest.raises(SettingError, match=r"begun with rl\.policy\.precision = 'bfloat16', and now 'float32'"):
        begin(tmp_path / "run", load_recipe("from-nothing", ["rl.policy.precision=float32"]), resume=True)


def model_of(folder: Path, width: int) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": {"hidden_size": width}}))
    return str(folder)


def test_a_model_that_is_sampled_in_auto_is_taken_by_its_own_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(tmp_path, monkeypatch, FAST)
    wide, narrow = model_of(tmp_path / "wide", 896), model_of(tmp_path / "narrow", 128)
    recipe = load_recipe("from-nothing", ["precision=auto", "graders.precision=auto", f"policy.folder={wide}"])
    for generator, taken in ((wide, "bfloat16"), (narrow, "float32"), ("http://127.0.0.1:9", "float32")):
        frozen = recipe.graders.model_copy(update={"generator": GeneratorSettings(model=generator)})
        resolved = resolve_recipe(recipe.model_copy(update={"graders": frozen}))
        assert (resolved.precision, resolved.graders.precision) == ("bfloat16", taken)
    co_training = load_together_recipe("laptop", ["agent.precision=auto", f"agent.policy.folder={wide}"])
    assert resolve_recipe(co_training).agent.precision == "bfloat16"
    assert resolve_recipe(GeneratorRecipe(precision="auto")).precision == "float32"


def test_what_auto_came_to_is_said_and_a_slow_name_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Heard()
    lines = watching.lines
    processor(tmp_path / "cache", monkeypatch, SLOW)
    begin(tmp_path / "auto", load_recipe("from-nothing"), resume=False, progress=watching)
    assert lines == ["auto precision: sampling in float32, training in float32"]
    slow: AgentRecipe = load_recipe("from-nothing", ["rl.policy.precision=bfloat16"])
    for name in ("slow", "again"):
        begin(tmp_path / name, slow, resume=False, progress=watching)
    told = [line for line in lines if "times slower" in line]
    assert len(told) == 1 and told[0].startswith("rl.policy.precision=bfloat16 is 50 times slower")
