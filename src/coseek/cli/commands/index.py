"""Build an index over the corpus of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.terminal import AsJson, assignments, new_app, print_json, progress_bar, resumable
from coseek.retrieval.index import IndexCard, build_index
from coseek.retrieval.index_update import update_index
from coseek.retrieval.retrievers.dense import Dense

app = new_app()


@app.command()
def index(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="A data-set folder, or a corpus file.")],
    out: Annotated[Path, typer.Option(help="The folder to write; an index that is there already is replaced.")],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Settings of the retriever, such as k1=0.9.")
    ] = None,
    retriever: Annotated[
        str | None, typer.Option(help="Which retriever: bm25 (the default), dense, hnsw, ivf-pq, random.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="For all but bm25 and random: `base`, `minilm`, or a sentence-transformers folder."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Bring the index at --out up to date: only new and changed texts are read.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build an index over the corpus of a data set.

    The index records the digest of its corpus, and is refused when the corpus has changed since; --update takes over
    what has not changed. It is written atomically. Encoding a large corpus takes long: Ctrl-C or a crash loses the last
    minute, and the same command resumes.
    """
    tree = assignments([*(settings or []), *([f"encoder={encoder}"] if encoder else [])])
    with resumable("the same command"), progress_bar() as bars:
        if update:
            how = f" ({update_index(source, out, retriever, tree, bars.report)})"
        else:
            built = build_index(source, retriever or "bm25", out, tree, bars.report)
            how = f", searched with search={built.method}" if isinstance(built, Dense) else ""
    card = IndexCard.read(out)
    if as_json:
        print_json(card.to_json())
    else:
        print(f"{out}: {card.retriever} over {card.passages:,} passages{how}. Try: coseek search {out} 'some words'")
