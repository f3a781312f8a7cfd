"""Train a small search agent on a laptop in about nine minutes."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.commands.train import go
from coseek.cli.options import OutFolder, Resume
from coseek.cli.terminal import AsJson, new_app
from coseek.pipelines.trainers import AgentTrainer

GROUP = "Start here"
app = new_app()


@app.command(epilog="Example: `coseek quickstart --out runs/quickstart`")
def quickstart(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Settings that override the recipe's, such as seed=1."),
    ] = None,
    out: OutFolder = Path("runs/quickstart"),
    from_nothing: Annotated[
        bool, typer.Option("--from-nothing", help="Start from random weights instead of the shipped base model.")
    ] = False,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a search agent in minutes on two cores and show what it learnt.

    Makes a laptop world, indexes it, warm-starts the base model that the package holds on imperfect demonstrations,
    trains it with GRPO on its own searches, and compares it with its warm start, with naive RAG and with answering
    directly, on held-out questions and on a held-out world. Nothing is downloaded. Ctrl-C keeps everything; --resume
    goes on.
    """
    trainer = AgentTrainer(recipe="from-nothing" if from_nothing else "quickstart", overrides=settings or [])
    go(trainer, out, resume, as_json)
