"""Adapters: coseek's retrievers, runs and labels inside other libraries. Each needs the extra of the same name."""

from coseek.core.files import Json, JsonObject
from coseek.data.passage import Hit


def metadata(hit: Hit) -> JsonObject:
    """A passage's metadata, and its title, id and score, which override fields of the same name."""
    meta: dict[str, Json] = {**hit.passage.meta}
    return {**meta, "id": hit.passage.id, "title": hit.passage.title, "score": hit.score}
