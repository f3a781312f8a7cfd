"""Train a small search agent on a laptop in about nine minutes."""

from pathlib import Path
from typing import Annotated

from typer import Option

from coseek.cli.commands.train import train_and_print
from coseek.cli.options import OutFolder, Resume, pairs
from coseek.cli.terminal import AsJson, new_app
from coseek.pipelines.trainers import AgentTrainer

GROUP = "Start here"
app = new_app()


@app.command(epilog="Example: `coseek quickstart --out runs/quickstart`")
def quickstart(
    settings: Annotated[list[str] | None, pairs("Settings that override the recipe's, such as seed=1.")] = None,
    out: OutFolder = Path("runs/quickstart"),
    from_nothing: Annotated[
        bool, Option("--from-nothing", help="Start from random weights instead of the shipped base model.")
    ] = False,
    resume: Resume = False,
    as_json: AsJson = False,
) -> None:
    """Train a search agent in minutes on two cores and show what it learnt.

    Makes a laptop world, indexes it, warm-starts the shipped base model on imperfect demonstrations, trains it with
    GRPO, and compares it with its warm start, naive RAG and direct answers, on held-out questions and a held-out world.
    Downloads nothing. Ctrl-C loses nothing; --resume continues.
    """
    trainer = AgentTrainer(recipe="from-nothing" if from_nothing else "quickstart", overrides=settings or [])
    train_and_print(trainer, out, resume, as_json)
