"""MIRAGE: five sets of medical multiple-choice questions (Xiong et al., arXiv 2402.13178), over chunks of MedRAG.

Its `benchmark.json` is `{SET: {ID: {"question", "options": {"A": …}, "answer": "A"}}}`, of the sets `medqa`, `medmcqa`,
`pubmedqa`, `bioasq` and `mmlu`. A chunk of MedRAG is the line `{"id", "title", "content"}`; other corpora have lines of
`{"id", "contents"}` (s3 also takes the Wikipedia of 2018).

The options are part of the question, but searches omit them (*question-only retrieval*), and only a judge grades
answers (s3, appendix A.4).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import read_json_object
from coseek.data.imports._sources import ImportedData, SourceRow, kind_of, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question, with_options


def read(sources: Sequence[Path]) -> ImportedData:
    """The `.json` files are benchmarks, all others corpora. The sets are published as `test`."""
    benchmarks = [path for path in sources if kind_of(path) == ".json"]
    published = {(name, "test"): questions for path in benchmarks for name, questions in _sets(path)}
    questions = [question for group in published.values() for question in group]
    return ImportedData(_passages([path for path in sources if path not in benchmarks]), questions, published=published)


def _sets(path: Path) -> Iterator[tuple[str, list[Question]]]:
    benchmark = SourceRow(str(path), read_json_object(path))
    for name in benchmark.value:
        rows = benchmark.row(name)
        yield name, [_question(name, ident, rows.row(ident)) for ident in rows.value]


def _question(dataset: str, ident: str, row: SourceRow) -> Question:
    options, letter, text = row.row("options"), row.text("answer"), row.text("question")
    if not options.has(letter):
        raise DataError(f"{row.where}: the answer {letter!r} is none of the options {', '.join(options.value)}")
    question = Question(f"{dataset}/{ident}", text, meta={"dataset": dataset})  # ids are unique within a set
    return with_options(question, {name: options.text(name) for name in options.value}, letter)


def _passages(paths: Sequence[Path]) -> Iterator[Passage]:
    for path in paths:
        for row in read_rows(path):
            with row.placed():
                if row.has("content"):  # its `contents` joins title and text by a full stop
                    yield Passage(row.text("id"), row.text_or_empty("title"), row.text("content"))
                else:
                    yield Passage.from_json(row.value)
