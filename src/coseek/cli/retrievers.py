"""Retrievers by name: what stands behind `--retriever`. An index folder, a URL, or a YAML file of parts."""

from pathlib import Path

from coseek.data.files import JsonObject
from coseek.retrieval.index import IndexCard
from coseek.retrieval.opening import Writes, open_retriever
from coseek.retrieval.retriever import Retriever


def open_named(name: str) -> Retriever:
    """Open what a user named on the command line."""
    return open_retriever(name, model=open_model)


def open_model(name: str) -> Writes:
    """A language model that a retriever asks: the path of a local model folder."""
    from coseek.models.text import open_writer  # here and not above: few retrievers need it

    return open_writer(name)


def described(name: str, retriever: Retriever) -> JsonObject:
    """What a run remembers of its retriever: the card of an index, else its name and identity."""
    if Path(name).is_dir():
        return IndexCard.read(Path(name)).to_json()
    return {"retriever": retriever.name, "identity": retriever.identity}
