"""Adapters: coseek's retrievers, runs and labels as parts of other libraries, each behind an extra of its name."""

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.passage import Hit
from coseek.retrieval.factory import Source, open_retriever
from coseek.retrieval.retriever import Retriever


def open_source(source: Source, k: int) -> Retriever:
    """Open an index folder, a URL, a YAML file or a mapping. Raises `UserError`, also for a wrong `k`."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise SettingError(f"the number of passages must be at least 1, not {k!r}")
    return open_retriever(source)


def metadata(hit: Hit) -> JsonObject:
    """A passage's own metadata, and its title, id and score, which win over namesakes."""
    own: dict[str, Json] = {**hit.passage.meta}
    return {**own, "id": hit.passage.id, "title": hit.passage.title, "score": hit.score}
