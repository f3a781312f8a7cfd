"""A retriever of your own: BM25, with passages in front whose title stands in the query.

    python examples/own_retriever.py FOLDER

On the command line it is named by a YAML file: `retriever: own_retriever.py`, `over: INDEX`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import coseek


class SETTINGS(coseek.Settings):
    """The lines of the YAML file: the retriever underneath, and how many of its passages are ordered anew."""

    over: str
    depth: int = 20


class TitlesFirst:
    """Any object with these five members is a retriever."""

    name = "titles-first"

    def __init__(self, under: coseek.Retriever, depth: int) -> None:
        self.under, self.depth, self.corpus = under, depth, under.corpus
        self.identity = f"{self.name} {depth} {under.identity}"  # all that the hits depend on

    def seen(self, query: str | coseek.Query) -> str:  # the text that it makes of a query
        return coseek.Query.of(query).text

    def search(self, queries: Sequence[str | coseek.Query], k: int) -> list[list[coseek.Hit]]:
        """Q queries → Q lists of at most k hits, best first."""
        asked = coseek.as_queries(queries, k)  # a bare text is one query
        found = self.under.search(asked, max(k, self.depth))
        return [titles_first(self.seen(query), hits)[:k] for query, hits in zip(asked, found, strict=True)]


def titles_first(text: str, hits: list[coseek.Hit]) -> list[coseek.Hit]:
    ranked = sorted(hits, key=lambda hit: hit.passage.title.lower() not in text.lower())
    return [coseek.Hit(hit.passage, 1 / rank) for rank, hit in enumerate(ranked, start=1)]


def open(settings: SETTINGS, opening: coseek.OpenContext) -> TitlesFirst:
    """Called by `open_retriever`; `opening` opens what this retriever stands on."""
    return TitlesFirst(opening.open(settings.over), settings.depth)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    data = coseek.make_world(folder / "world", size="tiny", train=0, dev=0, test=50)
    coseek.build_index(data.folder, "bm25", folder / "index")
    own = coseek.open_retriever({"retriever": __file__, "over": str(folder / "index")})
    for retriever in (coseek.open_retriever(folder / "index"), own):
        trajectories = coseek.rollout("rules", data.questions("test"), retriever)
        rewards = coseek.score(trajectories, {"gold_recall": 1.0})
        recalls = [reward.value for reward in rewards if isinstance(reward, coseek.Reward)]
        print(f"{retriever.name}: {sum(recalls) / len(recalls):.2f} of the gold passages found")
