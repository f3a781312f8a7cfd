from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coseek.core.errors import DataError
from coseek.core.text import HIDDEN
from coseek.data.trec import read_qrels, read_run, strictly_decreasing, trec_id, trec_order, write_qrels, write_run

IDENTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
RANKED = st.dictionaries(IDENTS, st.floats(allow_nan=False), max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trec")


@given(st.dictionaries(IDENTS, RANKED, min_size=1, max_size=3))
def test_a_run_comes_back_in_the_order_it_was_given(folder: Path, results: dict[str, dict[str, float]]) -> None:
    """Whatever is in the ids, and though equal, infinite and nearly equal scores would be sorted otherwise."""
    lists = {question: list(scores.items()) for question, scores in results.items()}
    written = {trec_id(question): [trec_id(ident) for ident, _ in rows] for question, rows in lists.items() if rows}
    alike = any(len(set(idents)) < len(idents) for idents in written.values())
    if alike or not written or len({trec_id(question) for question in lists}) < len(lists):
        return
    write_run(folder / "a.run", lists, "our run")
    read = read_run(folder / "a.run")
    assert {question: [ident for ident, _ in rows] for question, rows in read.items()} == written


@given(st.dictionaries(IDENTS, st.dictionaries(IDENTS, st.integers(-2, 9), min_size=1), min_size=1, max_size=3))
def test_qrels_come_back_as_they_were(folder: Path, qrels: dict[str, dict[str, int]]) -> None:
    write_qrels(folder / "qrels.txt", qrels)
    expected = {trec_id(query): {trec_id(ident): grade for ident, grade in row.items()} for query, row in qrels.items()}
    if sum(map(len, expected.values())) == sum(map(len, qrels.values())):  # no two ids became one
        assert read_qrels(folder / "qrels.txt") == expected


@given(IDENTS)
def test_a_written_id_has_no_blanks_and_others_stay_as_they_are(ident: str) -> None:
    written = trec_id(ident)
    assert not any(character.isspace() for character in written)
    assert trec_id(written) == written
    if not any(character.isspace() for character in ident) and not HIDDEN.search(ident):
        assert written == ident
    assert not HIDDEN.search(written)


def test_scores_fall_at_every_step_and_stay_where_they_can() -> None:
    assert strictly_decreasing([3, 2.5, -1]) == [3, 2.5, -1]
    made = strictly_decreasing([1.0, 1.0, 1.0 + 1e-12, 0.5])
    assert all(np.float32(high) > np.float32(low) for high, low in pairwise(made))
    assert (made[0], made[-1]) == (1.0, 0.5)
    with pytest.raises(DataError, match="not a number"):
        strictly_decreasing([1.0, float("nan")])


def test_equal_scores_fall_by_id_as_trec_eval_sorts_them() -> None:
    scored = [("a", 1.0), ("b", 1.0 + 1e-12), ("é", 1.0), ("c", 2.0)]
    assert [ident for ident, _ in trec_order(scored)] == ["c", "é", "b", "a"]


def test_the_scores_of_a_run_file_count_and_not_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("q Q0 low 1 0.5 x\n\nq Q0 high 2 7e-1 x\r\n", encoding="utf-8")
    assert read_run(tmp_path / "r") == {"q": [("high", pytest.approx(0.7)), ("low", 0.5)]}


BAD_RUNS = {
    "": "holds no results",
    "q Q0 d 1 0.5\n": "line 1: 5 columns",
    "q Q0 d 1 0.5 x\nq Q0 my doc 2 0.4 x\n": "line 2: 7 columns",
    "q Q0 d 1 half x\n": "line 1: the score 'half'",
    "q Q0 d 1 nan x\n": "line 1: the score 'nan'",
    "q Q0 d 1 0.5 x\nq Q0 d 2 0.4 x\n": "line 2: the passage 'd' stands twice",
}
BAD_QRELS = {
    "\n": "holds no judgements",
    "q 0 d\n": "line 1: 3 columns",
    "q 0 d 1 1\n": "line 1: 5 columns",
    "q 0 d yes\n": "line 1: the grade 'yes'",
    "q 0 d 0.5\n": "line 1: the grade '0.5'",
    "q 0 d 1\nq 0 d 2\n": "line 2: 'd' has another grade",
    "q\td\t1\nq\td\tyes\n": "line 2: the grade 'yes'",
}


@pytest.mark.parametrize("text", [*BAD_RUNS, *BAD_QRELS])
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=BAD_RUNS.get(text) or BAD_QRELS[text]):
        (read_run if text in BAD_RUNS else read_qrels)(tmp_path / "r")


def test_the_qrels_of_beir_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq 1\tmy doc\t2\nq 1\td\t0\n", encoding="utf-8")
    assert read_qrels(tmp_path / "test.tsv") == {"q 1": {"my doc": 2, "d": 0}}


def test_two_ids_that_would_become_one_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same id"):
        write_run(tmp_path / "r", {"q": [("a b", 2.0), ("a%20b", 1.0)]}, "x")
    with pytest.raises(DataError, match="empty id"):
        write_run(tmp_path / "r", {"q": [("", 2.0)]}, "x")
    assert list(tmp_path.iterdir()) == []
