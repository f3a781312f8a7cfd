"""My part: lines of `question TAB answer TAB passage`."""

from collections.abc import Sequence
from pathlib import Path

from coseek.core.errors import DataError
from coseek.data.imports._sources import ImportedData, PassageCollector
from coseek.data.question import Question

EXAMPLE = "Who built the bridge?\tAda\tAda built the bridge in 1801.\n"
"""A file with which `coseek check` tries the format."""


def read(sources: Sequence[Path]) -> ImportedData:
    """Read all passages and questions of the sources."""
    collector, questions = PassageCollector(), list[Question]()
    for path in sources:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            cells = line.split("\t")
            if len(cells) != 3:
                raise DataError(f"{path}, line {number}: three columns are needed, not {len(cells)}")
            gold = collector.add(cells[1], cells[2])
            questions.append(Question(f"{path.stem}-{number}", cells[0], (cells[1],), (gold,), hops=1))
    return ImportedData(collector.passages, tuple(questions))
