"""BEIR: a folder of `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; every split is read.

Corpus lines are `{"_id", "title", "text"}`, query lines `{"_id", "text"}`, and qrels three columns under a header:
query, passage, grade. `gold_ids` are the passages with a grade above 0; `meta.relevance` keeps all grades, for nDCG.
There are no answers.

Published qrels name missing passages and queries (ArguAna). Such judgements are counted and named; those of passages
stay in `meta.relevance`, since BEIR counts them, too. A query with the id of a passage is that passage (ArguAna,
Quora): its question is marked (`meta.own_passage`), and no measure counts that passage as a hit, as with BEIR's
`ignore_identical_ids`. If that passage has a grade above 0, it is a hit like others.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.imports._sources import ImportedData, read_rows
from coseek.data.passage import Passage
from coseek.data.question import OWN_PASSAGE, Question
from coseek.data.trec import read_qrels

UNJUDGED = "queries that no split judges"
ABSENT_QUERY = "judged queries that are not in the queries, left out"
ABSENT_PASSAGE = "judgements of passages that are not in the corpus"
OWN = "queries with the id of a passage, which is no hit of theirs (as in BEIR)"


def files(sources: Sequence[Path]) -> list[Path]:
    """The files of one BEIR folder: corpus, queries, then the qrels of every split."""
    if len(sources) != 1 or not sources[0].is_dir():
        raise DataError(f"give one BEIR folder, not {', '.join(map(str, sources))}")
    (folder,) = sources
    qrels = sorted((folder / "qrels").glob("*.tsv"))
    if not qrels:
        raise DataError(f"{folder} holds no qrels/SPLIT.tsv; is it a BEIR folder?")
    return [_find_file(folder, "corpus.jsonl"), _find_file(folder, "queries.jsonl"), *qrels]


def read(sources: Sequence[Path]) -> ImportedData:
    """The splits of the folder. Queries without judgements are dropped and counted."""
    corpus, queries, *qrels_paths = sources
    texts = _queries(queries)
    qrels = {path.stem: read_qrels(path) for path in qrels_paths}
    judgements = {(query, ident) for rows in qrels.values() for query, grades in rows.items() for ident in grades}
    judged_queries = {query for rows in qrels.values() for query in rows}
    needed_ids = {ident for _, ident in judgements} | judged_queries
    splits: dict[str, list[Question]] = {}
    named = {ABSENT_QUERY: sorted(judged_queries - texts.keys())}
    notes: dict[str, int] = {}

    def passages() -> Iterator[Passage]:
        present: set[str] = set()
        for row in read_rows(corpus):
            passage = Passage(row.text("_id"), row.text_or_empty("title"), row.text("text"))
            if passage.id in needed_ids:
                present.add(passage.id)
            yield passage
        for split, rows in qrels.items():
            if questions := [_question(ident, texts[ident], rows[ident], present) for ident in rows if ident in texts]:
                splits[split] = questions
        named[ABSENT_PASSAGE] = sorted(f"{query}: {ident}" for query, ident in judgements if ident not in present)
        own_ids = {question.id for group in splits.values() for question in group if question.own_passage is not None}
        counts = {UNJUDGED: len(texts.keys() - judged_queries), **{name: len(names) for name, names in named.items()}}
        notes.update({name: count for name, count in {**counts, OWN: len(own_ids)}.items() if count})

    return ImportedData(passages(), (), notes, splits, named=named)


def _queries(path: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    for row in read_rows(path):
        if (ident := row.text("_id")) in texts:
            raise DataError(f"{row.where}: the id {ident!r} stands twice; ids must be unique")
        texts[ident] = row.text("text")
    return texts


def _find_file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} holds no {name}; is it a BEIR folder?")


def _question(ident: str, text: str, grades: Mapping[str, int], present: Set[str]) -> Question:
    relevant_ids = [passage for passage, grade in grades.items() if grade > 0]
    meta: JsonObject = {"relevance": {**grades}}
    if ident in present and ident not in relevant_ids:
        meta[OWN_PASSAGE] = True
    return Question(ident, text, gold_ids=tuple(passage for passage in relevant_ids if passage in present), meta=meta)
