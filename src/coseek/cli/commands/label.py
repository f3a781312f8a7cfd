"""Make training data for retrievers out of runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

from coseek.agents.factory import settled_for
from coseek.agents.limits import Limits
from coseek.cli.terminal import AsJson, assignments, new_app, print_json, progress_bar, resumable, say
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject, check_output_folder
from coseek.core.lock import lock_folder
from coseek.core.registry import find_plugin, plugin_names
from coseek.core.settings import dump_settings, make_settings
from coseek.data.run import Run
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import LabelSummary, check_distinct, make_labels
from coseek.labels.maker import OFFERS, PACKAGE, MakerModule, RolloutMaker
from coseek.labels.tevatron import write_tevatron
from coseek.pipelines.labelling import (
    LabelSettings,
    agent_of,
    limits_of,
    open_parts,
    refuse_equal_runs,
    retriever_of,
    run_questions,
    run_turns,
)
from coseek.retrieval.views import find_view

app = new_app()


@app.command()
def label(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN… [NAME=VALUE…]",
            help="Folders that `coseek run` made, and settings of the method, such as negatives=7; the agent's budgets "
            "are settings, too: limits.max_turns=6.",
        ),
    ],
    method: Annotated[str, typer.Option(help=f"One of: {', '.join(plugin_names(PACKAGE))}.")],
    out: Annotated[Path, typer.Option(help="The label folder to write.")],
    retriever: Annotated[
        str | None,
        typer.Option(help="Whose passages are weighed: an index folder, a URL, a YAML file; else the run's."),
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Who goes on from a passage: as in `coseek run`; else the run's own.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="The agent's; 0 takes the most likely token.")] = 0.0,
    scorer: Annotated[
        str | None,
        typer.Option(
            help="Who scores passages: a model folder, a URL or a YAML file; `oracle`, or a laptop world's folder; "
            "`gold`, where questions have gold passages."
        ),
    ] = None,
    likelihood: Annotated[
        str | None, typer.Option(help="The folder of the model that says how likely an answer is.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the labels in --out.")] = False,
    cache: Annotated[
        Path | None, typer.Option(help="A SQLite file that remembers what models wrote, whatever the labels.")
    ] = None,
    tevatron: Annotated[
        Path | None, typer.Option(help="A .jsonl file for the same labels as tevatron's training rows.")
    ] = None,
    view: Annotated[str, typer.Option(help="The query view of --tevatron.")] = "question+query",
    as_json: AsJson = False,
) -> int:
    """Label every search of these runs: one passage to find, others to leave, and every score that chose them.

    The label folder holds `labels.yaml` (all settings, identities, versions), `labels.jsonl`, `dropped.jsonl` (turns
    without a label, and why) and `scores/`, where every score stands as soon as it is known. Ctrl-C or a crash loses
    only what was under way; `--resume` does the rest, and the labels are the same. Ends with 1 when faults left every
    turn undone.
    """
    module = cast(MakerModule, find_plugin("method", PACKAGE, method, OFFERS))
    find_view(view)
    named: JsonObject = {"method": method, "count": count, "scorer": scorer, "likelihood": likelihood}
    chosen, own = settings_of(module, words, named, (retriever, agent, temperature))
    done = go(module, chosen, own, out, resume, cache)
    if tevatron is not None:
        write_tevatron(tevatron, LabelFolder(out).sets(), view)
    if as_json:
        print_json({"labels": str(out), **done.to_json()})
    else:
        report(out, done)
    return 1 if done.left and not (done.labelled or done.dropped) else 0


def is_run(word: str) -> bool:
    """A folder, or at least no setting: then the run's own refusal names it."""
    return "=" not in word or Path(word).is_dir()


def settings_of(
    module: MakerModule,
    words: list[str],
    named: JsonObject,
    who: tuple[str | None, str | None, float],
) -> tuple[LabelSettings, JsonObject]:
    """What was typed: the command's settings, and the method's own. `who`: retriever, agent and its temperature."""
    folders = [word for word in words if is_run(word)]
    if not folders:
        raise SettingError("name a run folder to label; make one with `coseek run`")
    runs = [Run(Path(folder)) for folder in folders]
    retriever, agent, temperature = who
    tree = assignments(word for word in words if not is_run(word))
    limits = tree.pop("limits", {})
    for name in set(tree) & set(Limits.model_fields) - set(module.SETTINGS.model_fields):
        raise SettingError(f"no setting named {name!r}; the agent's budgets are a group: limits.{name}=…")
    of_method = make_settings(module.SETTINGS, tree)
    own, known = dump_settings(of_method), agent_of(runs, agent, temperature)
    if known is not None and module.terms(of_method).rolls_out:
        refuse_equal_runs(cast(int, own["samples"]), known)
    base = dump_settings(limits_of(runs, agent, known))
    chosen: JsonObject = {
        **named,
        "runs": [*folders],
        "retriever": retriever_of(runs, retriever),
        "agent": None if known is None else dump_settings(known),
        "limits": {**base, **limits} if isinstance(limits, dict) else limits,
    }
    return make_settings(LabelSettings, chosen), own


def go(
    module: MakerModule, settings: LabelSettings, own: JsonObject, out: Path, resume: bool, cache: Path | None
) -> LabelSummary:
    """Make the labels, alone in their folder."""
    if not resume:
        LabelFolder.refuse_old(out)
    check_output_folder(out, "labels.yaml", own=("scores", "run"))  # here, before the parts put their files into it
    with lock_folder(out):
        return make(module, settings, own, out, resume, cache)


def make(
    module: MakerModule, settings: LabelSettings, own: JsonObject, out: Path, resume: bool, cache: Path | None
) -> LabelSummary:
    """Open the parts, and label with a progress bar. Every part is checked before `labels.yaml` is written."""
    settings = settled_for(settings, settings.agent, out / "labels.yaml")
    questions = run_questions(settings)
    parts = open_parts(settings, out, questions, cache)
    maker = module.open(make_settings(module.SETTINGS, own), parts)
    turns = [] if isinstance(maker, RolloutMaker) else run_turns(settings, questions)
    check_distinct(turns)  # what is refused is refused before there is a folder
    labels = LabelFolder.begin(out, {**dump_settings(settings), settings.method: own}, maker.identity, resume)
    with resumable("the same command with --resume"), progress_bar() as progress:
        if isinstance(maker, RolloutMaker):
            runs = progress.add_task("runs", total=None)
            turns = maker.roll_out(questions, lambda done, total: progress.update(runs, completed=done, total=total))
        task = progress.add_task("turns", total=None)
        return make_labels(
            labels, maker, turns, parts.tally, lambda done, total: progress.update(task, completed=done, total=total)
        )


def report(out: Path, done: LabelSummary) -> None:
    """What came of it, line by line."""
    print(f"{out}: {done.labelled:,} of {done.turns:,} search turns have a label, in {done.sets:,} label sets")
    if done.dropped:
        print(f"without a label: {listed(done.dropped)}")
    if done.counts:
        print(f"this start: {listed(done.counts)}, {done.seconds:.0f} s")
    if done.left:
        say(f"faults left {done.left:,} turns undone; the same command with --resume tries them again")
    print(f"Next: coseek train retriever … --labels {out}")


def listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items())
