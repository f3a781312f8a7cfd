"""Fears about label files: a text that was lost read as another one, rows that an older coseek misreads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.samples import MIRA, ORBO, QUESTION, found, run

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError, UnknownName
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import SCHEMA, Candidate, LabelSet, tevatron_row, trajectory_digest, write_tevatron
from coseek.retrieval.query import Query

PAGES = [Passage(f"p{n}", f"Page {n}", f"word{n} " * 100) for n in range(3)]
LABEL = LabelSet(
    TurnId("q", 0, 0), Question("q", "Who?", ("Ada",)), Query("who"),
    tuple(Candidate(page, rank) for rank, page in enumerate(PAGES, start=1)), "p0", ("p1", "p2"),
)  # fmt: skip


def made(folder: Path) -> LabelFolder:
    with LabelFolder.create(folder, {}, "by hand").appending() as append:
        append(LABEL)
    return LabelFolder(folder)


def test_a_text_that_was_lost_is_missed_and_nothing_takes_its_place(tmp_path: Path) -> None:
    labels = made(tmp_path)
    kept = labels.texts.path.read_text(encoding="utf-8").splitlines(keepends=True)
    labels.texts.path.write_text("".join(kept[:2]), encoding="utf-8")
    with pytest.raises(DataError, match=r"texts\.jsonl lacks the text [0-9a-f]{32}, which a row names"):
        list(LabelFolder(tmp_path).sets())
    with pytest.raises(DataError, match="lacks the text"):
        LabelFolder(tmp_path).arrange([LABEL.turn])
    assert labels.texts.path.read_text(encoding="utf-8") == "".join(kept[:2])


def test_rows_of_turns_that_the_runs_do_not_have_are_refused_before_anything_is_removed(tmp_path: Path) -> None:
    labels = made(tmp_path)
    labels.arrange([LABEL.turn])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match="which the runs do not have; choose another --out"):
        labels.recover({TurnId("another", 0, 0): ""})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_rows_of_a_run_that_was_made_anew_and_searches_no_more_are_removed(tmp_path: Path) -> None:
    with LabelFolder.create(tmp_path, {}, "by hand").appending() as append:
        append(replace(LABEL, trajectory="of the run before"))
    labels = LabelFolder(tmp_path)
    with pytest.raises(DataError, match="which the runs do not have"):
        labels.recover({}, lambda: {("q", 1): "another"})
    with pytest.raises(DataError, match="which the runs do not have"):  # it is there, and only not drawn this time
        labels.recover({}, lambda: {("q", 0): "of the run before"})
    assert labels.recover({}, lambda: {("q", 0): "made anew"}) == set() and not list(labels.sets())


def test_a_row_of_another_schema_is_refused_by_its_number(tmp_path: Path) -> None:
    labels = made(tmp_path)
    labels.sets_path.write_text(json.dumps({**LABEL.to_json(), "schema": 1}) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=f"schema 1; this coseek reads {SCHEMA}: label it again"):
        list(LabelFolder(tmp_path).sets())


# --- rows of labels


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
    row = {"query_id": "q/0/0", "query": "who", "positive_passages": pages[:1], "negative_passages": pages[1:]}
    assert tevatron_row(LABEL, "query") == row
    assert write_tevatron(tmp_path / "rows.jsonl", [LABEL, replace(LABEL, copy=1)], "query") == 2
    written = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in written] == [row, row | {"query_id": "q/0/0/1"}]
    with pytest.raises(UnknownName):
        write_tevatron(tmp_path / "none.jsonl", [], "no such view")
    assert not (tmp_path / "none.jsonl").exists()
