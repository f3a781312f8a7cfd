import json
import subprocess
from pathlib import Path

import pytest

from coseek.cli.commands.study import dry_run
from coseek.cli.main import main
from coseek.core.errors import SettingError
from coseek.studies.arms import StudyPlan, StudyStep
from coseek.studies.page import StudyResult
from coseek.studies.study import NAME, Commands, Road, Study, load_study, road_of, study_names
from coseek.studies.verdict import Values

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


def test_a_study_is_run_and_judged_and_only_what_changed_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(written(tmp_path))]) == 0
    found = json.loads((tmp_path / "runs/studies/mine-laptop.json").read_text())
    assert found["verdict"] == "holds here"
    assert found["comparisons"][0]["difference"]["n"] == 40 and found["comparisons"][0]["difference"]["low"] > 0
    page = (tmp_path / "runs/studies/mine-laptop.md").read_text()
    assert "coseek run runs/mine/few --split test --agent rules --retriever runs/mine/over" in page
    before = made(tmp_path)
    assert len(before) == 5
    assert main(["study", str(written(tmp_path, retriever="bm25 k1=2.0"))]) == 0
    after = made(tmp_path)
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2  # another index, and the run over it


def test_a_command_that_fails_shows_its_own_words_and_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", str(written(tmp_path, retriever="bn25"))]) == 1
    assert "did you mean 'bm25'" in capsys.readouterr().err
    assert main(["study", str(written(tmp_path))]) == 0


def test_equal_commands_over_equal_needs_share_a_folder_and_a_seed_counts_where_it_is_used(tmp_path: Path) -> None:
    one, other = study(make={"w": "x {seed}"}, arms={"A": "run {w}", "B": "run x"}), study()
    plans = [StudyPlan(Commands(each, "laptop"), tmp_path) for each in (one, other)]
    folder = {(n, arm, seed): plan.step(f"arm {arm}", seed).folder
              for n, plan in enumerate(plans) for arm in "AB" for seed in (0, 1)}  # fmt: skip
    assert folder[0, "B", 0] == folder[0, "B", 1] == folder[1, "B", 0]
    assert folder[0, "A", 0] != folder[0, "A", 1]  # by what it needs
    assert folder[1, "A", 0] != folder[1, "A", 1]


def test_an_arm_may_have_the_name_of_what_it_needs_and_no_two_need_each_other(tmp_path: Path) -> None:
    plan = StudyPlan(
        Commands(study(arms={"A": "run x", "bm25": "run {bm25}"}, expect=["A > bm25"]), "laptop"), tmp_path
    )
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


@pytest.mark.parametrize("name", study_names())
@pytest.mark.parametrize("road", ["laptop", "smoke", "real", "paper"])
def test_every_study_names_only_what_there_is(name: str, road: str, tmp_path: Path) -> None:
    one = load_study(name).on(road)  # type: ignore[arg-type]
    if ("laptop" if road == "smoke" else road) not in one.at:
        return
    plan = StudyPlan(Commands(one, road), tmp_path)  # type: ignore[arg-type]
    for arm, each in one.arms.items():
        step = plan.step(plan.commands.key(each.of) if each.of else f"arm {arm}", 0)
        assert not NAME.search(step.line()), step.line()


def test_an_arm_of_one_road_and_what_is_compared_with_it_are_left_out_on_the_others() -> None:
    one = study(
        arms={
            "A": "run x",
            "B": "run x",
            "C": {"run": "run y", "only": "paper"},
            "D": {"run": "run z", "only": "laptop"},
        },
        expect=["A > B", "C > A", "D > A"],
    )
    roads: tuple[Road, ...] = ("laptop", "smoke", "real", "paper")
    found = {road: ("".join(there.arms), len(there.expect)) for road in roads for there in [one.on(road)]}
    assert found == {"laptop": ("ABD", 2), "smoke": ("ABD", 2), "real": ("AB", 1), "paper": ("ABC", 2)}


def test_a_tiny_world_has_every_word_of_the_laptop() -> None:
    laptop, smoke = road_of("laptop"), road_of("smoke")
    assert smoke.let.keys() >= laptop.let.keys() and smoke.make.keys() >= laptop.make.keys()


def said_by(tree: object, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    def answered(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 2, stdout=json.dumps(tree), stderr="")

    monkeypatch.setattr(subprocess, "run", answered)
    return dry_run(StudyStep("x", ("train", *words), Path("x"), ()))


def test_a_training_that_does_not_fit_is_seen_also_inside_a_co_training(monkeypatch: pytest.MonkeyPatch) -> None:
    fits, not_ = {"stages": [{"way_out": ""}]}, {"stages": [{"way_out": "fewer rows"}]}
    assert said_by(fits, monkeypatch, "agent", "s3") == ""
    assert said_by(not_, monkeypatch, "agent", "s3") == "fewer rows"
    assert said_by({"agent": fits, "way_out": ""}, monkeypatch, "together", "laptop") == ""
    assert said_by({"agent": not_, "way_out": "serve it"}, monkeypatch, "together", "x") == "fewer rows; serve it"


def test_an_arm_that_lost_questions_says_so() -> None:
    one = study(arms={"A": "run x", "B": "run x", "C": "run x"})
    row = {"em": 1.0}
    values: dict[str, list[Values]] = {
        "A": [{"q": row, "r": row}, {"q": row}], "B": [{"q": row}, {"q": row}], "C": [{"q": row, "r": row}, {"q": row}],
    }  # fmt: skip
    result = StudyResult("mine", one, "laptop", (0, 1), values, (), (), ())
    (said,) = result.missing()
    assert said == "B lacks 1 question that another arm has."
    assert said in result.lines() and result.stored().missing == (said,)
