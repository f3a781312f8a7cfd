import io
import json

import pytest
from rich.console import Console
from tests.measure.samples import MIRA, ORBO, found, run

from coseek.measure.score import Scores, score_runs
from coseek.measure.table import Table, comparison_table, group_table, main_table, scores_json

NAME = "a|b [red] <i>"


def scores() -> Scores:
    return score_runs({NAME: [run(found("orbo", ORBO), answer="Zun")], "after": [run(found("mira", MIRA))]})


def terminal(table: Table, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(table.rich("scores"))
    return out.getvalue()


def test_a_name_cannot_break_a_markdown_table() -> None:
    table = Table(("run", "em"), (("a|b\nc", "1"),))
    assert table.markdown() == "| run | em |\n| --- | --- |\n| a\\|b c | 1 |\n"


def test_a_name_in_the_terminal_is_text_and_not_markup() -> None:
    assert NAME in terminal(group_table(scores()))


def test_a_wide_table_is_flipped_in_the_terminal() -> None:
    text = terminal(main_table(scores()), width=70)
    assert "recall_per_search" in text
    assert "…" not in text


def test_a_table_of_any_shape_can_be_shown() -> None:
    for width in range(1, 10):
        for height in range(1, 10):
            table = Table(tuple(f"c{n}" for n in range(width)), tuple(tuple("x" * width) for _ in range(height)))
            assert terminal(table, width=200).count("x") >= width * height


def test_flipping_twice_gives_the_table_back() -> None:
    table = main_table(scores())
    assert table.flipped.flipped == table


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 cells in a table of 2"):
        Table(("a", "b"), (("1",),))


def test_a_metric_nobody_has_is_a_dash_by_group_and_no_column() -> None:
    bare = score_runs({"a": [run()]})
    assert group_table(bare, "recall_per_search").rows == (("a", "–", "–"),)
    assert "recall_per_search" not in main_table(bare).columns


def test_comparisons_show_sign_interval_and_p() -> None:
    table = comparison_table(scores(), ["em"])
    assert table.columns == ("runs", "metric", "questions", "difference", "p", "McNemar")
    assert table.rows == ((f"after − {NAME}", "em", "1", "+1.000", "1.000", "1.000"),)


def test_several_comparisons_are_corrected_and_the_table_says_so() -> None:
    table = comparison_table(scores(), ["em", "agent_tokens"])
    assert table.columns[4:] == ("p", "p (Holm)", "McNemar")
    assert [row[4:] for row in table.rows] == [("1.000", "1.000", "1.000"), ("1.000", "1.000", "–")]
    assert "corrected for the 2 comparisons" in table.notes[-1]


def test_the_json_is_plain_and_complete() -> None:
    tree = json.loads(json.dumps(scores_json(scores()), allow_nan=False))
    assert tree["summaries"][0]["metrics"]["em"] == {"mean": 0, "low": None, "high": None, "n": 1}
    assert tree["comparisons"][0]["metrics"]["em"]["p"] == 1
    assert tree["stops"] == {NAME: {"answered": 1}, "after": {"answered": 1}}
