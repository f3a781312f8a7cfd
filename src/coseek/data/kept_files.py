"""Kept files: the names of what coseek keeps in folders of data, runs, labels, indexes and encoders, which no other
output may take."""

import re
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import RECORDS

_OURS = re.compile(r"(corpus|questions\..+|trajectories|labels|dropped|texts)\.jsonl(\.gz)?")
"""Names of files that no other file takes, even where the folder is still to be made."""
_MARKS = (*RECORDS, "index.json", "corpus.jsonl")
"""Files by which the folders of coseek are known."""
_BESIDE = re.compile(
    r"(metrics|tokens|baselines|reply\..+|verdict\..+)\.jsonl|(world|source|synthesis|index|checksums|corpus|encoder)\.json"
)
"""Names of files that coseek keeps beside a mark."""


def check_output_file(path: Path | None, *endings: str) -> None:
    """Refuse a folder, another ending than these, and a file of a data set, a run, labels or an index, where another
    file is to be written."""
    if path is None:
        return
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    if path.suffix not in endings:
        raise DataError(f"{path}: name a file that ends in {' or '.join(endings)}")
    beside = any((path.parent / mark).is_file() for mark in _MARKS)
    if _OURS.fullmatch(path.name) or (beside and _BESIDE.fullmatch(path.name)):
        raise DataError(
            f"{path.name} is the name of a file that coseek keeps in {path.parent}, which would be lost; choose "
            f"another name than {path}"
        )
