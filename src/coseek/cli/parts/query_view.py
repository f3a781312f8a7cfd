"""My part: the query, and the best document of the search before."""

from coseek.retrieval.query import ContextFields, Query
from coseek.retrieval.views import Piece, QueryView, Role


class LatestFind(QueryView):
    """A view that picks its own pieces of the context."""

    fields = ContextFields(past="documents", turns=2)  # everything that it reads

    def pieces(self, query: Query) -> list[Piece]:
        """Return the pieces in the order in which they are written."""
        documents = [text for turn in query.history[-1:] for text in turn.documents[:1]]
        return [*(Piece(Role.DOCUMENT, text, turn=1) for text in documents), Piece(Role.QUERY, query.text)]


VIEW = LatestFind("the query, and the best document of the search before")
