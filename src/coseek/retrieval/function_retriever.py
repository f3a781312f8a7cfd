"""Function retriever: a function of the user, or an object with `search`, as a retriever."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from coseek.core.errors import CoseekError, RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.own_functions import called, check_takes, identify, offer
from coseek.core.settings import Settings
from coseek.data.passage import Hit, Passage
from coseek.retrieval.context_fields import ContextFields
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.retriever import Retriever

Found: TypeAlias = Hit | Passage | str
SearchFunction: TypeAlias = Callable[[str, int], Sequence[Found]]
"""(query, k) → at most k passages, best first: hits, passages, or texts."""


class FunctionRetriever:
    """Asks a function once for each query. What it raises is a failed search, which ends the trajectory as a fault."""

    corpus = None
    reads = ContextFields()

    def __init__(self, function: SearchFunction) -> None:
        check_takes("retriever", function, "query", "k")
        self.name = called(function)
        self._function = function
        self._digest = identify(function)[0]

    @property
    def identity(self) -> str:
        return digest_of("python", self.name, self._digest)

    def seen(self, query: QueryLike) -> str:
        return Query.of(query).text

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        return [self._hits(self.seen(query), k) for query in queries]

    def _hits(self, query: str, k: int) -> list[Hit]:
        try:
            found = list(self._function(query, k))[:k]
        except CoseekError:
            raise
        except Exception as error:
            raise RetrieverError(f"{self.name}: {type(error).__name__}: {error}") from error
        return [self._hit(one, float(k - rank)) for rank, one in enumerate(found)]

    def _hit(self, found: object, score: float) -> Hit:
        match found:
            case Hit():
                return found
            case Passage():
                return Hit(found, score)
            case str():
                return Hit(Passage(digest_of(found)[:16], "", found), score)
        raise SettingError(f"the retriever {self.name} returned {found!r}; let it return passages, hits or texts")


def as_retriever(given: Retriever | SearchFunction) -> Retriever:
    """A retriever as it is, or one that asks a function. Raises `SettingError` for anything else."""
    if isinstance(given, str | Path) or not (callable(getattr(given, "search", None)) or callable(given)):
        raise SettingError(
            f"a retriever is a path, a URL, a mapping, an object with `search` or a function of (query, k), not "
            f"{given!r}"
        )
    if callable(getattr(given, "search", None)):
        return cast(Retriever, given)
    return FunctionRetriever(cast(SearchFunction, given))


def retriever_name(given: str | Path | Retriever | SearchFunction) -> str:
    """A retriever as settings name it: a path or URL, or a function or object, which becomes a part."""
    if isinstance(given, str | Path):
        return str(given)
    opened = as_retriever(given)

    def open_given(settings: Settings, opening: object) -> Retriever:
        return opened

    known = "" if isinstance(opened, FunctionRetriever) else opened.identity
    return offer("retriever", given, {"SETTINGS": Settings, "open": open_given}, known)
