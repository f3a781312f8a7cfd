"""Run an agent over many questions; resumable."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.agents.factory import SCRIPTED, settings_for
from coseek.cli import options
from coseek.cli.terminal import AsJson, assignments, new_app, output, progress_bar, resumable, say, shell_word
from coseek.core.plugins import plugin_names
from coseek.core.settings import dump_settings, make_settings
from coseek.measure.score import score_runs
from coseek.measure.table import score_tables, scores_json
from coseek.pipelines.agent_run import RunSettings, check_run, run_agent

GROUP = "Agents"
app = new_app()


@app.command(
    epilog="Example: `coseek run data/notes --split test --agent rules --retriever data/notes.index --out runs/rules`"
)
@options.takes_servers
def run(
    questions: Annotated[Path, Argument(metavar="QUESTIONS", help="A questions file, or a data-set folder.")],
    agent: Annotated[
        str,
        Option(help=f"A model folder, a URL, a YAML file, or a scripted agent: {', '.join(plugin_names(SCRIPTED))}."),
    ],
    retriever: options.RetrieverName,
    out: Annotated[Path, Option(help="The run folder to write.")],
    settings: Annotated[list[str] | None, options.pairs("Settings, such as limits.max_turns=6.")] = None,
    resume: options.Resume = False,
    split: options.Split = None,
    count: options.Count = None,
    samples: Annotated[int, Option(min=1, help="Trajectories for each question.")] = 1,
    temperature: options.Temperature = None,
    seed: Annotated[int, Option(help="Seed of the run.")] = 0,
    protocol: options.ProtocolName = None,
    prompt_template: options.PromptTemplateName = None,
    tokenizer: options.TokenizerName = None,
    device: options.DeviceName = None,
    cluster: options.ClusterName = None,
    as_json: AsJson = False,
) -> None:
    """Run an agent over many questions and keep every trajectory.

    The run folder contains `run.yaml` (all settings, versions, commit, seed) and `trajectories.jsonl`, which grows as
    questions finish. Ctrl-C or a crash loses only unfinished questions; `--resume` continues, and repeats trajectories
    with a fault.
    """
    agent = options.at_server(agent)
    agent_settings, limits = check_run(
        questions, split, retriever, lambda: settings_for(agent, protocol, prompt_template, tokenizer, device)
    )
    if temperature is not None:
        agent_settings = agent_settings.model_copy(update={"temperature": temperature})
    source = str(questions)
    base = RunSettings(
        questions=source,
        split=split,
        count=count,
        retriever=retriever,
        agent=agent_settings,
        limits=limits,
        samples=samples,
        seed=seed,
    )
    chosen = make_settings(RunSettings, assignments(settings or [], onto=dump_settings(base), kind=RunSettings))
    with resumable("the same command with --resume"), options.cluster_of(cluster) as nodes, progress_bar() as bars:
        stored, intended = run_agent(chosen, out, resume, partial(bars.report, "questions"), say, nodes)
    scores = score_runs({str(out): stored.trajectories()}, questions=intended)
    next_steps = f"{out}: kept. More: coseek score {shell_word(out)} · coseek audit {shell_word(out)}"
    output(as_json, {"run": str(out), **scores_json(scores)}, [*score_tables(scores), next_steps])
