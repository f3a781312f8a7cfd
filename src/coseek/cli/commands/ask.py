"""Ask one question and watch the agent think, search and answer."""

from collections.abc import Sequence
from typing import Annotated

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import open_agent, settled_for
from coseek.agents.sources import cited_answer, holds, reply_in_words, sources_of
from coseek.cli import options
from coseek.cli.terminal import AsJson, Volume, new_app, print_json, say, stderr_console, tell, volume
from coseek.core.errors import SettingError
from coseek.core.text import as_written, without_repetition
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.models.model import EpisodeState, Model, Ranking, Request, Turn
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever

GROUP = "Agents"
app = new_app()


@app.command(epilog="Example: `coseek ask 'Who wrote it?' --retriever INDEX --agent extract`")
@options.takes_servers
def ask(
    question: Annotated[str, Argument(help="The question.")],
    retriever: options.RetrieverName,
    agent: Annotated[
        str,
        Option(
            help="A model folder, a URL, a YAML file, or an agent without a model: "
            "`extract` quotes the sentence that fits best, `rules` guesses names, dates and numbers."
        ),
    ] = "extract",
    limits: options.LimitPairs = None,
    temperature: options.Temperature = None,
    seed: Annotated[int, Option(help="Seed of the sampling.")] = 0,
    protocol: options.ProtocolName = None,
    prompt_template: options.PromptTemplateName = None,
    tokenizer: options.TokenizerName = None,
    device: options.DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question and watch the agent think, search and answer.

    The agent's words, the passages and the sources of the answer go to stderr, the answer alone to stdout.
    """
    if not question.strip():
        raise SettingError("the question is empty; write one: coseek ask 'QUESTION' --retriever INDEX")
    console = stderr_console(quiet=as_json or volume() is Volume.QUIET)
    agent = options.at_server(agent)
    chosen, budgets = options.agent_with_limits(
        agent, protocol, prompt_template, tokenizer, device, temperature, limits
    )
    opened_agent = open_agent(settled_for(chosen, chosen))
    index = RetrieverDisplay(open_retriever(retriever), console)
    displayed = Agent(opened_agent.protocol, ModelDisplay(opened_agent.model, console))
    (trajectory,) = rollout(displayed, index, [Question("asked", question)], [seed], budgets)
    if as_json:
        print_json(trajectory.to_json())
    else:
        print_answer(trajectory, console)


def print_answer(trajectory: Trajectory, console: Console) -> None:
    """Print the answer, or a sentence why it is missing. An agent that only searches needs no answer."""
    if trajectory.stop is StopReason.COMPLETE:
        console.print(Text(reply_in_words(trajectory)))
        return
    tell(reply_in_words(trajectory))
    if trajectory.answer is not None or trajectory.declined:
        show_sources(trajectory, console)
    elif trajectory.stop_detail:
        say(f"{trajectory.stop}: {trajectory.stop_detail}")  # under --quiet, too


def show_sources(trajectory: Trajectory, console: Console) -> None:
    """Print the sources of the answer, or the passages that were read if the answer is in none of them."""
    if (cited := cited_answer(trajectory)) is not None:
        if cited.dropped:
            console.print(f"citations of passages that were not found, left out: {cited.dropped}", markup=False)
        for number, passage in enumerate(cited.passages, start=1):
            console.print(Text(f"  [{number}] {source_text(passage)}"))
        if cited.passages:
            return
    sources = sources_of(trajectory)
    if sources and not holds(sources[0], trajectory.answer or ""):
        console.print("no passage that was found holds this answer word for word; the agent read:", markup=False)
    elif sources:
        console.print("source:" if len(sources) == 1 else "sources:", markup=False)
    for passage in sources:
        console.print(Text(f"  {source_text(passage)}"))


def source_text(passage: Passage) -> str:
    """Title and location of a passage: its address, or its file and page."""
    title = as_written(" ".join(passage.title.split()))
    location = passage.place or f"passage {passage.id}"
    return f"{title}: {location}" if title else location


class ModelDisplay:
    """Wraps a model: prints every turn and the result of every tool call."""

    def __init__(self, model: Model, console: Console) -> None:
        self.model, self.console = model, console
        self.tokenizer = model.tokenizer
        self.calls = 0

    def start(self, request: Request) -> None:
        self.model.start(request)

    def extend(self, request: Request) -> None:
        for call in request.state.calls[self.calls :]:
            self.console.print(Text(f"  {call.tool}: {call.result}", style="dim"))
        self.calls = len(request.state.calls)
        self.model.extend(request)

    def step(self) -> list[Turn]:
        turns = self.model.step()
        for turn in turns:
            text = as_written(without_repetition(self.tokenizer.decode(turn.ids)))
            self.console.print(Text(text.strip(), style="cyan"))
        return turns

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        return self.model.evidence(so_far) if isinstance(self.model, Ranking) else None

    def close(self, key: int) -> None:
        self.model.close(key)


class RetrieverDisplay:
    """Wraps a retriever: prints the hits of every search."""

    def __init__(self, retriever: Retriever, console: Console) -> None:
        self.retriever, self.console = retriever, console
        self.name, self.corpus, self.identity = retriever.name, retriever.corpus, retriever.identity

    def seen(self, query: QueryLike) -> str:
        return self.retriever.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        hits_per_query = self.retriever.search(queries, k)
        for hits in hits_per_query:
            for rank, hit in enumerate(hits, start=1):
                title, text = as_written(hit.passage.title), as_written(hit.passage.text)
                self.console.print(Text(f"  [{rank}] {title}: {text}", style="dim"))
        return hits_per_query
