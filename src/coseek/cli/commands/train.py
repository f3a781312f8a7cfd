"""Train agents from recipes, and a laptop generator that answers from passages."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.terminal import AsJson, assignments, new_app, print_json, resumable, stdout_console
from coseek.cli.training_bar import training_bar
from coseek.data.settings import make_settings, save_settings
from coseek.training.generator_recipe import GeneratorRecipe
from coseek.training.recipe import AgentRecipe, load_recipe, recipe_names, recipe_path

app = new_app()


@app.callback()
def train() -> None:
    """Train agents from recipes, and a laptop generator that answers from passages."""


@app.command("agent")
def train_agent(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help=f"A YAML file, or one of ours: {', '.join(recipe_names())}.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings over the recipe's, such as rl.steps=60.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write; runs/RECIPE when not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look whether all is there, what it will need, and take a step in small.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train an agent as a recipe says, measure it beside its baselines, and write a report.

    A run can be stopped at any moment and goes on with --resume, to the same result as if it had not been stopped.
    With --dry-run nothing is trained or written: it ends with 2 when something that the recipe names is missing.
    """
    read = load_recipe(recipe, settings or [])
    if dry_run:
        rehearse(read, as_json)
    else:
        go(read, out or Path("runs") / recipe_path(recipe).stem, resume, as_json)


@app.command("generator")
def train_generator(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings, such as sft.steps=4000 or seed=1.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write.")] = Path("runs/generator"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a laptop generator: a tiny model that answers questions of laptop worlds from given passages.

    It learns in throw-away worlds and is measured on one that it has never seen, with the gold passages among others
    and with what one search finds. Its folder is for `--answer-with`. It can be stopped at any moment and goes on with
    --resume, to the same result as if it had not been stopped.
    """
    recipe = make_settings(GeneratorRecipe, assignments(settings or [], onto=save_settings(GeneratorRecipe())))
    from coseek.training.generator import GeneratorTraining  # torch

    with resumable(f"the same command with --resume (all that was finished is in {out})"), training_bar() as bar:
        training = GeneratorTraining(recipe, out, bar)
        training.begin(resume)
        training.train()
        table = training.write_results(training.measure())
    if as_json:
        print((out / "table.json").read_text(encoding="utf-8"), end="")
        return
    stdout_console().print(table.rich())
    print(
        f"{training.generator_folder}: the generator. Try: coseek score RUN --answer-with {training.generator_folder}"
    )


def rehearse(recipe: AgentRecipe, as_json: bool) -> None:
    """The dry run: a table, and one sentence about what is missing."""
    from coseek.training.dry_run import dry_run  # torch

    found = dry_run(recipe)
    if as_json:
        print_json(found.to_json())
    else:
        stdout_console().print(found.table().rich())
    found.refuse()


def go(recipe: AgentRecipe, folder: Path, resume: bool, as_json: bool) -> None:
    """Train, measure, report; `coseek quickstart` is this with a recipe of ours."""
    # Here and not above: these bring torch, which a mistake in the recipe need not wait for.
    from coseek.training.agent import AgentTraining
    from coseek.training.results import files_of, measure, write_results

    again = f"the same command with --resume (all that was finished is in {folder})"
    with resumable(again), training_bar() as bar:
        training = AgentTraining(recipe, folder, bar)
        training.begin(resume)
        training.train()
        if not training.workers.first:
            return
        table = write_results(training, measure(training))
    if as_json:
        print((folder / "table.json").read_text(encoding="utf-8"), end="")
        return
    stdout_console().print(table.rich())
    width = max(len(name) for name in files_of(training))
    for name, what in files_of(training).items():
        print(f"{name:<{width}}  {what}")
