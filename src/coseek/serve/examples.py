"""Example questions for the chat page: from the data folder of an index, else about passages of its corpus."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from coseek.core.errors import CoseekError
from coseek.core.files import parse_rows
from coseek.core.spelling import as_written
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.retrieval.index import IndexCard

COUNT = 3
"""Examples on the page."""
LONGEST = 90
"""Characters of an example, at most, so that it fits a line or two."""
_SPLITS = ("test", "dev", "train")
_LOOKED_AT = 200
"""Questions or passages among which the examples are looked for."""


def examples_for(source: str, corpus: Corpus | None) -> list[str]:
    """Up to three questions, as people write them. `source` is the retriever's name or path."""
    asked = _of_different_length(_questions(source))
    if asked or corpus is None:
        return asked
    titles = (as_written(passage.title).strip() for passage in islice(corpus, _LOOKED_AT))
    named = dict.fromkeys(f"What is said about {title}?" for title in titles if title)
    return [text for text in named if len(text) <= LONGEST][:COUNT]


def _questions(source: str) -> list[Question]:
    """The first questions of the data folder that an index was made from; none where it is gone."""
    if not source or "://" in source or not (folder := Path(source)).is_dir():
        return []
    with suppress(CoseekError, OSError):
        if path := IndexCard.read(folder).corpus_path:
            data = Dataset((folder / path).resolve().parent)
            found = (list(_asked(data.split_path(split))) for split in _SPLITS if split in data.splits)
            return next(filter(None, found), [])
    return []


def _asked(path: Path) -> Iterator[Question]:
    rows = islice(parse_rows(path, Question.from_json), _LOOKED_AT)  # a training set may hold millions
    return (one for one in rows if len(one.question) <= LONGEST and one.answerable)


def _of_different_length(questions: list[Question]) -> list[str]:
    """One question of each number of hops where it is known, then the first others."""
    by_hops: dict[int | None, Question] = {}
    for one in questions:
        by_hops.setdefault(one.hops, one)
    chosen = [by_hops[hops] for hops in sorted(by_hops, key=lambda hops: hops or 0)][:COUNT]
    texts = [as_written(one.question).strip() for one in (*chosen, *questions)]
    return list(dict.fromkeys(texts))[:COUNT]
