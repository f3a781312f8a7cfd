"""Search an index."""

from itertools import islice
from typing import Annotated

from rich.text import Text
from typer import Argument, Option

from coseek.cli.terminal import AsJson, new_app, print_json, stdout_console
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.text import as_written
from coseek.data.passage import Corpus, Hit, Passage, Way, neighbours
from coseek.retrieval.factory import open_retriever

GROUP = "Agents"
app = new_app()
WAYS: tuple[Way, Way] = ("previous", "next")
SOURCE = ("path", "page", "row", "url", "date")
"""Fields of a passage that name its source, in the order in which they are printed."""


@app.command(epilog="Example: `coseek search data/notes.index 'who wrote it' -k 3`")
def search(
    retriever: Annotated[str, Argument(metavar="RETRIEVER", help="An index folder, a URL, or a YAML file.")],
    queries: Annotated[list[str], Argument(metavar="QUERY", help="The query; several are searched in one batch.")],
    k: Annotated[int, Option("--passages", "-k", min=1, help="Passages per query.")] = 5,
    context: Annotated[int, Option(min=0, help="Passages of its document to show before and after each hit.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Search an index: the best passages for each query, best first."""
    engine = open_retriever(retriever)
    if context and engine.corpus is None:
        raise SettingError(f"{retriever} holds no corpus, so --context shows nothing; search an index folder")
    hits_per_query = engine.search(queries, k)
    if as_json:
        print_json(
            [
                {"query": query, "hits": [with_context(hit, engine.corpus, context) for hit in hits]}
                for query, hits in zip(queries, hits_per_query, strict=True)
            ]
        )
        return
    for query, hits in zip(queries, hits_per_query, strict=True):
        show(query, hits, engine.corpus, context)


def with_context(hit: Hit, corpus: Corpus | None, passages: int) -> JsonObject:
    """Convert a hit to JSON, with the given number of passages before and after it."""
    if corpus is None or not passages:
        return hit.to_json()
    before, after = (nearby_passages(hit.passage, corpus, way, passages) for way in WAYS)
    return {**hit.to_json(), "before": [near.to_json() for near in before], "after": [near.to_json() for near in after]}


def nearby_passages(passage: Passage, corpus: Corpus, way: Way, most: int) -> list[Passage]:
    """At most `most` passages before (`previous`) or after (`next`) a passage in its document, in reading order."""
    passages = list(islice(neighbours(passage, corpus, way), most))
    return passages[::-1] if way == "previous" else passages


def show(query: str, hits: list[Hit], corpus: Corpus | None = None, context: int = 0) -> None:
    """Print a query and its hits. Passages are untrusted, so they are never read as markup."""
    console = stdout_console()
    console.print(Text(query, style="bold"))
    for rank, hit in enumerate(hits, start=1):
        passage = hit.passage
        title, text = as_written(passage.title), as_written(passage.text)
        console.print(Text.assemble(f"{rank:3} ", (f"{hit.score:8.3f} ", "dim"), (title, "bold"), f"  {text}"))
        if source := ", ".join(f"{name} {passage.meta[name]}" for name in SOURCE if name in passage.meta):
            console.print(Text(f"    {source}", style="dim"))
        for way, mark in zip(WAYS, "↑↓", strict=True):
            for neighbour in nearby_passages(passage, corpus, way, context) if corpus is not None else ():
                console.print(Text(f"    {mark} {as_written(neighbour.text)}", style="dim"))
    if not hits:
        console.print(Text("    nothing found", style="dim"))
