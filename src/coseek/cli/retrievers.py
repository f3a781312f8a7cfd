"""Retrievers by name: what stands behind `--retriever`. An index folder, a URL, or a YAML file of parts."""

from pathlib import Path

from coseek.core.files import JsonObject, read_yaml
from coseek.retrieval.factory import OpenContext, TextModel, open_retriever
from coseek.retrieval.index import IndexCard
from coseek.retrieval.retriever import Retriever


def open_named(name: str) -> Retriever:
    """Open what a user named on the command line."""
    return open_retriever(name, model=open_model)


def check_there(name: str) -> None:
    """Refuse what is no retriever, before anything is opened."""
    path = Path(name).expanduser()
    if name.startswith(("http://", "https://")):
        return
    if path.suffix in (".yaml", ".yml"):
        OpenContext(path.parent).check(read_yaml(path, "retriever file"), str(path))
    else:
        IndexCard.read(path)


def open_model(name: str) -> TextModel:
    """A language model that a retriever asks: the path of a local model folder."""
    from coseek.models.local_text import open_text_model  # here and not above: few retrievers need it

    return open_text_model(name)


def described(name: str, retriever: Retriever) -> JsonObject:
    """What a run remembers of its retriever: the card of an index, else its name and identity."""
    if Path(name).is_dir():
        return IndexCard.read(Path(name)).to_json()
    return {"retriever": retriever.name, "identity": retriever.identity}
