"""Fears about rows of labels: a row that reads back as another, an export that names a negative as the positive."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.labels.test_label_folder import LABEL, PAGES

from coseek.core.errors import UnknownName
from coseek.labels.label_set import LabelSet, tevatron_row, write_tevatron


@pytest.mark.parametrize("targets", [None, (0.5, 0.25, 0.25)])
def test_a_row_reads_back_as_what_was_written(targets: tuple[float, ...] | None) -> None:
    for made in (LABEL, replace(LABEL, targets=targets, copy=2, trajectory="a digest")):
        row = json.loads(json.dumps(made.to_json()))
        assert LabelSet.from_json(row) == made and ("trajectory" in row) == bool(made.trajectory)
        assert row.get("targets") == (None if made.targets is None else list(made.targets))


def test_rows_of_tevatron_name_the_turn_and_hold_positive_and_negatives_by_text(tmp_path: Path) -> None:
    pages = [{"docid": page.id, "title": page.title, "text": page.text} for page in PAGES]
    row = {
        "query_id": "q/0/0",
        "query": "who",
        "positive_passages": pages[:1],
        "negative_passages": pages[1:],
    }
    assert tevatron_row(LABEL, "query") == row
    assert write_tevatron(tmp_path / "rows.jsonl", [LABEL, replace(LABEL, copy=1)], "query") == 2
    written = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == [row, row | {"query_id": "q/0/0/1"}]
    with pytest.raises(UnknownName):
        write_tevatron(tmp_path / "none.jsonl", [], "no such view")
    assert not (tmp_path / "none.jsonl").exists()
