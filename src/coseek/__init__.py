"""coseek: train search agents and the retrievers that serve them, together or apart, and measure both.

The names below are the words of the house; each is looked up when it is first used, so `import coseek` costs nothing
and needs no torch. `coseek.open_index(folder).search(["Ada Lovelace"], k=3)` is the whole of looking things up.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from coseek.agents.rollout import rollout as rollout
    from coseek.data.dataset import Dataset as Dataset
    from coseek.data.passage import Corpus as Corpus
    from coseek.data.passage import Hit as Hit
    from coseek.data.passage import Passage as Passage
    from coseek.data.question import Question as Question
    from coseek.data.trajectory import Author as Author
    from coseek.data.trajectory import Search as Search
    from coseek.data.trajectory import Segment as Segment
    from coseek.data.trajectory import StopReason as StopReason
    from coseek.data.trajectory import Trajectory as Trajectory
    from coseek.models.model import Model as Model
    from coseek.retrieval.factory import open_retriever as open_retriever
    from coseek.retrieval.index import build_index as build_index
    from coseek.retrieval.index import open_index as open_index
    from coseek.retrieval.query import Query as Query
    from coseek.retrieval.retriever import Retriever as Retriever

_HOMES = {
    "Author": "data.trajectory",
    "Corpus": "data.passage",
    "Dataset": "data.dataset",
    "Hit": "data.passage",
    "Model": "models.model",
    "Passage": "data.passage",
    "Query": "retrieval.query",
    "Question": "data.question",
    "Retriever": "retrieval.retriever",
    "Search": "data.trajectory",
    "Segment": "data.trajectory",
    "StopReason": "data.trajectory",
    "Trajectory": "data.trajectory",
    "build_index": "retrieval.index",
    "open_index": "retrieval.index",
    "open_retriever": "retrieval.factory",
    "rollout": "agents.rollout",
}
"""Where each offered name lives. A test keeps this table and the imports above the same."""

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    """Import a name of the house when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'coseek' has no attribute {name!r}; it offers {', '.join(sorted(_HOMES))}")
    value: object = getattr(importlib.import_module(f"coseek.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
