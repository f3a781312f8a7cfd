from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, fault, run, search_of

from coseek.agents.protocol import stored_protocol
from coseek.cli.commands.leaderboard import make_leaderboard
from coseek.core.errors import DataError, UnknownName
from coseek.core.files import JsonObject
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.measure.question_groups import MACRO, MACRO_LARGE
from coseek.measure.score import METRICS, score_run, score_runs, score_trajectory
from coseek.measure.table import comparison_table, dataset_table, grouped_tables, main_table

ONE_HOP = Question("q2", "what is Orbo?", ("company",), ("orbo",), 1, {"kind": "attribute"})
NO_GOLD = Question("q3", "say something", ("hello",))


def batch(answer: str, questions: tuple[Question, ...] = (QUESTION, ONE_HOP, NO_GOLD)) -> list[Trajectory]:
    return [run(search_of("orbo", ORBO), answer=answer, question=question) for question in questions]


def test_every_metric_of_a_run_worked_by_hand() -> None:
    trajectory = run(search_of("orbo", ORBO, OTHER), search_of("mira", MIRA), answer="the city of Velora")
    scores = score_trajectory(trajectory)
    assert scores["em"] == 0
    assert scores["cover_em"] == 1
    assert scores["f1"] == pytest.approx(2 * 1 / (3 + 1))
    assert (scores["recall"], scores["recall_per_search"], scores["all_gold@5"]) == (1, 0.5, 1)
    assert (scores["searches"], scores["turns"], scores["passages"]) == (2, 3, 3)
    assert scores["agent_tokens"] + scores["read_tokens"] == len(trajectory.ids)
    assert (scores["answered"], scores["valid"], scores["truncated"], scores["answer_hit"]) == (1, 1, 0, 1)
    elsewhere = {
        "budgeted_recall", "visits", "missed_visits", "forced", "gen_acc", "judge_acc", "unread_verdicts",
        "context_passages", "context_tokens", "wall_s", "cost_usd",
    }  # fmt: skip
    assert list(scores) == [name for name in METRICS if name not in elsewhere]


def test_a_metric_that_a_question_cannot_have_is_absent() -> None:
    scores = score_trajectory(run(search_of("orbo", ORBO), question=replace(QUESTION, gold_ids=(), answers=())))
    assert not {"em", "cover_em", "f1", "answer_hit", "recall", "recall_per_search", "all_gold@5"} & set(scores)


def test_a_question_whose_gold_answers_nothing_can_match_is_in_no_mean_and_is_named() -> None:
    golds = ("The", "!!!", " ", "\u200b")
    lost = [replace(QUESTION, id=f"lost-{at}", answers=(gold,)) for at, gold in enumerate(golds)]
    scores = score_runs({"a": batch("Velora", (QUESTION, *lost))})
    assert (scores.of("a").metrics["em"].n, scores.of("a").metrics["em"].mean, scores.of("a").questions) == (1, 1.0, 5)
    notes = main_table(scores).notes[1:]
    assert [note.rpartition(": 2 ")[2] for note in notes] == ["(first: lost-0)", "(first: lost-2)"]


def test_an_answer_tells_of_the_use_of_passages_only_where_one_of_them_holds_it() -> None:
    runs = [
        run(search_of("mira", MIRA), answer="in Velora"),
        run(search_of("mira", MIRA), answer="Zun", question=replace(QUESTION, id="wrong")),
        run(search_of("x", OTHER), answer="Velora", question=replace(QUESTION, id="known")),
    ]
    used = score_runs({"a": runs}).of("a").metrics["utilisation"]
    assert (used.mean, used.n) == (0.5, 2)
    assert "utilisation" not in score_trajectory(runs[-1])


def test_money_is_averaged_over_the_questions_whose_price_is_known() -> None:
    paid, free = run(search_of("orbo", ORBO)), run(search_of("orbo", ORBO), question=ONE_HOP)
    scores = score_runs({"a": [replace(paid, cost_usd=0.002), free]})
    assert (scores.of("a").metrics["cost_usd"].mean, scores.of("a").questions) == (0.002, 2)
    assert Trajectory.from_json(replace(paid, cost_usd=0.002).to_json()).cost_usd == 0.002


def test_a_run_cut_by_a_budget_is_truncated_and_scored() -> None:
    scores = score_trajectory(run(search_of("x", OTHER), answer=None, stop=StopReason.TURN_LIMIT, valid=False))
    assert (scores["truncated"], scores["answered"], scores["em"]) == (1, 0, 0)


def test_faults_are_in_no_mean_and_are_counted() -> None:
    runs = [*batch("Velora"), fault(seed=1), fault(replace(QUESTION, id="q9"))]
    summary = score_runs({"a": runs}).of("a")
    assert (summary.questions, summary.rows, summary.faults, summary.missing) == (3, 3, 2, 1)
    assert summary.metrics["em"].mean == pytest.approx(1 / 3)
    notes = main_table(score_runs({"a": runs})).notes
    (note,) = (note for note in notes if "2 trajectories have a fault" in note)
    assert "2 of 2: retriever_error; `coseek run` with --resume" in note


def test_a_run_in_which_a_search_failed_is_a_fault_in_tables_too_and_no_zero() -> None:
    lost = run(search_of("mira", MIRA), Search("orbo", fault="503"), answer="x")
    with pytest.raises(ValueError, match="retriever_error"):
        score_trajectory(lost)
    scores = score_runs({"a": [lost, *batch("Velora", (ONE_HOP,))]})
    summary = scores.of("a")
    assert (summary.rows, summary.faults, scores.stops["a"]) == (1, 1, {"retriever_error": 1, "answered": 1})


def test_missing_questions_are_counted_and_said() -> None:
    scores = score_runs({"a": batch("Velora", (QUESTION,))}, questions=[QUESTION, ONE_HOP])
    assert scores.of("a").missing == 1
    assert any("1 questions are missing" in note for note in main_table(scores).notes)


def test_asking_a_question_twice_does_not_count_it_twice() -> None:
    right = [run(search_of("orbo", ORBO), seed=seed) for seed in range(5)]
    wrong = [run(search_of("orbo", ORBO), answer="Zun", question=ONE_HOP)]
    summary = score_runs({"a": right + wrong}).of("a")
    assert (summary.questions, summary.rows, summary.metrics["em"].mean, summary.metrics["em"].n) == (2, 6, 0.5, 2)


def test_groups_part_the_questions_by_hops_and_kind() -> None:
    scores = score_runs({"a": batch("Velora")}, by=("hops", "kind"))
    counts = {summary.group: summary.questions for summary in scores.summaries}
    assert counts == {"all": 3, "1 hop": 1, "2 hops": 1, "attribute": 1, "composition": 1}
    assert scores.of("a", "2 hops").metrics["em"].mean == 1


def test_later_runs_are_paired_with_the_first_on_shared_questions() -> None:
    scores = score_runs({"before": batch("nothing"), "after": batch("Velora", (QUESTION, ONE_HOP))})
    (everyone,) = [comparison for comparison in scores.comparisons if comparison.group == "all"]
    em = everyone.metrics["em"]
    assert (everyone.run, everyone.against) == ("after", "before")
    assert (em.difference.mean, em.difference.n, em.only_a) == (0.5, 2, 1)
    assert "1 only in before" in comparison_table(scores).notes[1]


def test_different_questions_that_share_an_id_are_never_paired() -> None:
    other = replace(QUESTION, question="where was the founder of Zun born?")
    with pytest.raises(DataError, match="two different questions with the id 'q1'; score runs of different data sets"):
        score_runs({"a": batch("Velora"), "b": batch("Velora", (other, ONE_HOP))})
    with pytest.raises(DataError, match="two different questions"):
        score_runs({"a": batch("Velora", (ONE_HOP,)), "b": batch("Velora", (other,))}, questions=[QUESTION, ONE_HOP])
    scored_runs = {("a", "world"): score_run("a", batch("x")), ("b", "world"): score_run("b", batch("x", (other,)))}
    with pytest.raises(DataError, match="two different questions"):
        make_leaderboard(scored_runs, "em")


def test_the_same_values_get_the_same_interval_in_every_table() -> None:
    questions = tuple(replace(QUESTION, id=f"q{n}") for n in range(20))
    mixed = [
        run(search_of("o", ORBO), answer="Velora" if n % 3 else "Zun", question=q) for n, q in enumerate(questions)
    ]
    scores = score_runs({"a": mixed, "b": mixed})
    assert scores.of("a").metrics["em"] == scores.of("b").metrics["em"] == scores.of("a", "2 hops").metrics["em"]
    assert scores.of("a").metrics["em"] == scores.of("a").metrics["cover_em"]


def test_scoring_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to score"):
        score_runs({"a": []})


def test_misspelt_metrics_and_groups_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="cover_em"):
        score_runs({"a": batch("x")}, metrics=["cover-em"])
    with pytest.raises(UnknownName, match="hops"):
        score_runs({"a": batch("x")}, by=("hop",))


def test_the_order_of_the_trajectories_does_not_matter() -> None:
    assert score_runs({"a": batch("Velora")}).of("a") == score_runs({"a": batch("Velora")[::-1]}).of("a")


@pytest.mark.parametrize(
    ("protocol", "scored"), [("s3", False), ("deepretrieval", False), ("search-r1", True), ("not-loaded", True)]
)
def test_an_agent_that_only_searches_is_not_marked_down_for_giving_no_answer(protocol: str, scored: bool) -> None:
    silent = replace(run(search_of("Orbo", ORBO), answer=None), protocol=protocol)
    assert ("em" in score_trajectory(silent)) is scored
    assert score_trajectory(silent)["answer_hit"] == 0.0
    answered = replace(silent, answer="Velora")  # by a generator, from what was found
    assert score_trajectory(answered)["em"] == 1.0


def test_a_users_protocol_is_read_from_its_file_or_its_loss_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silent, stored = run(search_of("Orbo", ORBO), answer=None), []
    for name, text in (("our-s3", "extends: s3\n"), ("our-react", "extends: react-paper\n"), ("lost", "")):
        (path := tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        settings: JsonObject = {"agent": {"protocol": str(path), "prompt_template": "default"}}
        stored.append(Run.create(tmp_path / name, settings))
    path.unlink()
    known = [stored_protocol(run) is not None for run in stored]
    scores = [score_trajectory(replace(silent, protocol=run.folder.name)) for run in stored]
    assert known == [True, True, False] and ["em" in row for row in scores] == [False, True, True]
    assert (scores[1]["visits"], scores[1]["forced"]) == (0, 0) and "visits" not in scores[2]
    assert "lost: every run without an answer counts as wrong, since its protocol is gone" in caplog.text


def in_sets(**sizes: tuple[int, int]) -> list[Trajectory]:
    """Right and wrong runs of each data set."""
    return [
        run(
            search_of("orbo", ORBO),
            question=replace(QUESTION, id=f"{name}/{number}", hops=None, meta={"data_source": name}),
            answer="Velora" if number < right else "Zun",
        )
        for name, (right, wrong) in sizes.items()
        for number in range(right + wrong)
    ]


def test_every_data_set_has_a_column_with_macro_and_micro_means() -> None:
    scores = score_runs({"a": in_sets(nq=(150, 50), hotpotqa=(100, 100), bamboogle=(0, 25))}, metrics=["em"])
    assert scores.by_dataset == ("bamboogle", "hotpotqa", "nq", MACRO, MACRO_LARGE)
    table = dataset_table(scores)
    assert table.columns == ("em", "bamboogle", "hotpotqa", "nq", "macro", "macro, n ≥ 200", "micro")
    means = [cell.partition(" ")[0] for cell in table.rows[0][1:]]
    assert means == ["0.000", "0.500", "0.750", "0.417", "0.625", "0.588"]
    macro = scores.of("a", MACRO)
    assert (macro.questions, macro.missing) == (425, 0)


def test_one_data_set_has_no_columns_of_its_own() -> None:
    scores = score_runs({"a": in_sets(nq=(1, 1))}, metrics=["em"])
    assert scores.by_dataset == () and {summary.group for summary in scores.summaries} == {"all"}
    assert grouped_tables(scores, "em") == {}


def test_a_run_that_lacks_a_data_set_has_no_macro_mean() -> None:
    runs = {"a": in_sets(nq=(1, 1), musique=(1, 1)), "b": in_sets(nq=(2, 0))}
    scores = score_runs(runs, metrics=["em"])
    assert scores.of("a", MACRO).metrics["em"].mean == 0.5
    assert "em" not in scores.of("b", MACRO).metrics and scores.of("b", MACRO).missing == 2


def test_a_data_set_called_like_a_group_hides_no_group() -> None:
    scores = score_runs({"a": in_sets(all=(1, 0), macro=(0, 3))}, metrics=["em"])
    assert scores.by_dataset == ("all (set)", "macro (set)", MACRO)
    assert scores.of("a").metrics["em"].mean == 0.25 and scores.of("a", MACRO).metrics["em"].mean == 0.5
