"""Create a small project: data, a recipe, and AGENTS.md with six commands and their output."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument

from coseek.cli.terminal import new_app, shell_word, tell
from coseek.core.errors import DataError
from coseek.core.files import atomic_folder
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world

GROUP = "Start here"
app = new_app()

PROJECT = files("coseek.cli").joinpath("project")
WORLD = WorldSettings(size="tiny", train=200, dev=60, test=60)


@app.command(epilog="Example: `coseek init my-agent`")
def init(folder: Annotated[Path, Argument(metavar="FOLDER", help="The project folder to make.")]) -> None:
    """Create a small project: data, a recipe that extends a shipped one, and AGENTS.md.

    AGENTS.md shows six commands and their output, for people and for coding agents.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is not empty; name a new folder")
    atomic_folder(folder, write_project)
    tell(f"{folder}: data, recipe.yaml, AGENTS.md")
    tell(f"Next: cd {shell_word(folder)}, and the commands in AGENTS.md; the first is coseek index data --out index")


def write_project(folder: Path) -> None:
    """Write the files of a project."""
    make_world(WORLD).save(folder / "data")
    for name in ("AGENTS.md", "recipe.yaml"):
        (folder / name).write_bytes(PROJECT.joinpath(name).read_bytes())
