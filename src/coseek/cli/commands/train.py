"""Train agents, retrievers, both together, and small readers."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from typer import Argument, Option
from typer.models import ArgumentInfo

from coseek.cli.options import OutFolder, Resume, pairs
from coseek.cli.settings_help import ALL, print_settings
from coseek.cli.terminal import AsJson, Bar, assignments, new_app, output, resumable, shell_word, training_bar
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, read_json
from coseek.core.settings import dump_settings, make_settings
from coseek.lab.pipelines.recipes import (
    BaseRecipe,
    GeneratorRecipe,
    ReaderRecipe,
    SimulatorRecipe,
    check_simulator,
    corpus_recipe,
)
from coseek.measure.table import Table
from coseek.pipelines.agent_check import check_encoder_libraries, check_settings
from coseek.pipelines.agent_recipe import load_recipe, parent_of, recipe_names, recipe_path
from coseek.pipelines.together_recipe import (
    check_together,
    load_together_recipe,
    together_recipe_names,
    together_recipe_path,
)
from coseek.pipelines.trainers import AgentTrainer, RetrieverTrainer
from coseek.training.encoder.recipe import RetrieverRecipe, load_retriever_recipe, retriever_recipe_names

if TYPE_CHECKING:
    from coseek.lab.pipelines.reader import ReaderTraining
    from coseek.pipelines.dry_run import DryRun

Estimate: TypeAlias = Annotated[bool, Option("--dry-run", help="Only check inputs, and estimate memory and time.")]
ShowSettings: TypeAlias = Annotated[
    bool,
    Option(
        "--settings",
        help="Print what the recipe changes; train nothing. `--settings rl.policy` explains the settings below a "
        "prefix, `--settings all` every one.",
    ),
]
"""Type of the option `--settings`."""

ReaderSettings: TypeAlias = Annotated[list[str] | None, pairs("Settings, such as sft.steps=4000 or seed=1.")]
"""Type of the settings of a laptop model that reads."""

R = TypeVar("R", bound=ReaderRecipe)


def one_of(names: Iterable[str]) -> ArgumentInfo:
    """An argument for a recipe."""
    argument: ArgumentInfo = Argument(metavar="RECIPE", help=f"A YAML file, or one of ours: {', '.join(names)}.")
    return argument


GROUP = "Training"
app = new_app()


@app.callback()
def train() -> None:
    """Train agents and retrievers, alone or together, and a laptop generator that answers from passages."""


@app.command("agent", epilog="Example: `coseek train agent search-r1-grpo preset=laptop rl.steps=60 --out runs/mine`")
def train_agent(
    recipe: Annotated[str, one_of(recipe_names())],
    settings: Annotated[list[str] | None, pairs("Overrides of the recipe: preset=laptop or rl.steps=60.")] = None,
    out: Annotated[Path | None, Option(help="The folder to write; runs/RECIPE-PRESET by default.")] = None,
    resume: Resume = False,
    show: ShowSettings = False,
    dry_run: Estimate = False,
    as_json: AsJson = False,
) -> None:
    """Train an agent by a recipe, compare it with its baselines, and write a report.

    A training can be stopped at any time; --resume continues to the same result. --dry-run trains and writes nothing,
    and exits with 2 if an input is missing.
    """
    if show:
        base = parent_of(recipe)
        parent = None if base is None else (Path(base).stem, load_recipe(base))
        print_settings(partial(load_recipe, recipe), settings or (), as_json, parent)
    elif dry_run:
        loaded = load_recipe(recipe, settings or [])
        check_settings(loaded)
        from coseek.pipelines.dry_run import dry_run as estimate  # torch

        rehearse(lambda: estimate(loaded), as_json)
    else:
        trainer = AgentTrainer(recipe=recipe, overrides=settings or [])
        names = [recipe_path(recipe).stem, *filter(None, [trainer.recipe.preset])]
        train_and_print(trainer, out or Path("runs") / "-".join(names), resume, as_json)


@app.command("generator", epilog="Example: `coseek train generator --out runs/generator`")
def train_generator(
    settings: ReaderSettings = None,
    out: OutFolder = Path("runs/generator"),
    resume: Resume = False,
    show: ShowSettings = False,
    as_json: AsJson = False,
) -> None:
    """Train a laptop generator: a tiny model that answers questions of laptop worlds from given passages.

    Trains on generated worlds and measures on a held-out one, with the gold passages among others and with the passages
    of one search. Its folder is for `--answer-with`. The training can be stopped at any time; --resume continues to the
    same result.
    """
    if show:
        print_settings(partial(laid_over, GeneratorRecipe()), settings or (), as_json)
        return
    recipe = laid_over(GeneratorRecipe(), settings or ())
    from coseek.lab.pipelines.reader import GeneratorTraining  # torch

    train_reader(GeneratorTraining, recipe, out, resume, as_json, "Try: coseek score RUN --answer-with {}")


@app.command("base", epilog="Example: `coseek train base data/notes --out runs/base`")
def train_base(
    words: Annotated[
        list[str] | None,
        Argument(metavar="[DATA] [NAME=VALUE]", help="A data set to read, and settings, such as sft.steps=4000."),
    ] = None,
    out: OutFolder = Path("runs/base"),
    resume: Resume = False,
    show: ShowSettings = False,
    as_json: AsJson = False,
) -> None:
    """Train a base model: a tiny model that reads, copies and plans the next search, before any protocol.

    Trains on worlds of random words and measures on a held-out one and on a laptop world. With DATA it starts from the
    shipped base model and learns to read that corpus, by questions made from its passages and by its own training
    questions. Its folder is for `policy.folder` of a recipe and for `--answer-with`. The training can be stopped at any
    time; --resume continues to the same result.
    """
    typed = words or []
    prefixes = {ALL, *BaseRecipe.model_fields} if show else set[str]()
    data = [word for word in typed[:1] if "=" not in word and word.partition(".")[0] not in prefixes]
    base_recipe, settings = corpus_recipe(data[0]) if data else BaseRecipe(), typed[len(data) :]
    if show:
        print_settings(partial(laid_over, base_recipe), settings, as_json)
        return
    recipe = laid_over(base_recipe, settings)
    from coseek.lab.pipelines.base import BaseTraining  # torch

    hint = "Try: coseek train agent quickstart policy.folder={} policy.add_tag_tokens=true"
    if recipe.corpus is not None:
        data_option = shell_word(f"data.folder={recipe.corpus.folder}")
        hint = f"Try: coseek train agent documents {data_option} policy.folder={{}}"
    train_reader(BaseTraining, recipe, out, resume, as_json, hint)


@app.command(
    "simulator", epilog="Example: `coseek train simulator model=MODEL 'runs=[runs/mine]' --out runs/simulator`"
)
def train_simulator(
    settings: Annotated[list[str] | None, pairs("Settings: model=FOLDER runs=[RUN] and others.")] = None,
    out: OutFolder = Path("runs/simulator"),
    resume: Resume = False,
    show: ShowSettings = False,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model to simulate a search engine, useful or noisy (ZeroSearch), on stored runs with a real one.

    OUT/simulator is a model folder for a retriever file with `retriever: simulated`. The training can be stopped at any
    time; --resume continues to the same result.
    """
    if show:
        base: JsonObject = {"model": "…", "runs": ["…"]}
        print_settings(lambda typed: make_settings(SimulatorRecipe, assignments(typed, base)), settings or (), as_json)
        return
    recipe = make_settings(SimulatorRecipe, assignments(settings or ()))
    check_simulator(recipe)
    from coseek.lab.pipelines.simulator import SimulatorTraining  # torch

    with resumable_training(out) as bar:
        training = SimulatorTraining(recipe, out, bar)
        training.begin(resume)
        training.train()
    print_result(out, None, as_json, f"{training.simulator_folder}: the model of a retriever `simulated`")


@app.command(
    "retriever", epilog="Example: `coseek train retriever two-cores --labels labels/train --out runs/retriever`"
)
def train_retriever(
    recipe: Annotated[str, one_of(retriever_recipe_names())],
    settings: Annotated[list[str] | None, pairs("Settings that override the recipe's, such as view=query.")] = None,
    labels: Annotated[list[Path] | None, Option(help="A label folder, in place of the recipe's; may repeat.")] = None,
    out: Annotated[Path | None, Option(help="The folder to write; runs/retriever-RECIPE by default.")] = None,
    resume: Resume = False,
    show: ShowSettings = False,
    dry_run: Estimate = False,
    as_json: AsJson = False,
) -> None:
    """Train a retriever's encoder on labels, and measure it on held-out turns.

    OUT/encoder is a sentence-transformers folder for `coseek index DATA --retriever dense --encoder OUT/encoder`. A
    training can be stopped at any time; --resume continues to the same weights.
    """
    folders = [str(folder) for folder in labels or []]
    if show:
        print_settings(partial(shown_retriever, recipe, labels=folders), settings or (), as_json)
        return
    if dry_run:
        loaded = load_retriever_recipe(recipe, settings or [], folders)
        check_encoder_libraries()
        from coseek.pipelines.retriever_dry_run import retriever_dry_run  # torch

        with training_bar() as bar:
            rehearse(lambda: retriever_dry_run(loaded, bar), as_json)
        return
    trainer = RetrieverTrainer(recipe=recipe, labels=folders, overrides=settings or [])
    folder = out or Path("runs") / f"retriever-{Path(recipe).stem}"
    with resumable_training(folder) as bar:
        trained = trainer.run(folder, resume, bar)
    if trainer.training is not None and trainer.training.workers.is_main:
        hint = f"{trained.encoder}: the encoder. Try: {trainer.training.next_command}"
        print_result(folder, trained.table, as_json, hint)


@app.command("together", epilog="Example: `coseek train together laptop --out runs/both`")
def train_together(
    recipe: Annotated[str, one_of(together_recipe_names())],
    settings: Annotated[list[str] | None, pairs("Overrides of the recipe, such as rounds=3.")] = None,
    out: Annotated[Path | None, Option(help="The folder to write; runs/together-RECIPE by default.")] = None,
    resume: Resume = False,
    show: ShowSettings = False,
    dry_run: Estimate = False,
    as_json: AsJson = False,
) -> None:
    """Train an agent and a retriever in alternating rounds, and measure every pair of them.

    In a round the agent is trained with the latest retriever, its searches are labelled, a retriever is trained on the
    labels, and the corpus is indexed again. Stops after the first round that does not help on the dev split. A training
    can be stopped at any time; --resume continues to the same result.
    """
    if show:
        print_settings(partial(load_together_recipe, recipe), settings or (), as_json)
        return
    loaded = load_together_recipe(recipe, settings or ())
    if dry_run:
        check_settings(loaded.agent)
        check_encoder_libraries()
        from coseek.pipelines.retriever_dry_run import together_dry_run  # torch

        rehearse(lambda: together_dry_run(loaded), as_json)
        return
    check_together(loaded)
    folder = out or Path("runs") / f"together-{together_recipe_path(recipe).stem}"
    check_encoder_libraries()
    from coseek.pipelines.together.together import CoTraining, Results  # torch

    with resumable_training(folder) as bar:
        training = CoTraining(loaded, folder, bar)
        training.begin(resume)
        rounds = training.train()
        if not training.workers.is_main:
            return
        results = Results.of(training, rounds)
        table = results.write()
    print_result(folder, table, as_json, listed(results.files()))


def laid_over(plain: R, settings: Sequence[str]) -> R:
    """Apply settings to the recipe of a laptop model that reads."""
    return make_settings(type(plain), assignments(settings, onto=dump_settings(plain), kind=type(plain)))


def train_reader(kind: "type[ReaderTraining[R]]", recipe: R, out: Path, resume: bool, as_json: bool, way: str) -> None:
    """Train and measure a laptop model that reads. `way` suggests how to use its folder, which replaces `{}`."""
    from coseek.training.learner.workers import workers_here  # torch

    with resumable_training(out) as bar:
        training = kind(recipe, out, bar, workers_here())
        training.begin(resume)
        training.train()
        if not training.workers.is_main:
            return
        table = training.write_results(training.measure())
    folder = training.trained_folder
    way = way.replace("{}", shell_word(folder))
    print_result(training.folder, table, as_json, f"{folder}: {training.TITLE.lower()}. {way}")


def shown_retriever(recipe: str, settings: Sequence[str], labels: list[str]) -> RetrieverRecipe:
    """Load a recipe for `--settings`, which does not need labels."""
    try:
        return load_retriever_recipe(recipe, settings, labels)
    except SettingError:
        return load_retriever_recipe(recipe, settings, labels or ["(--labels FOLDER)"])


@contextmanager
def resumable_training(folder: Path) -> Iterator[Bar]:
    """Show a bar for training. Ctrl-C prints how to resume."""
    with resumable(f"the same command with --resume (finished work is in {folder})"), training_bar() as bar:
        yield bar


def print_result(folder: Path, table: Table | None, as_json: bool, last: str) -> None:
    """Print the table, if questions were held out to measure, and `last`; as JSON only the file `table.json`."""
    tree = read_json(folder / "table.json") if as_json and table is not None else {}
    output(as_json, tree, [*([] if table is None else [table]), last])


def listed(files: Mapping[str, str]) -> str:
    """Format paths and descriptions, one file per line."""
    width = max(len(name) for name in files)
    return "\n".join(f"{name:<{width}}  {description}" for name, description in files.items())


def rehearse(dry_run: Callable[[], "DryRun"], as_json: bool) -> None:
    """Print the findings of a dry run, and raise if something is missing. Of several processes, only the first does."""
    if os.environ.get("RANK", "0") == "0":  # torchrun's
        findings = dry_run()
        output(as_json, findings.values, findings.tables)
        findings.refuse()


def train_and_print(trainer: AgentTrainer, folder: Path, resume: bool, as_json: bool) -> None:
    """Train, measure and report. `coseek quickstart` calls it, too."""
    with resumable_training(folder) as bar:
        trained = trainer.run(folder, resume, bar)
    if trained.table is not None and trainer.training is not None:
        from coseek.pipelines.agent_results import files_of, next_commands  # torch

        next_steps = f"{listed(files_of(trainer.training))}\n\n{listed(next_commands(trainer.training))}"
        print_result(folder, trained.table, as_json, next_steps)
