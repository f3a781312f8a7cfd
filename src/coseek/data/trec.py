"""TREC qrels and run files, as trec_eval reads them.

    q1 0 d7 2                       qrels: question, (unused), passage, grade; a grade above 0 is relevant
    q1 Q0 d7 1 12.5 bm25            run: question, (unused), passage, rank, score, tag

Blanks separate columns, so blanks and control characters in an id are percent-encoded (`Ada%20Lovelace`) and never
decoded: compare ids with those of a file through `trec_id`. Other ids are unchanged, percent signs included.

A run file is ordered by float32 score, then by falling id; its ranks are ignored. Written files keep the order of the
passages (`strictly_decreasing`).
"""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import numpy as np

from coseek.core.errors import DataError
from coseek.core.files import atomic_write, read_lines
from coseek.core.text import HIDDEN

Qrels: TypeAlias = dict[str, dict[str, int]]
"""Question → passage → grade."""
Ranked: TypeAlias = list[tuple[str, float]]
"""Passages with their scores, best first."""

_ENCODED = re.compile(rf"\s|{HIDDEN.pattern}")
_FIELD = re.compile(r"[^ \t\r\n\f\v]+")
_WHOLE = re.compile(r"([+-]?[0-9]{1,18})(?:\.0*)?")
_LARGEST = float(np.finfo(np.float32).max)
_WRITTEN = 3e38
"""The largest score that is written. Below `-_WRITTEN`, float32 still has room for falling scores."""


def trec_id(ident: str) -> str:
    """An id as a TREC file writes it."""
    if not ident:
        raise DataError("an empty id cannot stand in a TREC file; give every question and passage an id")
    return _ENCODED.sub(lambda match: quote(match.group()), ident)


def read_qrels(path: Path) -> Qrels:
    """Read TREC qrels, or BEIR's three tab-separated columns under a header: question, passage, grade.

    BEIR's columns may be quoted, as in CSV. A grade is a whole number, which may be written as `1.0`.
    """
    qrels: Qrels = {}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        columns = _split_columns(line.rstrip("\r\n"))
        beir = len(columns) == 3
        columns = columns if beir else _FIELD.findall(line)
        if beir and number == 1 and _whole(columns[2]) is None:
            continue  # the header
        if not beir and len(columns) != 4:
            raise DataError(f"{where}: {len(columns)} columns; qrels have 4: question, 0, passage, grade")
        question, passage, grade = columns[0], columns[-2], _whole(columns[-1])
        if grade is None:
            raise DataError(f"{where}: the grade {columns[-1]!r} is not a whole number")
        if qrels.setdefault(question, {}).setdefault(passage, grade) != grade:
            raise DataError(f"{where}: {passage!r} has another grade for {question!r} further up; keep one of them")
    if not qrels:
        raise DataError(f"{path} holds no judgements; it needs at least one line")
    return qrels


def write_qrels(path: Path, qrels: Mapping[str, Mapping[str, int]]) -> None:
    """Write qrels atomically."""
    with atomic_write(path) as file:
        for question, grades in qrels.items():
            for passage, grade in grades.items():
                file.write(f"{trec_id(question)} 0 {trec_id(passage)} {grade}\n")


def read_run(path: Path) -> dict[str, Ranked]:
    """Read a run file: question → passages in trec_eval's order. Raises `DataError`."""
    by_question: dict[str, dict[str, float]] = {}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        columns = _FIELD.findall(line)
        if len(columns) != 6:
            raise DataError(
                f"{where}: {len(columns)} columns; a TREC run has 6: question, Q0, passage, rank, score, tag"
            )
        question, _, passage, _, score_text, _ = columns
        scores = by_question.setdefault(question, {})
        if passage in scores:
            raise DataError(f"{where}: the passage {passage!r} stands twice for the question {question!r}; keep one")
        scores[passage] = _score(score_text, where)
    if not by_question:
        raise DataError(f"{path} holds no results; it needs at least one line")
    return {question: trec_order(scores.items()) for question, scores in by_question.items()}


def write_run(path: Path, rankings: Mapping[str, Sequence[tuple[str, float]]], tag: str) -> None:
    """Write a run file atomically. A question without passages has no line."""
    with atomic_write(path) as file:
        for question, ranked in rankings.items():
            passages = [trec_id(passage) for passage, _ in ranked]
            if len(set(passages)) < len(passages):
                raise DataError(f"two passages found for {question!r} have the same id in a TREC file; rename one")
            scores = strictly_decreasing([score for _, score in ranked])
            for rank, (passage, score) in enumerate(zip(passages, scores, strict=True), start=1):
                file.write(f"{trec_id(question)} Q0 {passage} {rank} {score:.9g} {trec_id(tag)}\n")


def trec_order(scored: Iterable[tuple[str, float]]) -> Ranked:
    """Passages by falling float32 score; equal scores by falling id (its UTF-8 bytes)."""
    # The second sort is stable.
    by_id = sorted(scored, key=lambda item: item[0].encode(), reverse=True)
    return sorted(by_id, key=lambda item: -_float32(item[1]))


def strictly_decreasing(scores: Iterable[float]) -> list[float]:
    """The scores as strictly falling float32, so that sorting keeps the order.

    A score that is not below the one before becomes the next smaller float32. Scores are clipped to ±3e38.
    """
    decreasing: list[float] = []
    for score in scores:
        if score != score:
            raise DataError("a score is not a number, so it has no place in a ranking")
        rounded = np.float32(_float32(score, _WRITTEN))
        if decreasing and not rounded < np.float32(decreasing[-1]):
            rounded = np.nextafter(np.float32(decreasing[-1]), np.float32(-np.inf))
        decreasing.append(float(rounded))
    return decreasing


def _float32(score: float, largest: float = _LARGEST) -> float:
    return float(np.float32(min(max(score, -largest), largest)))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in read_lines(path) if line.strip())


def _score(text: str, where: str) -> float:
    with suppress(ValueError):
        if (score := float(text)) == score:
            return score
    raise DataError(f"{where}: the score {text!r} is not a number")


def _split_columns(line: str) -> list[str]:
    """The tab-separated columns of a line. Quotes are removed if there are three columns, as in CSV."""
    columns: list[str] = []
    if '"' in line:
        with suppress(csv.Error):
            columns = next(csv.reader([line], delimiter="\t"))
    return columns if len(columns) == 3 else line.split("\t")


def _whole(text: str) -> int | None:
    """The whole number in a text; `None` for any other text."""
    number = _WHOLE.fullmatch(text.strip())
    return None if number is None else int(number[1])
