"""What `auto` comes to stands in the settings, by name."""

import pytest

from coseek.core.settings import dump_settings
from coseek.hardware.placement import Place, Precision, Use, named, resolve_precisions
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe

RECIPE = load_recipe(
    "quickstart",
    [
        "precision=auto",
        "graders.precision=auto",
        "rl.critic.precision=float32",
        "data.retriever_settings={precision: auto, dtype: float16}",
        "stages={one: {rl: {policy: {precision: auto}}}, two: {rl: {steps: 3}}}",
    ],
)
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
    return {place: value for place, _, value in named(AgentRecipe, dump_settings(recipe))}


def test_every_auto_is_settled_wherever_it_stands() -> None:
    asked: dict[Place, Use] = {}

    def choose(use: Use, place: Place) -> Precision:
        asked[place] = use
        return "bfloat16" if use is Use.TRAINING else "float32"

    found = values(resolve_precisions(RECIPE, choose))
    assert asked == PLACES
    assert {place: found[place] for place in asked} == {
        place: "bfloat16" if use is Use.TRAINING else "float32" for place, use in PLACES.items()
    }
    assert found["rl", "critic", "precision"] == "float32" and "auto" not in found.values()
    stage = resolve_precisions(RECIPE, choose).stage("one")
    assert stage.rl.policy.precision == stage.rejection.sft.learner.precision == "bfloat16"


def test_what_was_begun_in_a_precision_goes_on_in_it() -> None:
    began = dump_settings(resolve_precisions(RECIPE, lambda use, place: "bfloat16"))

    def never(use: Use, place: Place) -> Precision:
        raise AssertionError(f"{place} was chosen anew")

    assert set(values(resolve_precisions(RECIPE, never, began)).values()) == {"bfloat16", "float32"}
    assert values(resolve_precisions(RECIPE, never, began)) == values(
        resolve_precisions(RECIPE, lambda use, place: "bfloat16")
    )


@pytest.mark.parametrize("began", [{}, {"rl": None}, {"rl": {"policy": 3}}, {"rl": {"policy": {"precision": "auto"}}}])
def test_what_an_older_folder_does_not_say_is_chosen(began: dict[str, object]) -> None:
    found = resolve_precisions(RECIPE, lambda use, place: "float32", began)  # type: ignore[arg-type]  # as a file may be
    assert set(values(found).values()) == {"float32"}


def test_names_are_left_alone() -> None:
    recipe = resolve_precisions(RECIPE, lambda use, place: "float32")
    assert resolve_precisions(recipe, lambda use, place: "bfloat16") is recipe
