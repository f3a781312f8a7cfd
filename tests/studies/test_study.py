import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

from coseek.cli.commands.study import dry_run
from coseek.cli.main import Terminated, main, sigterm_as_stop
from coseek.cli.terminal import assignments
from coseek.core.errors import DataError, SettingError
from coseek.core.files import SUMS, JsonObject, write_jsonl
from coseek.core.settings import make_settings
from coseek.measure.intervals import Interval
from coseek.measure.report import ROWS
from coseek.retrieval.index import index_module
from coseek.studies.page import StudyPage, StudyResult
from coseek.studies.results import values_of
from coseek.studies.study import (
    NAME,
    Arm,
    Commands,
    Expectation,
    Road,
    Study,
    StudyPlan,
    StudyStep,
    _content_of,
    as_words,
    load_study,
    road_of,
    run_steps,
    study_names,
)
from coseek.studies.verdict import ArmComparison, StudyVerdict, Values, compare, overall
from coseek.training.encoder.recipe import load_retriever_recipe

OWN = """
claim: rules find more over BM25 than over chance
place: nowhere
at: {{laptop: 1}}
seeds: 1
metrics: [recall, searches]
make:
  few: world make {{out}} --size tiny train=10 dev=5 test=40
  over: index {{few}} --retriever {retriever}
  none: index {{few}} --retriever random
arms:
  BM25: run {{few}} --split test --agent rules --retriever {{over}}
  chance: run {{few}} --split test --agent rules --retriever {{none}}
expect: [BM25 > chance]
"""


def written(folder: Path, **words: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(OWN.format(**{"retriever": "bm25", **words}), encoding="utf-8")
    return path


def study(**changes: object) -> Study:
    return Study.model_validate({
        "claim": "c", "place": "p", "at": {"laptop": 1}, "arms": {"A": "run x {seed}", "B": "run x"},
        "expect": ["A > B"], **changes,
    })  # fmt: skip


def made(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in (folder / "runs/studies/arms").glob("*.json")}


@pytest.mark.medium
def test_a_study_goes_on_behind_a_command_that_failed_is_judged_and_only_what_changed_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(written(tmp_path, retriever="bn25")), "--jobs", "2"]) == 1
    assert "did you mean 'bm25'" in capsys.readouterr().err  # the command's own words
    before = made(tmp_path)
    assert main(["study", str(written(tmp_path)), "--jobs", "2"]) == 0  # none begins before what it needs has ended
    after = made(tmp_path)
    assert before.items() <= after.items() and len(after) == 6  # the one that failed among them
    report = json.loads((tmp_path / "runs/studies/mine-laptop.json").read_text())
    assert report["verdict"] == "holds here"
    assert report["comparisons"][0]["difference"]["n"] == 40 and report["comparisons"][0]["difference"]["low"] > 0
    page = (tmp_path / "runs/studies/mine-laptop.md").read_text()
    assert "coseek run runs/mine/few --split test --agent rules --retriever runs/mine/over" in page
    folder = next(path.parent for path in Path("runs/studies/arms").glob(f"*/{SUMS}"))
    assert values_of(Arm(run="run"), folder)
    (folder / SUMS).unlink()
    with pytest.raises(DataError, match="is not finished"):
        values_of(Arm(run="run"), folder)


def test_a_stop_reaches_the_running_command_and_its_seconds_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    plan = StudyPlan(Commands(study(), "laptop"), tmp_path)
    step = plan.step("arm B", 0)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    started_s = time.monotonic()
    with pytest.raises(Terminated), sigterm_as_stop():
        run_steps([step], lambda line: timer.start())
    assert time.monotonic() - started_s < 10
    assert step.seconds >= 0.1 and not step.succeeded


def test_results_of_a_data_set_that_has_changed_since_are_not_taken_for_those_of_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    data = tmp_path / "x"
    data.mkdir()
    (data / "corpus.jsonl").write_text("old", encoding="utf-8")
    step = StudyPlan(Commands(study(), "laptop"), tmp_path / "runs").step("arm B", 0)
    for _ in range(2):
        run_steps([step], print)
    (data / "corpus.jsonl").write_text("new", encoding="utf-8")
    _content_of.cache_clear()  # another command
    with pytest.raises(DataError, match="x has changed since"):
        run_steps([step], print)


def test_equal_commands_over_equal_needs_share_a_folder_and_a_seed_counts_where_it_is_used(tmp_path: Path) -> None:
    first, other = study(make={"w": "x {seed}"}, arms={"A": "run {w}", "B": "run x"}), study()
    plans = [StudyPlan(Commands(each, "laptop"), tmp_path) for each in (first, other)]
    folder = {(n, arm, seed): plan.step(f"arm {arm}", seed).folder
              for n, plan in enumerate(plans) for arm in "AB" for seed in (0, 1)}  # fmt: skip
    assert folder[0, "B", 0] == folder[0, "B", 1] == folder[1, "B", 0]
    assert folder[0, "A", 0] != folder[0, "A", 1]  # by what it needs
    assert folder[1, "A", 0] != folder[1, "A", 1]


def test_an_arm_may_have_the_name_of_what_it_needs_and_no_two_need_each_other(tmp_path: Path) -> None:
    defined = study(arms={"A": "run x", "bm25": "run {bm25}"}, expect=["A > bm25"])
    plan = StudyPlan(Commands(defined, "laptop"), tmp_path)
    (needed,) = plan.step("arm bm25", 0).needs
    assert needed.words[0] == "index"
    round_about = study(make={"x": "index {y}", "y": "index {x}"}, arms={"A": "run {x}", "B": "run x"})
    with pytest.raises(SettingError, match="need each other: arm A, x, y, x"):
        StudyPlan(Commands(round_about, "laptop"), tmp_path).step("arm A", 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"arms": {"A": "run x", "BM25": "run x"}, "expect": ["A > BM26"]}, "no arm 'BM26'; did you mean 'BM25'"),
        ({"expect": ["A more than B"]}, "compares no two arms"),
        ({"metrics": ["recal"]}, "no metric; did you mean 'recall'"),
        ({"arms": {"A": {"of": "B", "run": "x"}, "B": "run x"}}, "give one of them"),
    ],
)
def test_a_mistake_in_a_study_is_told_before_anything_runs(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        study(**changes)


@pytest.mark.medium
@pytest.mark.parametrize("name", study_names())
@pytest.mark.parametrize("road", ["laptop", "smoke", "real", "paper"])
def test_every_study_names_only_what_there_is(name: str, road: str, tmp_path: Path) -> None:
    loaded = load_study(name).on(road)  # type: ignore[arg-type]
    if ("laptop" if road == "smoke" else road) not in loaded.at:
        return
    plan = StudyPlan(Commands(loaded, road), tmp_path)  # type: ignore[arg-type]
    for arm, each in loaded.arms.items():
        step = plan.step(plan.commands.key(each.of) if each.of else f"arm {arm}", 0)
        assert not NAME.search(step.line()), step.line()
    sources = [plan.commands.key(each.of) if each.of else f"arm {arm}" for arm, each in loaded.arms.items()]
    steps = plan.steps(sources, (0, 1))
    typed = StudyPlan(Commands(loaded, road), tmp_path, shared=tmp_path / "shared").steps(sources, (0, 1))  # type: ignore[arg-type]
    assert len(typed) >= len(steps)  # none is lost since another has its folder
    for step in steps:
        if step.words[0] == "index":
            settings = index_module(step.words[step.words.index("--retriever") + 1]).SETTINGS
            make_settings(settings, assignments([word for word in step.words[2:] if "=" in word]))


def test_an_arm_of_one_road_and_what_is_compared_with_it_are_left_out_on_the_others() -> None:
    only = {"C": {"run": "run y", "only": "paper"}, "D": {"run": "run z", "only": "laptop"}}
    defined = study(arms={"A": "run x", "B": "run x", **only}, expect=["A > B", "C > A", "D > A"])
    roads: tuple[Road, ...] = ("laptop", "smoke", "real", "paper")
    on_roads = {road: ("".join(there.arms), len(there.expect)) for road in roads for there in [defined.on(road)]}
    assert on_roads == {"laptop": ("ABD", 2), "smoke": ("ABD", 2), "real": ("AB", 1), "paper": ("ABC", 2)}


def said_by(tree: object, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    def answered(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 2, stdout=json.dumps(tree), stderr="")

    monkeypatch.setattr(subprocess, "run", answered)
    return dry_run(StudyStep("x", ("train", *words), Path("x"), (), None))


def test_a_training_that_does_not_fit_is_seen_also_inside_a_co_training(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, not_ = {"stages": [{"way_out": ""}]}, {"stages": [{"way_out": "fewer rows"}]}
    assert said_by(fits, monkeypatch, "agent", "s3") == ""
    assert said_by(not_, monkeypatch, "agent", "s3") == "fewer rows"
    assert said_by({"agent": fits, "way_out": ""}, monkeypatch, "together", "laptop") == ""
    assert said_by({"agent": not_, "way_out": "serve it"}, monkeypatch, "together", "x") == "fewer rows; serve it"


def test_an_arm_that_lost_questions_says_so() -> None:
    defined = study(arms={"A": "run x", "B": "run x", "C": "run x"})
    row = {"em": 1.0}
    values: dict[str, list[Values]] = {
        "A": [{"q": row, "r": row}, {"q": row}], "B": [{"q": row}, {"q": row}], "C": [{"q": row, "r": row}, {"q": row}],
    }  # fmt: skip
    result = StudyResult.of("mine", defined.model_copy(update={"expect": ()}), "laptop", values, (0, 1), (), ())
    assert result.caveats == ("B lacks 1 question that another arm has.",)
    assert result.caveats[0] in StudyPage("mine", defined, result).lines()


# --- rows of scores


def scores(folder: Path, *runs: str) -> Path:
    metrics: list[JsonObject] = [{"em": float(number)} for number in range(len(runs))]
    write_jsonl(folder / ROWS, ({"run": run, "id": "q", "metrics": em} for run, em in zip(runs, metrics, strict=True)))
    return folder


def em(folder: Path, row: str) -> float:
    return values_of(Arm(of="x", row=row), folder)["q"]["em"]


def test_a_row_of_scores_is_found_by_what_is_behind_its_run_and_none_is_taken_for_another(tmp_path: Path) -> None:
    served = scores(tmp_path / "served", *(f"a/b{end}" for end in ("", " → generator", ", all", ", no-opening-all")))
    assert [em(served, row) for row in ("a/b", "generator", "all", "no-opening-all")] == [0, 1, 2, 3]
    for row in ("after", "opening-all"):
        with pytest.raises(DataError, match="no single run"):
            em(served, row)
    assert em(scores(tmp_path / "one", "a/b"), "after") == 0
    with pytest.raises(DataError, match="no single run"):
        em(scores(tmp_path / "two", "a, all", "b, all"), "all")


def test_gen_acc_is_its_span_check_on_a_road_without_a_judge() -> None:
    defined = Study.model_validate({
        "claim": "c", "place": "p", "at": {"real": 1}, "metrics": ["gen_acc", "cover_em", "em"],
        "arms": {"A": "x", "B": "y"}, "expect": ["A > B", {"gen_acc": "A < B"}, {"em": "A > B"}],
    })  # fmt: skip
    real = defined.on("real")
    assert real.metrics == ("cover_em", "em") and [each.metric for each in real.expect] == ["", "cover_em", "em"]
    assert defined.on("laptop") == defined


# --- verdicts


def finding(
    sign: str, low: float, high: float, seeds: tuple[float, ...], n: int = 300, margin: float = 0.02
) -> ArmComparison:
    expected = Expectation.model_validate({"one": "A", "sign": sign, "other": "B", "margin": margin})
    return ArmComparison.of(expected, "em", Interval((low + high) / 2, low, high, n), seeds)


@pytest.mark.parametrize(
    ("sign", "low", "high", "seeds", "verdict"),
    [
        (">", 0.01, 0.09, (0.05, 0.05), StudyVerdict.HOLDS),
        (">", 0.01, 0.09, (0.15, -0.05), StudyVerdict.OPEN),  # one seed says the opposite
        (">", -0.01, 0.09, (0.04, 0.04), StudyVerdict.OPEN),
        (">", -0.03, 0.01, (-0.01, -0.01), StudyVerdict.FAILS),  # a gain of .02 is excluded
        (">", -0.09, -0.03, (-0.06, -0.06), StudyVerdict.FAILS),
        ("<", -0.09, -0.01, (-0.05, -0.05), StudyVerdict.HOLDS),
        ("<", -0.09, 0.01, (-0.04, -0.04), StudyVerdict.OPEN),
        ("<", 0.03, 0.09, (0.06, 0.06), StudyVerdict.FAILS),
        ("=", -0.01, 0.015, (0.0, 0.0), StudyVerdict.HOLDS),
        ("=", -0.01, 0.03, (0.01, 0.01), StudyVerdict.OPEN),
        ("=", 0.03, 0.06, (0.04, 0.05), StudyVerdict.FAILS),
    ],
)
def test_a_verdict_needs_the_interval_and_every_seed(
    sign: str, low: float, high: float, seeds: tuple[float, ...], verdict: StudyVerdict
) -> None:
    assert finding(sign, low, high, seeds).verdict is verdict
    assert finding(sign, 0.0, 0.0, (0.0,), n=4).verdict is StudyVerdict.OPEN  # a few equal questions tell nothing


@pytest.mark.medium
def test_commands_started_by_hand_at_paper_size_are_read_with_a_judges_word_for_em(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = yaml.safe_load(OWN.format(retriever="bm25"))
    tree |= {"at": {"paper": 1}, "judged": True, "metrics": ["em", "recall"], "let": {"judged": "--judge {few}"}}
    Path("mine.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert main(["study", "mine.yaml", "--at", "paper"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("coseek ")]
    for line in lines:
        assert main(shlex.split(line)[1:]) == 0
    capsys.readouterr()
    scores = Path("runs/mine/bm25").rename("scores")
    assert main(["study", "mine.yaml", "--at", "paper", "--json"]) == 0
    assert "--out runs/mine/bm25" in capsys.readouterr().out  # a command is left, so that all are printed
    scores.rename("runs/mine/bm25")
    assert main(["study", "mine.yaml", "--at", "paper", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert result["arms"]["BM25"].keys() == {"judge_acc", "recall"}
    assert result["comparisons"][0]["metric"] == "judge_acc" and result["comparisons"][0]["difference"]["n"] == 40


def test_launch_lines_of_several_studies_hold_a_common_command_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "agentir/visits", "agentir/retrievers", "--at", "paper", "--seeds", "0"]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("coseek ")]
    assert len(printed) == len(set(printed)) and sum("label runs/shared/webshaper" in line for line in printed) == 1
    assert main(["study", "agentic-r/rag-retrievers", "--at", "paper"]) == 2
    assert "has no size 'paper'; it has laptop" in capsys.readouterr().err


def test_the_untrained_view_of_the_reasoning_has_the_prompt_of_the_trained_one() -> None:
    trained = load_retriever_recipe("agentir", labels=["labels"]).query_prompt
    (word,) = as_words(road_of("paper").let["as-reasoning"])
    assert assignments([word]) == {"query_prompt": trained}


def test_what_would_tell_shrinks_the_interval_to_the_nearer_of_0_and_the_margin() -> None:
    # Mean .03, half width .06: four times the questions end at 0; an excluded .02 would be further from .03.
    assert finding(">", -0.03, 0.09, (0.03,), n=100).questions_that_would_tell == 400
    # Mean 0: .02 is excluded at half width .02, a third of it.
    assert finding(">", -0.06, 0.06, (0.0,), n=100).questions_that_would_tell == 900
    assert (
        finding(">", 0.01, 0.09, (0.15, -0.05)).questions_that_would_tell is None
    )  # seeds disagree: questions decide nothing
    assert finding(">", 0.01, 0.09, (0.05,)).questions_that_would_tell is None


def test_one_comparison_that_fails_fails_a_study_and_an_open_one_keeps_it_open() -> None:
    holds, fails, stays = (finding(">", *ends, (ends[1],)) for ends in ((0.01, 0.05), (-0.05, 0.0), (-0.05, 0.1)))
    assert overall([holds, holds]) is StudyVerdict.HOLDS
    assert overall([holds, stays]) is StudyVerdict.OPEN
    assert overall([holds, stays, fails]) is StudyVerdict.FAILS


def test_questions_are_paired_and_averaged_over_seeds_before_the_interval() -> None:
    one: list[Values] = [{"a": {"em": 1.0}, "b": {"em": 0.0}, "c": {"em": 1.0}}, {"a": {"em": 1.0}, "b": {"em": 1.0}}]
    other: list[Values] = [{"a": {"em": 0.0}, "b": {"em": 0.0}, "d": {"em": 0.0}}, {"a": {"em": 0.0}, "b": {"em": 1.0}}]
    comparison = compare(Expectation(one="A", sign=">", other="B"), "em", one, other)
    assert comparison.difference.n == 2 and comparison.difference.mean == 0.5
    assert comparison.seeds == (0.5, 0.5)
    with pytest.raises(DataError, match="share no question"):
        compare(Expectation(one="A", sign=">", other="B"), "em", [{"a": {"em": 1.0}}], [{"z": {"em": 1.0}}])
