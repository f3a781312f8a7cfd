"""Tevatron: label sets as training rows of other trainers.

One JSON object per line: `{query_id, query, positive_passages: [{docid, title, text}], negative_passages: […]}`. The
query is rendered through the chosen view.
"""

from collections.abc import Iterable
from pathlib import Path

from coseek.core.files import Json, JsonObject, write_jsonl
from coseek.data.passage import Passage
from coseek.labels.label_set import LabelSet
from coseek.retrieval.views import find_view, render_view


def write_tevatron(path: Path, sets: Iterable[LabelSet], view: str, separator: str = "[SEP]") -> int:
    """Write the rows; returns how many."""
    find_view(view)  # raises for an unknown view before the file is created
    return write_jsonl(path, (tevatron_row(one, view, separator) for one in sets))


def tevatron_row(labels: LabelSet, view: str, separator: str = "[SEP]") -> JsonObject:
    """One label set."""
    turn = labels.turn
    copy = f"/{labels.copy}" if labels.copy else ""
    negatives: list[Json] = [_passage(labels.passage(ident)) for ident in labels.negatives]
    return {
        "query_id": f"{turn.question_id}/{turn.seed}/{turn.search}{copy}",
        "query": render_view(view, labels.query, separator=separator),
        "positive_passages": [_passage(labels.passage(labels.positive))],
        "negative_passages": negatives,
    }


def _passage(passage: Passage) -> JsonObject:
    return {"docid": passage.id, "title": passage.title, "text": passage.text}
