"""WebShaper: deep-research questions with the addresses of the web pages that answer them (Tao et al., arXiv
2507.15061).

    {"id", "question", "formalization", "answer", "urls": ["https://…", …]}

It has no corpus; `coseek data collect` makes one. `gold_ids` are the addresses in canonical form (`canonical_url`).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from coseek.core.connections import canonical_url
from coseek.data.imports._sources import ImportedData, SourceRow, read_rows
from coseek.data.question import Question

NO_ADDRESS = "urls that are no web address, left out"
NO_PAGE = "questions without a gold page"


def read(sources: Sequence[Path]) -> ImportedData:
    """Every row is a question."""
    notes = Counter[str]()
    questions = [_question(row, notes) for path in sources for row in read_rows(path)]
    return ImportedData((), questions, +notes, alone=True)


def _question(row: SourceRow, notes: Counter[str]) -> Question:
    urls = [canonical_url(url) if isinstance(url, str) else "" for url in row.items("urls")]
    gold_ids = tuple(dict.fromkeys(filter(None, urls)))
    notes[NO_ADDRESS] += urls.count("")
    notes[NO_PAGE] += not gold_ids
    meta = {"dataset": "webshaper", **row.meta("formalization")}
    return Question(row.text("id"), row.text("question"), row.answers("answer"), gold_ids, meta=meta)
