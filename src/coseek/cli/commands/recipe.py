"""List the recipes, or print the merged recipe: with what it extends and its preset, as a file that can be trained.

`together/NAME` is a co-training recipe. Retriever recipes extend nothing, so they are not printed.
"""

from typing import Annotated

from typer import Argument

from coseek.cli.options import pairs
from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.files import JsonObject, yaml_text
from coseek.core.settings import changed_settings
from coseek.pipelines.agent_recipe import load_recipe, preset_names, recipe_names
from coseek.pipelines.together_recipe import load_together_recipe, together_recipe_names

GROUP = "Training"
app = new_app()
TOGETHER = "together/"


@app.command(epilog="Example: `coseek recipe s3 preset=laptop > mine.yaml`")
def recipe(
    name: Annotated[str | None, Argument(metavar="[NAME]", help="A recipe by name or file; all without it.")] = None,
    settings: Annotated[list[str] | None, pairs("Settings laid over it, such as preset=laptop.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes with their presets, or print the merged recipe, as a file that `coseek train` takes."""
    if name is None:
        descriptions = about_all()
        output(as_json, descriptions, (f"{words:38}{about}" for words, about in descriptions.items()))
        return
    load = load_together_recipe if name.startswith(TOGETHER) else load_recipe
    changes = changed_settings(load(name.removeprefix(TOGETHER), settings or []))
    output(as_json, changes, [yaml_text(changes).rstrip()])


def about_all() -> JsonObject:
    """Words to type → description."""
    rows: JsonObject = {}
    for name in recipe_names():
        for words in ([name], *([name, f"preset={preset}"] for preset in preset_names(name))):
            rows[" ".join(words)] = load_recipe(words[0], words[1:]).about
    return rows | {f"{TOGETHER}{name}": load_together_recipe(name).about for name in together_recipe_names()}
