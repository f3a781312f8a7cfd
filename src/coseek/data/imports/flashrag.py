"""FlashRAG and Search-R1: a corpus of JSON lines `{"id", "contents"}` and question lines.

FlashRAG's questions are `{"id", "question", "golden_answers"}` in files `SET/train.jsonl`, `SET/dev.jsonl` and
`SET/test.jsonl`. Search-R1's carry data set and split, the question inside a prompt and the answers in
`reward_model.ground_truth.target`; both are read, whichever a line has, from JSON lines or parquet.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.imports._published import origin_of, published_files
from coseek.data.imports._sources import KINDS, ImportedData, SourceRow, expand, kind_of, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question

DETAIL = 1_000
"""Characters of a field of `metadata`, at most: HotpotQA's holds the question's own ten passages."""


def files(sources: Sequence[Path]) -> list[Path]:
    """The sources, each folder replaced by its files `SET/SPLIT.jsonl` and the data files beside the sets."""
    found: list[Path] = []
    for source in sources:
        inside = published_files(source) if source.is_dir() else []
        beside = (
            sorted(path for path in source.iterdir() if path.is_file() and kind_of(path) in KINDS) if inside else []
        )
        found += [*inside, *beside] or expand([source], "flashrag")
    return found


def read(sources: Sequence[Path]) -> ImportedData:
    """Rows with a question or a prompt are questions, all others passages, which are read as they are asked for."""
    questions: list[Question] = []
    published: dict[tuple[str, str], list[Question]] = {}

    def passages() -> Iterator[Passage]:
        count = 0
        for path in sorted(sources, key=_begins_with_passage):  # so that mistakes in questions are found at once
            for row in read_rows(path):
                if _is_passage(row):
                    count += 1
                    yield _passage(row)
                    continue
                dataset, split = _origin(row, path)
                questions.append(_question(row, dataset, split))
                if dataset and split:
                    published.setdefault((dataset, split), []).append(questions[-1])
        if not count:
            raise DataError('the sources hold no passage; add the corpus file, whose lines are {"id", "contents"}')

    return ImportedData(passages(), questions, published=published)


def _begins_with_passage(path: Path) -> bool:
    first = next(read_rows(path), None)
    return first is not None and _is_passage(first)


def _is_passage(row: SourceRow) -> bool:
    return not (row.has("question") or row.has("prompt"))


def _passage(row: SourceRow) -> Passage:
    try:
        return Passage.from_json(row.value)
    except DataError as error:
        raise DataError(f"{row.where}: {error}") from None


def _origin(row: SourceRow, path: Path) -> tuple[str, str]:
    """Data set and split of a question, by its row or else by its file; empty where neither says so."""
    dataset, split = origin_of(path) or ("", "")
    extra = row.row("extra_info") if row.has("extra_info") else None
    return (
        row.text("data_source") if row.has("data_source") else dataset,
        extra.text("split") if extra is not None and extra.has("split") else split,
    )


def _question(row: SourceRow, dataset: str, split: str) -> Question:
    return Question(
        id=_id(row, dataset, split),
        question=row.text("question") if row.has("question") else _question_in_prompt(row),
        answers=tuple(_answers(row)),
        gold_ids=tuple(row.texts("gold_ids")) if row.has("gold_ids") else (),
        meta={**({"data_source": dataset} if dataset else {}), **row.meta("prompt"), **_details(row)},
    )


def _id(row: SourceRow, dataset: str, split: str) -> str:
    """The row's id after its data set's name (`nq/train_0`), since several sets have a `train_0`.

    Some rows of Search-R1 have split and number instead.
    """
    ident = row.text("id") if row.has("id") else f"{split}_{row.row('extra_info').text('index')}"
    return f"{dataset}/{ident}" if dataset else ident


def _details(row: SourceRow) -> JsonObject:
    """The short fields of `metadata`, and the question's type."""
    found = row.value.get("metadata")
    if not isinstance(found, dict):
        return {}
    short: JsonObject = {name: value for name, value in found.items() if len(json.dumps(value)) <= DETAIL}
    kind: JsonObject = {"type": found["type"]} if isinstance(found.get("type"), str) else {}
    return {**kind, **({"metadata": short} if short else {})}


def _answers(row: SourceRow) -> list[str]:
    for name in ("golden_answers", "answers"):
        if row.has(name):
            return row.texts(name)
    return row.row("reward_model").row("ground_truth").texts("target")


def _question_in_prompt(row: SourceRow) -> str:
    """The text after the last `Question:` of the last message."""
    messages = row.rows("prompt")
    _before, marker, text = messages[-1].text("content").rpartition("Question:") if messages else ("", "", "")
    if not marker or not text.strip():
        raise DataError(f"{row.where}: the prompt holds no `Question: …` and there is no 'question'")
    return text.strip()
