"""Try a part's file: its kind, its contract, and what it does on a tiny example."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.files import JsonObject
from coseek.pipelines.part_trials import check_part

GROUP = "Your own parts"
app = new_app()


@app.command(epilog="Example: `coseek check brevity.py`")
def check(
    file: Annotated[Path, Argument(metavar="FILE", help="A part's .py or .yaml file. A .py file is executed.")],
    as_json: AsJson = False,
) -> None:
    """Try a part of your own on a tiny example.

    Detects the kind of the part, checks that the file defines what that kind needs, runs it once in a tiny world, and
    prints what it did and the command that uses it. Trains nothing and writes nothing.
    """
    trial = check_part(file)
    tree: JsonObject = {"file": str(file), "kind": trial.kind, "found": list(trial.found), "use": trial.use}
    lines = (f"  {line}" for line in trial.found)
    output(as_json, tree, [f"{file}: {trial.kind}", *lines, f"Use it: {trial.use}"])
