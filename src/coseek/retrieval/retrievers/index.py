"""Index: an index folder with settings of the search, which are not stored with it."""

from coseek.core.settings import Settings
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.index import open_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import load_views


class OpenIndexSettings(Settings):
    """The index, and its settings."""

    path: str
    """The index folder."""
    settings: dict[str, bool | int | float | str | list[str]]
    """Settings that may be chosen when it is opened, such as `devices` and `trust_remote_code`, and the `view` that it
    was made with, where that is a Python file."""


SETTINGS = OpenIndexSettings


def open(settings: OpenIndexSettings, opening: OpenContext) -> Retriever:
    """Open the index."""
    return open_index(opening.path(settings.path), opening.corpus, load_views(settings.settings, opening.folder))
