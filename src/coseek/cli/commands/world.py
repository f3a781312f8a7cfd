"""Generate laptop worlds: small encyclopedias with questions."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.options import pairs
from coseek.cli.terminal import AsJson, assignments, new_app, next_index, output
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings
from coseek.lab.world.world import check_world_folder, chosen_world, make_world

GROUP = "Data and indexes"
app = new_app()


@app.callback()
def world() -> None:
    """Make laptop worlds: generated encyclopedias with questions and gold answers."""


@app.command(epilog="Example: `coseek world make worlds/small --size small`")
def make(
    folder: Annotated[Path, Argument(metavar="DIR", help="The data-set folder to write.")],
    settings: Annotated[list[str] | None, pairs("Settings, such as namesakes=.2 or train=500.")] = None,
    size: Annotated[str, Option(help="tiny, compact, small or large.")] = "small",
    seed: Annotated[int, Option(help="Seed of the world.")] = 0,
    name: Annotated[str | None, Option(help="A reference world, such as world-1, in place of settings.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a laptop world as the files of a data set.

    Replaces a world in DIR, and refuses a folder with anything else.
    """
    check_world_folder(folder)  # before a large world is generated
    chosen = chosen_world(assignments(settings or [], onto={"size": size, "seed": seed}), name)
    generated = make_world(chosen)
    generated.save(folder)
    counts: JsonObject = {split: len(questions) for split, questions in generated.questions.items()}
    tree: JsonObject = {"folder": str(folder), "passages": len(generated.corpus), "questions": counts}
    split_counts = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    lines = [f"{folder}: {len(generated.corpus):,} passages; questions: {split_counts}.", next_index(folder)]
    output(as_json, {**tree, "settings": dump_settings(chosen)}, lines)
