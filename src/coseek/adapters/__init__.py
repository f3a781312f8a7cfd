"""Adapters: coseek's retrievers, runs and labels inside other libraries. Each needs the extra of the same name."""

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
    """A passage's metadata, and its title, id and score, which override fields of the same name."""
    meta: dict[str, Json] = {**hit.passage.meta}
    return {**meta, "id": hit.passage.id, "title": hit.passage.title, "score": hit.score}
