"""Ask one question and watch the agent think, search and answer."""

from typing import Annotated

import typer
from rich.console import Console

from coseek.agents.factory import CONTRACT, SCRIPTED, is_scripted, limits_for, open_agent, settings_for
from coseek.agents.rollout import Limits, rollout
from coseek.agents.served_context import served_context
from coseek.cli.episode_display import RetrieverDisplay, watched
from coseek.cli.terminal import AsJson, assignments, new_app, print_json, stderr_console
from coseek.core.errors import SettingError
from coseek.core.registry import find_plugin, plugin_names
from coseek.core.settings import dump_settings, make_settings
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.retrieval.factory import open_retriever

app = new_app()


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="What to ask.")],
    agent: Annotated[
        str,
        typer.Option(
            help="A model folder, a URL, a YAML file, or `rules`, which needs no model. The other scripted agents "
            f"({', '.join(name for name in plugin_names(SCRIPTED) if name != 'rules')}) need a data set: `coseek run`."
        ),
    ],
    retriever: Annotated[str, typer.Option(help="An index folder, a URL, or a YAML file.")],
    limits: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Budgets, such as max_turns=6 or limits.max_turns=6."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 always takes the most likely token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    protocol: Annotated[str | None, typer.Option(help="A protocol or its YAML file; else the agent's own.")] = None,
    prompt_template: Annotated[
        str | None, typer.Option(help="A prompt template or its YAML file; else the agent's own.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="For a server: the folder of its model, or `bytes`.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question and watch the agent think, search and answer.

    The agent's words and the passages go to stderr as they come, the answer alone to stdout.
    """
    console = stderr_console(quiet=as_json)
    chosen = settings_for(agent, protocol, prompt_template, tokenizer).model_copy(update={"temperature": temperature})
    refuse_knowing(chosen.name)
    typed = [text.removeprefix("limits.") for text in limits or []]  # as `coseek run` spells them
    budgets = make_settings(Limits, assignments(typed, onto=dump_settings(limits_for(chosen))))
    who = open_agent(chosen)
    index = RetrieverDisplay(open_retriever(retriever), console)
    asked = Question(id="asked", question=question)
    trajectory = rollout(watched(who, console), index, [asked], [seed], budgets)[0]
    if as_json:
        print_json(trajectory.to_json())
    else:
        conclude(trajectory, console)


def refuse_knowing(name: str) -> None:
    """Refuse a scripted agent that must know more of a question than its words."""
    needs = getattr(find_plugin("scripted agent", SCRIPTED, name, CONTRACT), "NEEDS", "") if is_scripted(name) else ""
    if needs:
        raise SettingError(
            f"the agent {name!r} needs {needs}, and a typed question has none; take --agent rules or a model folder, "
            "or ask the questions of a data set with `coseek run`"
        )


def conclude(trajectory: Trajectory, console: Console) -> None:
    """The answer, or why there is none."""
    if trajectory.stop is StopReason.COMPLETE:
        served = len(served_context(trajectory))
        console.print(f"complete: this protocol only searches; {served} passages wait for a generator", markup=False)
    elif trajectory.answer is None:
        detail = f" ({trajectory.stop_detail})" if trajectory.stop_detail else ""
        console.print(f"no answer: the run ended by {trajectory.stop}{detail}", markup=False)
    else:
        print(trajectory.answer)
