"""FlashRAG and Search-R1: a corpus of JSON lines `{"id", "contents"}` and question lines.

FlashRAG's questions are `{"id", "question", "golden_answers"}` in files `SET/train.jsonl`, `SET/dev.jsonl` and
`SET/test.jsonl`. Search-R1's carry data set and split, the question inside a prompt and the answers in
`reward_model.ground_truth.target`; both are read, whichever a line has, from JSON lines, CSV or parquet. Test rows have
no answers. A row without an id gets a digest of its question.

Where a row has `choices` (or `options`), its answers are positions in them (from 0), their labels (A, B …) or their
texts, and `answerKey` is a label; the gold answers are the chosen texts, and the choices are appended to the
question and kept in `meta.choices`.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.answers import read_text
from coseek.data.imports._sources import (
    KINDS,
    ImportedData,
    SourceRow,
    expand,
    kind_of,
    origin_of,
    published_files,
    read_rows,
)
from coseek.data.passage import Passage
from coseek.data.question import Question

_AT_START = re.compile(r"^[ \t]*Question:\s*(\S.*)", re.MULTILINE)
_INSIDE = re.compile(r"^.*?Question:\s*(\S.*)", re.MULTILINE)
_VERBS = "Answer|answer|Please|Remember|Put|Provide|Give|Let|Think|Respond|Return|Write|Use|Output|You|Your|Do|Make|If"
_TAIL = re.compile(rf"(?<=[?？])\s+(?=[(\[<*]*(?:{_VERBS})\b[^?]*$)")
"""White space between a question and an instruction after it. Titles may hold a question mark, too."""
_GOLDS = ("golden_answers", "answers", "answer")
_POSITION = re.compile(r"(\d{1,6})(?:\.0)?")
ASKED = ("question", "problem")
"""Fields that hold a question; SimpleQA calls it a problem."""
MULTIPLE_CHOICE = "multiple-choice questions, their choices appended to the question"
DETAIL = 1_000
"""Maximum number of characters of a field of `metadata`: HotpotQA's holds the question's own ten passages."""


def files(sources: Sequence[Path]) -> list[Path]:
    """The sources. A folder is replaced by its files `SET/SPLIT.jsonl` and the data files next to the sets."""
    paths: list[Path] = []
    for source in sources:
        if source.is_dir() and (published := published_files(source)):
            other_files = (path for path in source.iterdir() if path.is_file() and kind_of(path) in KINDS)
            paths += [*published, *sorted(other_files)]
        else:
            paths += expand([source], "flashrag")
    return paths


def read(sources: Sequence[Path]) -> ImportedData:
    """Rows with a question or a prompt are questions; all others are passages, which are read lazily."""
    questions: list[Question] = []
    notes = Counter[str]()
    published: dict[tuple[str, str], list[Question]] = {}

    def passages() -> Iterator[Passage]:
        count = 0
        for path in sorted(sources, key=_begins_with_passage):  # questions first, to find mistakes in them early
            for row in read_rows(path):
                if _is_passage(row):
                    count += 1
                    with row.placed():
                        yield Passage.from_json(row.value)
                    continue
                dataset, split = origin_of_row(row, path)
                questions.append(question_of(row, dataset, split, notes))
                if dataset and split:
                    published.setdefault((dataset, split), []).append(questions[-1])
        if not count:
            raise DataError('the sources hold no passage; add the corpus file, whose lines are {"id", "contents"}')

    return ImportedData(passages(), questions, notes, published=published)


def _begins_with_passage(path: Path) -> bool:
    first = next(read_rows(path), None)
    return first is not None and _is_passage(first)


def _is_passage(row: SourceRow) -> bool:
    return not any(row.has(name) for name in (*ASKED, "prompt"))


def origin_of_row(row: SourceRow, path: Path) -> tuple[str, str]:
    """Data set and split of a question, from its row or else from its file's path; empty if unknown."""
    dataset, split = origin_of(path) or ("", "")
    return (row.text_or_empty("data_source") or dataset, row.row_or_empty("extra_info").text_or_empty("split") or split)


def question_of(row: SourceRow, dataset: str, split: str, notes: Counter[str]) -> Question:
    """The question of a row, with gold answers and choices."""
    text = next((row.text(name) for name in ASKED if row.has(name)), None)
    if text is None:  # an empty cell is counted with the questions without a text
        is_empty = not row.has("prompt") and any(name in row.value for name in ASKED)
        text = "" if is_empty else _question_in_prompt(row, notes)
    meta: JsonObject = {**({"data_source": dataset} if dataset else {}), **row.meta("prompt"), **_details(row)}
    question = Question(_id(row, dataset, split, text), text, _answers(row), row.answers("gold_ids"), meta=meta)
    if not (choices := _choices(row)):
        return question
    notes[MULTIPLE_CHOICE] += 1
    texts = [text for _, text in choices]
    answers = correct_texts(row, question.answers, choices)
    meta = {**meta, "choices": [*texts]}
    return replace(question, question=with_choices(text, texts), search_text=text, answers=answers, meta=meta)


def with_choices(question: str, choices: Sequence[str]) -> str:
    """The question, then its choices."""
    return f"{question} Choices: {' | '.join(choices)}"


def _id(row: SourceRow, dataset: str, split: str, text: str) -> str:
    """The row's id after its data set's name (`nq/train_0`), since several sets have a `train_0`.

    Some rows of Search-R1 have split and number instead, and tables may have neither.
    """
    index = row.row_or_empty("extra_info").text_or_empty("index")
    ident = row.text_or_empty("id") or (f"{split}_{index}" if index else digest_of(text)[:16])
    return f"{dataset}/{ident}" if dataset else ident


def _details(row: SourceRow) -> JsonObject:
    """The short fields of `metadata`, and the question's type."""
    metadata = row.value.get("metadata")
    if not isinstance(metadata, dict):
        return {}
    short_values: JsonObject = {name: value for name, value in metadata.items() if len(json.dumps(value)) <= DETAIL}
    kind: JsonObject = {"type": metadata["type"]} if isinstance(metadata.get("type"), str) else {}
    return {**kind, **({"metadata": short_values} if short_values else {})}


def _answers(row: SourceRow) -> tuple[str, ...]:
    """The gold answers, from the first field that holds any; empty for test rows."""
    for name in _GOLDS:
        if answers := row.answers(name):
            return (*answers, *row.answers("answer_aliases"))
    graded = row.row_or_empty("reward_model")
    has_target = graded.has("ground_truth") and isinstance(graded.parsed("ground_truth"), dict)
    return graded.row("ground_truth").answers("target") if has_target else graded.answers("ground_truth")


def _choices(row: SourceRow) -> list[tuple[str, str]]:
    """The labels and texts of a multiple-choice row. Missing labels become A, B, C …"""
    name = next((name for name in ("choices", "options") if row.has(name)), None)
    if name is None:
        return []
    value = row.parsed(name)
    if isinstance(value, dict) and not isinstance(value.get("text"), list):  # {"A": …, "B": …}
        with row.placed():
            return [(label, read_text(text, name, "a choice")) for label, text in value.items()]
    if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
        choices = row.rows(name)  # {"text": […], "label": […]}, as ARC on the Hub, or [{"label", "text"}, …]
        return [(choice.text_or_empty("label") or letter(at), choice.text("text")) for at, choice in enumerate(choices)]
    return [(letter(at), text) for at, text in enumerate(row.answers(name))]


def letter(index: int) -> str:
    return string.ascii_uppercase[index] if index < len(string.ascii_uppercase) else f"#{index}"


def correct_texts(row: SourceRow, answers: Sequence[str], choices: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The texts of the correct choices. A number is a position; a text is a choice, its label or a position."""
    texts = [text for _, text in choices]
    if not answers and row.has("answerKey"):
        key = row.text("answerKey")
        return _only_match(row, key, {text for label, text in choices if label == key})
    numbers = next((_numbers(row.value[name]) for name in _GOLDS if row.answers(name)), False)
    correct_texts: list[str] = []
    for answer in answers:
        match = _POSITION.fullmatch(answer)
        matching_texts = {texts[int(match[1])]} if match is not None and int(match[1]) < len(texts) else set[str]()
        if not numbers:
            matching_texts |= {text for label, text in choices if answer in (label, text)}
        correct_texts += _only_match(row, answer, matching_texts)
    return tuple(dict.fromkeys(correct_texts))


def _only_match(row: SourceRow, answer: str, matching_texts: Set[str]) -> tuple[str]:
    if len(matching_texts) == 1:
        return (next(iter(matching_texts)),)
    fault = "several choices as a text, a label or" if matching_texts else "neither a choice nor a label nor"
    raise DataError(
        f"{row.where}: the gold answer {answer!r} is {fault} a position in the choices, counted from 0; write the text "
        "of the choice"
    )


def _numbers(value: Json) -> bool:
    """Whether gold answers are numbers."""
    return all(map(_numbers, value)) if isinstance(value, list) else isinstance(value, int | float)


def _question_in_prompt(row: SourceRow, notes: Counter[str]) -> str:
    """The question in the user's last message: the rest of the last line that begins with or contains `Question:`.

    A sentence after the question, such as an instruction on the format of the answer, is dropped and counted.
    """
    prompt = row.parsed("prompt")
    messages = row.rows("prompt") if isinstance(prompt, list) else []
    from_user = [message for message in messages if not message.has("role") or message.text("role") == "user"]
    text = from_user[-1].text("content") if from_user else prompt if isinstance(prompt, str) else ""
    marked = [*_AT_START.finditer(text)] or [*_INSIDE.finditer(text)]
    if not marked:
        raise DataError(f"{row.where}: the prompt holds no `Question: …` of a user and there is no 'question'")
    line = marked[-1][1].strip()
    tail = _TAIL.search(line)
    if tail is not None:
        notes["instructions after the question of a prompt, left out"] += 1
    return line[: tail.start()] if tail else line
