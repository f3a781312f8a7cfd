"""Run an agent over many questions; stops and resumes."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.agents.factory import SCRIPTED, limits_for, open_agent, settings_for, settled_for, spent
from coseek.agents.run_questions import run_questions
from coseek.cli.commands.score import print_tables
from coseek.cli.terminal import AsJson, assignments, new_app, print_json, progress_bar, resumable, say
from coseek.core.errors import ErrorList
from coseek.core.files import check_output_folder
from coseek.core.lock import lock_folder
from coseek.core.registry import plugin_names
from coseek.core.settings import dump_settings, make_settings
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.measure.score import Scores, score_runs
from coseek.measure.table import MAIN, scores_json
from coseek.pipelines.agent_run import RunSettings, check_gold, check_questions, load_asked
from coseek.retrieval.factory import check_source, describe_retriever, open_retriever

app = new_app()


@app.command()
def run(
    questions: Annotated[Path, typer.Argument(metavar="QUESTIONS", help="A questions file, or a data-set folder.")],
    agent: Annotated[
        str,
        typer.Option(
            help=f"A model folder, a URL, a YAML file, or a scripted agent: {', '.join(plugin_names(SCRIPTED))}."
        ),
    ],
    retriever: Annotated[str, typer.Option(help="An index folder, a URL, or a YAML file.")],
    out: Annotated[Path, typer.Option(help="The run folder to write.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings, such as limits.max_turns=6.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    split: Annotated[str | None, typer.Option(help="The split of a data-set folder.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first so many questions.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories a question.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
    protocol: Annotated[str | None, typer.Option(help="A protocol or its YAML file; else the agent's own.")] = None,
    prompt_template: Annotated[
        str | None, typer.Option(help="A prompt template or its YAML file; else the agent's own.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For a server: the folder of its model, or `bytes`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent over many questions and keep every trajectory.

    The run folder holds `run.yaml` (all settings, versions, commit, seed) and `trajectories.jsonl`, which grows as
    questions end. Ctrl-C or a crash loses only what was under way; `--resume` does the rest.
    """
    wrong = ErrorList()
    who = wrong.of(settings_for, agent, protocol, prompt_template, tokenizer)
    wrong.of(check_source, retriever)
    wrong.of(check_questions, questions, split)
    if who is not None:
        wrong.of(limits_for, who)  # which reads the protocol and its prompt template
    wrong.refuse()
    assert who is not None
    who = who.model_copy(update={"temperature": temperature})
    given = RunSettings(
        questions=str(questions),
        split=split,
        count=count,
        retriever=retriever,
        agent=who,
        limits=limits_for(who),
        samples=samples,
        seed=seed,
    )
    chosen = make_settings(RunSettings, assignments(settings or [], onto=dump_settings(given)))
    scores = go(chosen, out, resume)
    if as_json:
        print_json({"run": str(out), **scores_json(scores)})
    else:
        print_tables(scores, list(MAIN))
        print(f"{out}: kept. More: coseek score {out} · coseek audit {out}")


def go(settings: RunSettings, out: Path, resume: bool) -> Scores:
    """Answer all questions with a progress bar, then score what the run holds."""
    check_output_folder(out, "run.yaml")
    with lock_folder(out):
        kept, questions = answer(settings, out, resume)
    return score_runs({str(out): kept.trajectories()}, questions=questions)


def answer(settings: RunSettings, out: Path, resume: bool) -> tuple[Run, list[Question]]:
    """Answer what the run does not hold yet. Every part is opened and checked before the run folder is written to."""
    settings = settled_for(settings, settings.agent, out / "run.yaml")
    retriever = open_retriever(settings.retriever)
    questions = load_asked(settings)
    check_gold(questions, retriever, settings.retriever)
    agent = open_agent(settings.agent)
    agent.protocol.check_retriever(retriever.name)
    recorded = {**dump_settings(settings), "index": describe_retriever(settings.retriever, retriever)}
    kept = Run.begin(out, recorded, resume)
    with resumable("the same command with --resume"), progress_bar() as progress:
        task = progress.add_task("questions", total=None)
        run_questions(
            kept,
            agent,
            retriever,
            questions,
            settings.limits,
            seed=settings.seed,
            samples=settings.samples,
            tell=lambda ended, total: progress.update(task, completed=ended, total=total),
        )
    if line := spent(agent.model, settings.agent):
        say(line)
    return kept, questions
