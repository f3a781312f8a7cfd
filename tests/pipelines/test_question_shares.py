"""Published files hold NQ before HotpotQA: whatever looks at a part of a file must see both, in their shares."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from tests.pipelines.trainings import trained

from coseek.agents.limits import Limits
from coseek.core.errors import DataError, SettingError
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.data.run import Run
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.graders.scoring import dev_metrics
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import check_paths
from coseek.pipelines.agent_recipe import AgentRecipe, SelectSettings, load_recipe
from coseek.pipelines.agent_results import headline, scores_of
from coseek.pipelines.agent_run import RunSettings, load_run_questions
from coseek.pipelines.data_folder import make_data
from coseek.pipelines.labelling import LabelSettings, questions_of_runs
from coseek.pipelines.stages import select
from coseek.pipelines.table_rows import answer_cells

SIZES = {"nq": 467, "hotpotqa": 533, "bamboogle": 12}
SHARES = {name: size / sum(SIZES.values()) for name, size in SIZES.items()}


def in_file_order(split: str) -> list[Question]:
    return [
        Question(f"{name}/{split}_{number}", f"Who is {number}?", ("Bob",), meta={"data_source": name})
        for name, size in SIZES.items()
        for number in range(size)
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shares") / "wiki"
    Corpus([Passage(str(n), f"Man {n}", f"Man {n} is Bob.") for n in range(20)]).save(folder / "corpus.jsonl")
    for split in ("train", "dev", "test"):
        save_questions(folder / f"questions.{split}.jsonl", in_file_order(split))
    return folder


def recipe(data: Path, *more: str) -> AgentRecipe:
    return load_recipe(
        "from-nothing", ["data.world=null", "data.unseen=null", f"data.folder={data}", "warm_start=null", *more]
    )


def assert_in_shares(questions: Iterable[Question], count: int) -> None:
    drawn = Counter(question.dataset for question in questions)
    assert drawn.total() == count
    for name, share in SHARES.items():
        assert abs(drawn[name] / count - share) <= 0.03 and drawn[name] >= 1, drawn


def test_looks_tables_and_training_questions_hold_every_data_set_in_its_share(data: Path, tmp_path: Path) -> None:
    training = AgentTraining(recipe(data, "table={questions: 90, dev_questions: 60}", "select.most=120"), tmp_path)
    training.prepare_data()
    (stage,) = training.stages
    assert_in_shares(training.dev_questions(training.recipe), 60)
    for column in training.sets:
        assert_in_shares(column.questions, 90)
    assert_in_shares(training.training_questions(stage, training.scoring(training.recipe)), 120)


def test_training_questions_can_be_those_of_one_data_set(data: Path, tmp_path: Path) -> None:
    training = AgentTraining(recipe(data, "select={sources: [nq], most: 100}"), tmp_path)
    questions = training.training_questions(training.stages[0], training.scoring(training.recipe))
    assert len(questions) == 100 and {question.dataset for question in questions} == {"nq"}
    with pytest.raises(SettingError, match="did you mean 'hotpotqa'"):
        select(in_file_order("train"), SelectSettings(sources=("hotpotq",)), "cover_match", None, 0, print)


@pytest.mark.parametrize("setting", ["select", "table.select", "stages.late.select"])
def test_a_choice_that_leaves_no_question_is_refused_before_an_index_is_built(
    setting: str, data: Path, tmp_path: Path
) -> None:
    def choosing(choice: str) -> AgentRecipe:
        staged = f"stages={{early: {{}}, late: {{select: {choice}}}}}"
        return recipe(data, staged if "stages" in setting else f"{setting}={choice}")

    with pytest.raises(DataError, match=f"questions is left; ask for less in `{setting}`"):
        AgentTraining(choosing("{answerable: false}"), tmp_path / "run").prepare_data()
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match=f"no absent.txt, which the recipe names as {setting}.ids"):
        check_paths(choosing("{ids: absent.txt}"))


def test_a_split_that_is_trained_on_and_measured_by_is_named(data: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    make_data(recipe(data, "data.train=test").data, tmp_path / "made", lines.append)
    assert any("test is trained on and measured by, too" in line for line in lines)


def run_settings(data: Path, **more: object) -> RunSettings:
    agent = {"name": "rules", "protocol": "search-r1", "prompt_template": "default"}
    tree = {"questions": str(data), "split": "test", "retriever": "x", "agent": agent, "limits": Limits()}
    return RunSettings.model_validate({**tree, **more})


def test_a_short_run_asks_every_data_set_in_its_share(data: Path) -> None:
    assert_in_shares(load_run_questions(run_settings(data, count=100)), 100)
    other = load_run_questions(run_settings(data, count=100, seed=1))
    assert_in_shares(other, 100)
    assert other != load_run_questions(run_settings(data, count=100))
    chosen = load_run_questions(run_settings(data, count=50, select={"sources": "hotpotqa"}))
    assert len(chosen) == 50 and {question.dataset for question in chosen} == {"hotpotqa"}


def trajectory(question: Question, answer: str = "Bob") -> Trajectory:
    searched = (Search(question.question),)
    return Trajectory(question, "search-r1", (), searched, StopReason.ANSWERED, answer, valid=True)


def test_labels_of_a_part_of_a_run_hold_every_data_set_in_its_share(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"agent": "x"})
    with run.open_for_append({}) as file:
        for question in in_file_order("train"):
            Run.append(file, trajectory(question))
    settings = LabelSettings(runs=[str(tmp_path / "run")], count=100, method="gold", retriever="x")
    assert_in_shares(questions_of_runs(settings), 100)


def test_runs_of_two_data_sets_with_equal_ids_lose_no_question(tmp_path: Path) -> None:
    folders: list[str] = []
    for text in ("Who?", "Where?", "Who?"):
        folders.append(str(tmp_path / str(len(folders))))
        run = Run.create(Path(folders[-1]), {"agent": "x"})
        with run.open_for_append({}) as file:
            Run.append(file, trajectory(Question("1", text, ("Bob",))))
    both, same = (LabelSettings(runs=names, method="gold", retriever="x") for names in (folders[:2], folders[::2]))
    with pytest.raises(DataError, match="two different questions with the id '1'; label them apart"):
        questions_of_runs(both)
    assert len(questions_of_runs(same)) == 1


def test_a_look_reads_every_data_set_for_itself(data: Path, tmp_path: Path) -> None:
    training = AgentTraining(recipe(data), tmp_path)
    questions = in_file_order("dev")
    rows = [trajectory(question, "Bob" if question.dataset == "nq" else "Eve") for question in questions]
    readings = dev_metrics(rows, training.scoring(training.recipe))
    assert readings["exact_match"] == pytest.approx(SHARES["nq"])
    sets = {name: readings[f"exact_match/{name}"] for name in (*SIZES, "macro")}
    assert sets == {"nq": 1.0, "hotpotqa": 0.0, "bamboogle": 0.0, "macro": pytest.approx(1 / 3)}
    assert readings["reward/nq"] > readings["reward/hotpotqa"]
    alone = dev_metrics(rows[:5], training.scoring(training.recipe))
    assert set(alone) == {"reward", "exact_match"}


@pytest.mark.slow
def test_the_closing_table_has_a_column_for_every_data_set(data: Path, tmp_path: Path) -> None:
    small = recipe(
        data,
        "learn=demonstrations",
        "warm_start={demonstrator: rules, worlds: 0, one_shot: 0.0, sft: {steps: 1, repeat_steps: 0, rounds: 1}}",
        "policy.laptop={hidden: 32, heads: 2, kv_heads: 1, feed_forward: 32, vocabulary: 600}",
        "limits={max_turns: 1, max_turn_tokens: 8, max_observation_tokens: 32, max_tokens: 200}",
        "table={questions: 24, dev_questions: 12}",
        "threads=1",
    )
    training = trained(AgentTraining(small, tmp_path / "run"))
    answer_cells(training)
    table = headline(training, scores_of(training))
    assert table.columns[:3] == ("em", "dev", "test")
    assert [name for name in table.columns if name.startswith("test ")] == [
        "test bamboogle", "test hotpotqa", "test nq", "test macro",
    ]  # fmt: skip
    looked = [json.loads(line) for line in next((tmp_path / "run").rglob("metrics.jsonl")).read_text().splitlines()]
    assert {f"eval/exact_match/{name}" for name in (*SIZES, "macro")} <= looked[-1].keys()
