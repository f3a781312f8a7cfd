"""BrowseComp-Plus: deep-research questions over a fixed corpus of 100,000 web pages (Chen et al., arXiv 2508.06600).

Reads the files of the project's repository after its decryption script, and the corpus, converted from Parquet to JSON
lines:

    data/browsecomp_plus_decrypted.jsonl   {"query_id", "query", "answer", "evidence_docs": [{"docid", "text"}, …], …}
    topics-qrels/qrel_evidence.txt         TREC qrels: the pages that are needed to answer
    topics-qrels/qrel_golds.txt            TREC qrels: those of these pages that hold the answer
    any other .jsonl                       the corpus: {"docid", "text"}

A folder is read with its subfolders `data`, `topics-qrels` and `corpus`. `gold_ids` are the evidence pages and
`meta.gold_docs` the pages with the answer: from the qrels, else from the decrypted file. Without a corpus file, the
questions' own pages, including hard negatives, are the corpus. Pages have no titles.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.data.imports._sources import ImportedData, SourceRow, kind_of, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trec import Qrels, read_qrels

_FOLDERS = ("", "data", "topics-qrels", "corpus")
_OWN = ("evidence_docs", "gold_docs", "negative_docs")


@dataclass
class _BrowseCompGold:
    """The rows of the sources by kind."""

    passages: dict[str, Passage] = field(default_factory=dict)
    questions: list[SourceRow] = field(default_factory=list)
    evidence: Qrels | None = None
    golds: Qrels | None = None


def files(sources: Sequence[Path]) -> list[Path]:
    """Replace each folder by this format's files in it and in three of its subfolders."""
    paths: list[Path] = []
    for source in sources:
        folder_files = [path for name in _FOLDERS for path in sorted((source / name).glob("*")) if _is_data_file(path)]
        paths += folder_files if source.is_dir() else [source]
    if not paths:
        raise DataError(f"{', '.join(map(str, sources))} holds no BrowseComp-Plus files; name them one by one")
    return list(dict.fromkeys(paths))


def read(sources: Sequence[Path]) -> ImportedData:
    """Questions in the order of their file. Repeated pages become one passage."""
    gold = _BrowseCompGold()
    for path in sources:
        _sort_file(path, gold)
    notes = {} if gold.passages else {"questions whose own pages are the corpus": len(gold.questions)}
    if not gold.passages:
        for row in gold.questions:
            for name in _OWN:
                _add_pages(gold, row.rows(name) if row.has(name) else ())
    return ImportedData(tuple(gold.passages.values()), [_question(gold, row) for row in gold.questions], notes)


def _is_data_file(path: Path) -> bool:
    return path.is_file() and (kind_of(path) in (".jsonl", ".parquet") or path.name.startswith("qrel_"))


def _sort_file(path: Path, gold: _BrowseCompGold) -> None:
    if path.name.startswith("qrel_evidence"):
        gold.evidence = read_qrels(path)
    elif path.name.startswith("qrel_gold"):
        gold.golds = read_qrels(path)
    elif kind_of(path) != ".tsv":  # the queries, which the decrypted file also has
        for row in read_rows(path):
            if row.has("query_id"):
                gold.questions.append(row)
            else:
                _add_pages(gold, [row])


def _add_pages(gold: _BrowseCompGold, pages: Iterable[SourceRow]) -> None:
    for page in pages:
        ident, text = page.text("docid"), page.text("text")
        passage = gold.passages.setdefault(ident, Passage(ident, "", text))
        if passage.text != text:
            raise DataError(f"{page.where}: the page {ident!r} has another text elsewhere; keep one of them")


def _question(gold: _BrowseCompGold, row: SourceRow) -> Question:
    ident, text = row.text("query_id"), row.text("query")
    gold_docs = _pages(gold.golds, ident, row, "gold_docs")
    meta: dict[str, Json] = {"gold_docs": [*gold_docs]} if gold_docs else {}
    evidence = _pages(gold.evidence, ident, row, "evidence_docs")
    return Question(ident, text, row.answers("answer"), tuple(evidence), meta=meta)


def _pages(qrels: Qrels | None, ident: str, row: SourceRow, name: str) -> list[str]:
    """Page ids from the qrels, if any, else from the row's list `name`."""
    if qrels:
        return [page for page, grade in qrels.get(ident, {}).items() if grade > 0]
    return [page.text("docid") for page in row.rows(name)] if row.has(name) else []
