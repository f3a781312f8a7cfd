import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.console import Console
from tests.measure.samples import MIRA, ORBO, QUESTION, fault, run, search_of

from coseek.cli.commands.leaderboard import Leaderboard, make_leaderboard, named_run
from coseek.data.grade_cache import Verdict
from coseek.data.trajectory import Trajectory
from coseek.measure.agreement import Agreement, agreement, agreement_table, agreements
from coseek.measure.intervals import Interval
from coseek.measure.score import ScoredRun, Scores, Verdicts, score_run, score_runs
from coseek.measure.table import Table, comparison_table, group_table, main_table, scores_json

NAME = "a|b [red] <i>"


def scores() -> Scores:
    return score_runs({NAME: [run(search_of("orbo", ORBO), answer="Zun")], "after": [run(search_of("mira", MIRA))]})


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


# --- leaderboards


def rows(right: int, wrong: int, faults: int = 0) -> list[Trajectory]:
    made = [
        run(question=replace(QUESTION, id=f"q{n}"), answer="Velora" if n < right else "Zun")
        for n in range(right + wrong)
    ]
    return made + [fault(replace(QUESTION, id=f"q{right + wrong + n}")) for n in range(faults)]


def board(**more: object) -> Leaderboard:
    cells = {("weak", "nq"): rows(2, 8), ("weak", "hotpotqa"): rows(1, 3), ("strong", "nq"): rows(9, 1),
             ("strong", "hotpotqa"): rows(2, 2), ("<b>part|ly</b>", "hotpotqa"): rows(3, 0, faults=1)}  # fmt: skip
    runs: dict[tuple[str, str], ScoredRun] = {key: score_run(key[0], cell) for key, cell in cells.items()}
    return make_leaderboard(runs, "em", in_domain=("nq",), by=["Judge: nobody."])


def test_a_run_in_a_folder_with_an_equals_sign_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=1e-3" / "run").mkdir(parents=True)
    assert named_run("lr=1e-3/run") == (None, "lr=1e-3/run")
    assert named_run("mine=lr=1e-3/run") == ("mine", "lr=1e-3/run")
    assert named_run("bm25 k=5=lr=1e-3/run") == ("bm25 k=5", "lr=1e-3/run")
    assert named_run("mine=run") == ("mine", "run") and named_run("run") == (None, "run")


def test_sets_in_domain_come_first_are_marked_and_averaged_apart() -> None:
    table = board().table()
    assert table.columns == ("em", "nq *", "hotpotqa", "macro in domain", "macro out of domain", "macro", "micro")
    strong = table.rows[0]
    shown = [cell.partition(" ")[0] for cell in strong]
    assert shown == ["strong", "0.900", "0.500", "0.900", "0.500", "0.700", "0.786"]


def test_systems_are_ranked_and_those_that_lack_a_set_have_no_mean_and_come_last() -> None:
    assert board().systems == ["strong", "weak", "<b>part|ly</b>"]
    assert board().table().rows[-1][1] == board().table().rows[-1][-1] == "–"


def test_faults_and_missing_questions_are_said_below_the_table() -> None:
    notes = " ".join(board().notes())
    assert "<b>part|ly</b> on hotpotqa: 1 trajectories have a fault" in notes
    assert "<b>part|ly</b> on hotpotqa: 1 questions are missing" in notes
    assert "strong on" not in notes
    assert "Judge: nobody." in notes


def test_an_unreachable_judge_gives_no_lower_bound_of_nothing() -> None:
    verdicts: Verdicts = {(f"q{n}", "Zun"): Verdict(f"q{n}", "Zun", None, fault="refused") for n in range(2)}
    runs = {("a", name): score_run("a", rows(0, 2), verdicts) for name in ("nq", "hotpotqa")}
    board = make_leaderboard(runs, "gen_acc")
    assert set(board.table().rows[0][1:]) == {"–"}
    assert "a: the judge did not reply, 4 of 4: refused; the same command asks again." in board.notes()


def test_a_question_that_a_system_was_not_asked_is_missing_where_another_was() -> None:
    runs = {("a", "nq"): score_run("a", rows(3, 3)), ("b", "nq"): score_run("b", rows(1, 1))}
    assert make_leaderboard(runs, "em").cells["b", "nq"].missing == 4


def test_a_metric_that_some_questions_cannot_have_is_not_missing() -> None:
    bare = run(question=replace(QUESTION, id="q7", gold_ids=()))
    runs = {("a", "nq"): score_run("a", [*rows(1, 0), bare])}
    assert make_leaderboard(runs, "recall").cells["a", "nq"].missing == 0


def test_a_name_breaks_neither_the_page_nor_the_table() -> None:
    page, text = board().html(), board().table().markdown()
    assert "<b>part" not in page and "&lt;b&gt;part|ly" in page and "<b>part\\|ly</b>" in text


# --- two judges


def verdicts(*rulings: bool | None) -> Verdicts:
    return {("q", str(n)): Verdict("q", str(n), right) for n, right in enumerate(rulings)}


def test_cohens_kappa_worked_by_hand() -> None:
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: observed .7, expected .5·.6 + .5·.4 = .5.
    first = verdicts(*[True] * 25, *[False] * 25)
    second = verdicts(*[True] * 20, *[False] * 5, *[True] * 10, *[False] * 15)
    result = agreement(first, second)
    assert (result.both_yes, result.only_first, result.only_second, result.both_no) == (20, 5, 10, 15)
    assert result.share is not None and result.share.mean == pytest.approx(0.7)
    assert result.kappa == pytest.approx(0.4)


def test_where_both_say_one_word_only_kappa_is_unknown() -> None:
    result = agreement(verdicts(True, True), verdicts(True, True))
    assert result.kappa is None and result.share is not None and result.share.mean == 1
    assert agreement({}, {}).kappa is None


def test_every_pair_of_judges_is_compared_and_an_unreadable_verdict_counts_for_neither() -> None:
    judges = {"a": verdicts(True, False, True, None), "b": verdicts(True, True, False), "c": verdicts(False)}
    pairs = agreements(judges)
    assert [*pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    counts = {"judged": 3, "unread": 1, "both_yes": 1, "both_no": 0, "only_first": 1, "only_second": 1}
    share = {"mean": pytest.approx(1 / 3), "low": 0.0, "high": 1.0, "n": 3}
    assert pairs["a", "b"].to_json() == {**counts, "share": share, "kappa": pytest.approx(-0.5)}
    assert (pairs["a", "c"].judged, pairs["a", "c"].unread) == (1, 3)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_kappa_is_symmetric_at_most_one_and_one_only_for_full_agreement(pairs: list[tuple[bool, bool]]) -> None:
    first, second = verdicts(*(ruling for ruling, _ in pairs)), verdicts(*(other for _, other in pairs))
    straight, turned = agreement(first, second), agreement(second, first)
    assert straight.kappa == turned.kappa
    if straight.kappa is not None:
        assert -1 <= straight.kappa <= 1
        assert (straight.kappa == 1) == (first == second)


def test_two_judges_are_one_row_with_every_count_in_its_column() -> None:
    judged = Agreement(20, 15, 5, 10, 3, Interval(0.7, 0.58, 0.82, 50))
    assert agreement_table({("a", "b"): judged}) == Table(
        ("judges", "responses", "agree", "Cohen's κ", "only the first says yes", "only the second", "unreadable"),
        (("a · b", "50", "0.700 [0.580, 0.820]", "0.400", "5", "10", "3"),),
    )
