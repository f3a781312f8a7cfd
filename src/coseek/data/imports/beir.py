"""BEIR: a folder of `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`; every split is read.

Corpus lines are `{"_id", "title", "text"}`, query lines `{"_id", "text"}`, and qrels three columns under a header:
query, passage, grade. `gold_ids` are the passages of a grade above 0; all grades are kept in `meta.relevance`, where
nDCG finds them. There are no answers.
"""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.errors import DataError
from coseek.data.imports._sources import ImportedData, SourceRow, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trec import read_qrels


def files(sources: Sequence[Path]) -> list[Path]:
    """The files of one BEIR folder: corpus, queries, then the qrels of every split."""
    if len(sources) != 1 or not sources[0].is_dir():
        raise DataError(f"give one BEIR folder, not {', '.join(map(str, sources))}")
    (folder,) = sources
    qrels = sorted((folder / "qrels").glob("*.tsv"))
    if not qrels:
        raise DataError(f"{folder} holds no qrels/SPLIT.tsv; is it a BEIR folder?")
    return [_file(folder, "corpus.jsonl"), _file(folder, "queries.jsonl"), *qrels]


def read(sources: Sequence[Path]) -> ImportedData:
    """The folder's splits. Queries without judgements are left out and counted."""
    corpus, queries, *judged = sources
    passages = (_passage(row) for row in read_rows(corpus))
    texts = {row.text("_id"): row.text("text") for row in read_rows(queries)}
    splits = {path.stem: _questions(path, texts) for path in judged}
    used = {question.id for questions in splits.values() for question in questions}
    left_out = len(texts.keys() - used)
    return ImportedData(passages, (), {"queries that no split judges": left_out} if left_out else {}, splits)


def _file(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DataError(f"{folder} holds no {name}; is it a BEIR folder?")


def _passage(row: SourceRow) -> Passage:
    return Passage(row.text("_id"), row.text("title") if row.value.get("title") else "", row.text("text"))


def _questions(qrels: Path, texts: dict[str, str]) -> tuple[Question, ...]:
    """One split, in the order of its file."""
    questions: list[Question] = []
    for ident, grades in read_qrels(qrels).items():
        if ident not in texts:
            raise DataError(f"{qrels} judges the query {ident!r}, which is not in the queries; fetch the folder again")
        gold_ids = tuple(passage for passage, grade in grades.items() if grade > 0)
        questions.append(Question(ident, texts[ident], gold_ids=gold_ids, meta={"relevance": {**grades}}))
    return tuple(questions)
