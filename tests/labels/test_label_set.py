"""Fears about rows of labels: a row that reads back as another, labels of a run that has changed, an export that
names a negative as the positive."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.labels.test_label_folder import LABEL, PAGES
from tests.measure.samples import MIRA, ORBO, QUESTION, found, run

from coseek.core.errors import UnknownName
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.labels.label_set import LabelSet, tevatron_row, trajectory_digest, write_tevatron


@pytest.mark.parametrize("targets", [None, (0.5, 0.25, 0.25)])
def test_a_row_reads_back_as_what_was_written(targets: tuple[float, ...] | None) -> None:
    for made in (LABEL, replace(LABEL, targets=targets, copy=2, trajectory="a digest")):
        row = json.loads(json.dumps(made.to_json()))
        assert LabelSet.from_json(row) == made and ("trajectory" in row) == bool(made.trajectory)
        assert row.get("targets") == (None if made.targets is None else list(made.targets))


def test_labels_are_kept_where_only_clocks_and_likelihoods_differ_and_by_nothing_else() -> None:
    made = run(found("orbo", ORBO))
    # The value in stored label folders: with another one all their labels would be made again.
    assert trajectory_digest(made) == "9650d248f449a643b7dfd06aed7f9603"
    first, *rest = made.segments
    (search,) = made.searches
    others: list[Trajectory] = [
        replace(made, question=replace(QUESTION, answers=("Zun",))),
        replace(made, segments=(replace(first, text="?"), *rest)),
        replace(made, segments=(replace(first, author=Author.AGENT, logprobs=(0.0,) * len(first.ids)), *rest)),
        replace(made, searches=(replace(search, hits=found("orbo", MIRA).hits),)),
        replace(made, searches=(Search("mira", search.hits),)),
        replace(made, stop=StopReason.TURN_LIMIT),
        replace(made, answer="Zun"),
    ]
    assert len({trajectory_digest(one) for one in [made, *others]}) == 8
    unsure = [replace(one, logprobs=tuple(-1.0 for _ in one.logprobs)) for one in made.segments]
    assert trajectory_digest(replace(made, segments=tuple(unsure))) == trajectory_digest(made)


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
