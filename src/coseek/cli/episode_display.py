"""Watching: a model and a retriever that show what passes through them, for `coseek ask`."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from coseek.agents.rollout import Agent
from coseek.data.passage import Hit
from coseek.models.model import EpisodeState, Model, Ranking, Request, Turn
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever


class ModelDisplay:
    """Shows every turn and the result of every tool call; otherwise the model that it is given."""

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
            self.console.print(Text(self.tokenizer.decode(turn.ids).strip(), style="cyan"))
        return turns

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        return self.model.evidence(so_far) if isinstance(self.model, Ranking) else None

    def close(self, key: int) -> None:
        self.model.close(key)


class RetrieverDisplay:
    """Shows what every search finds; otherwise the retriever that it is given."""

    def __init__(self, retriever: Retriever, console: Console) -> None:
        self.retriever, self.console = retriever, console
        self.name, self.corpus, self.identity = retriever.name, retriever.corpus, retriever.identity

    def seen(self, query: QueryLike) -> str:
        return self.retriever.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        found = self.retriever.search(queries, k)
        for hits in found:
            for rank, hit in enumerate(hits, start=1):
                self.console.print(Text(f"  [{rank}] {hit.passage.title}: {hit.passage.text}", style="dim"))
        return found


def watched(agent: Agent, console: Console) -> Agent:
    """The same agent, with its turns shown."""
    return Agent(agent.protocol, ModelDisplay(agent.model, console))
