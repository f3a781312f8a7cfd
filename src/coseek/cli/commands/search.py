"""Search an index."""

from typing import Annotated

import typer
from rich.text import Text

from coseek.cli.terminal import AsJson, new_app, print_json, stdout_console
from coseek.data.passage import Hit
from coseek.retrieval.factory import open_retriever

app = new_app()


@app.command()
def search(
    retriever: Annotated[str, typer.Argument(metavar="RETRIEVER", help="An index folder, a URL, or a YAML file.")],
    queries: Annotated[list[str], typer.Argument(metavar="QUERY", help="The query; several are one batch.")],
    k: Annotated[int, typer.Option("--passages", "-k", min=1, help="Passages a query.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Search an index: the best passages for each query, best first."""
    found = open_retriever(retriever).search(queries, k)
    if as_json:
        print_json(
            [
                {"query": query, "hits": [hit.to_json() for hit in hits]}
                for query, hits in zip(queries, found, strict=True)
            ]
        )
        return
    for query, hits in zip(queries, found, strict=True):
        show(query, hits)


def show(query: str, hits: list[Hit]) -> None:
    """Print a query and its hits. Passages are untrusted text, and are never read as markup."""
    console = stdout_console()
    console.print(Text(query, style="bold"))
    for rank, hit in enumerate(hits, start=1):
        console.print(
            Text.assemble(
                f"{rank:3} ", (f"{hit.score:8.3f} ", "dim"), (hit.passage.title, "bold"), f"  {hit.passage.text}"
            )
        )
    if not hits:
        console.print(Text("    nothing found", style="dim"))
