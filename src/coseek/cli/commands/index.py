"""Build an index over the corpus of a data set."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import TaskID

from coseek.cli.terminal import AsJson, Bars, assignments, new_app, print_json, progress_bar, resumable
from coseek.retrieval.index import IndexCard, build_index
from coseek.retrieval.retrievers.dense import Dense

app = new_app()


@app.command()
def index(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A data-set folder, or a corpus file.")],
    out: Annotated[Path, typer.Option(help="The folder to write; an index that is there already is replaced.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings of the retriever, such as k1=0.9.")
    ] = None,
    retriever: Annotated[str, typer.Option(help="Which retriever: bm25, dense, hnsw, ivf-pq, random.")] = "bm25",
    encoder: Annotated[
        str | None, typer.Option(help="For all but bm25 and random: `minilm`, or a sentence-transformers folder.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build an index over the corpus of a data set.

    The index remembers which corpus it was made from; it is refused when that corpus has changed since.
    It appears whole or not at all. Encoding a large corpus takes long: Ctrl-C or a crash loses the last minute, and
    the same command goes on.
    """
    tree = assignments([*(settings or []), *([f"encoder={encoder}"] if encoder else [])])
    with resumable("the same command"), progress_bar() as progress:
        stages = Stages(progress)
        built = build_index(source, retriever, out, tree, stages.report)
    if as_json:
        print_json(IndexCard.read(out).to_json())
    else:
        passages = IndexCard.read(out).passages
        how = f", searched with search={built.method}" if isinstance(built, Dense) else ""
        print(f"{out}: {retriever} over {passages:,} passages{how}. Try: coseek search {out} 'words to look for'")


class Stages:
    """A bar for each thing that is counted, one after the other."""

    def __init__(self, progress: Bars) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def report(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            # What an earlier attempt did took no time now: the time left is told from what is still to do.
            self._tasks[what] = self._progress.add_task(what, total=total, completed=done)
        self._progress.update(self._tasks[what], completed=done)
