"""Build an index over the corpus of a data set."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.options import ClusterName, pairs
from coseek.cli.terminal import AsJson, assignments, new_app, output, progress_bar, resumable, shell_word
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.plugins import is_plugin_path
from coseek.core.text import counted
from coseek.retrieval.index import IndexCard, build_index, index_module, update_index, verify_index
from coseek.retrieval.retrievers.dense import Dense

GROUP = "Data and indexes"
app = new_app()
USUAL = "bm25"


@app.command(epilog="Example: `coseek index data/notes --out data/notes.index`")
def index(
    source: Annotated[Path, Argument(metavar="DIR", help="A data-set folder or corpus file; the index with --verify.")],
    out: Annotated[Path | None, Option(help="The folder to write; an index of the same kind is replaced.")] = None,
    settings: Annotated[list[str] | None, pairs("Settings of the retriever, such as k1=0.9.")] = None,
    retriever: Annotated[
        str | None, Option(help="bm25 (the default), dense, hnsw, ivf-pq, late-interaction, sparse, random.")
    ] = None,
    encoder: Annotated[str | None, Option(help="`base`, `minilm`, or a sentence-transformers folder.")] = None,
    cluster: ClusterName = None,
    update: Annotated[bool, Option("--update", help="Update the index at --out, reusing unchanged vectors.")] = False,
    verify: Annotated[bool, Option("--verify", help="Only check the index DIR and its corpus for damage.")] = False,
    as_json: AsJson = False,
) -> None:
    """Build an index over the corpus of a data set.

    Commands refuse an index whose corpus has changed; --update brings it up to date. An index is written atomically.
    Ctrl-C or a crash loses the last minute of encoding; the same command resumes.
    """
    if verify:
        if out or settings or retriever or encoder or cluster or update:
            raise SettingError("--verify takes an index folder alone: coseek index DIR --verify")
        verified(source, as_json)
        return
    if out is None:
        raise SettingError("missing option '--out'; see `coseek index --help`")
    options = {"encoder": encoder, "cluster": cluster}
    option = next((name for name, value in options.items() if value and not (update or takes(retriever, name))), None)
    if option:
        raise SettingError(f"{retriever or USUAL} takes no --{option}; name a retriever that does: --retriever dense")
    tree = assignments([*(settings or []), *(f"{name}={value}" for name, value in options.items() if value)])
    with resumable("the same command"), progress_bar() as bars:
        if update:
            details = f" ({update_index(source, out, retriever, tree, bars.report)})"
        else:
            built = build_index(source, retriever or USUAL, out, tree, bars.report)
            details = f", searched with search={built.method}" if isinstance(built, Dense) else ""
    card = IndexCard.read(out)
    passages = counted(card.corpus.passages, "passage")
    line = f"{out}: {card.retriever} over {passages}{details}. {next_step(out, card, tree)}"
    output(as_json, card.to_json(), [line])


def takes(retriever: str | None, setting: str) -> bool:
    """Whether a retriever has a setting."""
    return setting in index_module(retriever or USUAL).SETTINGS.model_fields


def next_step(out: Path, card: IndexCard, tree: JsonObject) -> str:
    """Suggest how to search the index."""
    view = str(tree.get("view") or card.settings.get("view"))
    if not is_plugin_path(file := view.partition("#")[0]):
        return f"Try: coseek search {shell_word(out)} 'some words'"
    # The code of a view is executed only if the user names its file.
    retriever_file = f"{{retriever: index, path: {out}, settings: {{view: {file}}}}}"
    return f"Search it by a YAML file that names its view: {retriever_file}"


def verified(folder: Path, as_json: bool) -> None:
    """Read an index and its corpus completely, and report that both are intact."""
    with progress_bar() as bars:
        result = verify_index(folder, bars.report)
    corpus = None if result.corpus is None else str(result.corpus)
    tree: JsonObject = {"index": str(folder), "files": result.files, "bytes": result.bytes, "corpus": corpus}
    note = " (its corpus was in memory and is not checked)" if corpus is None else f", and so is {corpus}"
    output(as_json, tree, [f"{folder}: {result.files} files, {result.bytes:,} bytes, as they were written{note}."])
