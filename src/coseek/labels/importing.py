"""Import of labels: training rows of tevatron's form as a label folder, each query as the text that an encoder reads.

A row is `{query_id, query, positive_passages: [{docid, title, text}], negative_passages: […]}`; `title` may be missing.
Its query was made by a view already, so it is kept as it is whatever view the trained encoder has (`Query.given`). Each
positive is a label set of its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, atomic_folder, check_output_folder
from coseek.core.fingerprint import digest_of, file_digest
from coseek.core.lock import lock_beside
from coseek.data.imports._sources import SourceRow, expand, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.maker import Labelled
from coseek.retrieval.query import Query

_IDS = (
    re.compile(r"(?P<question>.+?)/(?P<seed>\d{1,18})/(?P<search>\d{1,9})(?:/(?P<copy>[1-9]\d{0,8}))?", re.DOTALL),
    re.compile(r"(?P<question>.+)_turn(?P<search>\d{1,9})", re.DOTALL),
)
"""Forms of `query_id` that name the question: our own, and that of Tevatron/AgentIR-data."""


@dataclass
class LabelImport:
    """Summary of an import."""

    rows: int = 0
    sets: int = 0
    repeated: int = 0
    """Passages that are repeated in a row, and left out."""
    turns: dict[TurnId, Query] = field(default_factory=dict)
    """The query of each turn, in the order of the rows."""
    without_positive: int = 0
    _copies: Counter[TurnId] = field(default_factory=Counter)

    def to_json(self) -> JsonObject:
        counts = ("rows", "sets", "without_positive", "repeated")
        return {"turns": len(self.turns), **{name: getattr(self, name) for name in counts}}

    def add_row(self, row: SourceRow, append: Callable[[Labelled], None]) -> None:
        """Append the label sets of a row. Raises `DataError` for the id of an earlier row with another query."""
        self.rows += 1
        match = next(filter(None, (pattern.fullmatch(row.text("query_id")) for pattern in _IDS)), None)
        parts = match.groupdict() if match else {"question": row.text("query_id")}
        turn = TurnId(parts["question"], int(parts.get("seed") or 0), int(parts.get("search") or 0))
        query = Query(row.text("query"), given=True)
        if self.turns.setdefault(turn, query) != query:
            raise DataError(
                f"{row.where}: the query_id {row.text('query_id')!r} has another query in an earlier row; give each "
                "query an id of its own"
            )
        positives, negatives = self._passages(row, "positive_passages"), self._passages(row, "negative_passages")
        self.repeated += len(positives.keys() & negatives.keys())
        passages = positives | {ident: passage for ident, passage in negatives.items() if ident not in positives}
        candidates = tuple(Candidate(passage, rank) for rank, passage in enumerate(passages.values(), start=1))
        if not positives:
            self.without_positive += 1
            append(DroppedTurn(turn, "no-positive"))
        for ident in positives:
            copy = max(self._copies[turn], int(parts.get("copy") or 0))
            self._copies[turn] = copy + 1
            negative_ids = tuple(name for name in negatives if name not in positives)
            question = Question(turn.question_id, turn.question_id)
            append(LabelSet(turn, question, query, candidates, ident, negative_ids, copy=copy))
            self.sets += 1

    def _passages(self, row: SourceRow, name: str) -> dict[str, Passage]:
        passages: dict[str, Passage] = {}
        for record in row.rows(name) if row.has(name) else ():
            passage = Passage(record.text("docid"), record.text_or_empty("title"), record.text("text"))
            self.repeated += passage.id in passages
            passages.setdefault(passage.id, passage)
        return passages


def import_labels(sources: Sequence[Path], out: Path) -> LabelImport:
    """Write the rows of files (JSON lines, JSON, parquet; plain or .gz) as the label folder `out`.

    The question of a row is what its id names before the turn; its text is not known, so the id stands for it. Raises
    `DataError` for a folder with other contents, a row of another shape, an id with two queries, and files without a
    positive passage; nothing is written then.
    """
    files = expand(sources, "labels")
    with lock_beside(out, again=False):
        check_output_folder(out, "labels.yaml")
        LabelFolder.refuse_old(out)
        summary = LabelImport()

        def fill(folder: Path) -> None:
            names: list[Json] = [path.name for path in files]
            identity = digest_of(*map(file_digest, files))
            labels = LabelFolder.create(folder, {"imported": names, "view": "given"}, identity)
            with labels.appending() as append:
                for path in files:
                    for row in read_rows(path):
                        summary.add_row(row, append)
            if not summary.sets:
                raise DataError(f"no row with a positive passage in {', '.join(map(str, sources))}; check the files")
            labels.arrange(list(summary.turns))
            labels.release()

        atomic_folder(out, fill)
    return summary
