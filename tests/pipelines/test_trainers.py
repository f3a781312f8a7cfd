"""The front door: a training from Python, with functions as parts."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
import pytest
import yaml
from torch import Tensor

import coseek
from coseek import AgentTrainer, Question, RetrieverTrainer, Trajectory, UserError, load_questions
from coseek.core.plugins import CannotResume
from coseek.core.progress import NoProgress
from coseek.pipelines.agent_recipe import load_recipe
from coseek.training.rl.algorithm import StepRewards

QUIET = NoProgress()


class Small(TypedDict):
    limits: dict[str, int]
    rl: dict[str, int]
    table: dict[str, object]
    threads: int
    steps: int


SMALL: Small = {
    "limits": {"max_turns": 1, "max_turn_tokens": 12, "max_tokens": 600},
    "rl": {"group_size": 2, "questions_per_step": 2, "num_minibatches": 1},
    "table": {"questions": 2, "dev_questions": 2, "sampled": False},
    "threads": 1,
    "steps": 1,
}


def short_and_right(trajectory: Trajectory) -> float:
    return trajectory.exact_match - 0.01 * trajectory.searches_made + 0.001 * len(trajectory.text)


def centred(step: StepRewards) -> Tensor:
    return step.compare_groups(lambda rewards_G: (rewards_G - rewards_G.mean()).float())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> coseek.Dataset:
    made = coseek.make_world(tmp_path_factory.mktemp("door") / "world", size="tiny", train=20, dev=4, test=4)
    coseek.build_index(made.folder, "bm25", made.folder.parent / "index")
    return made


@pytest.fixture(scope="module")
def index(data: coseek.Dataset) -> Path:
    return data.folder.parent / "index"


@pytest.mark.medium
def test_functions_train_and_resume_and_another_function_does_not(
    data: coseek.Dataset, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trainer() -> AgentTrainer:
        questions = load_questions(data.folder, "train")
        return AgentTrainer(
            "base", retriever=index, reward=short_and_right, algorithm=centred, questions=questions, **SMALL
        )

    first = trainer()
    done = first.train(tmp_path / "run", progress=QUIET)
    assert (done.policy / "model.safetensors").is_file() and "before" in done._repr_html_()
    assert set(first.evaluate()) == {"reward", "exact_match", "recall"}
    record = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert record["recipe"]["reward"] == {"python:short_and_right": 1.0}
    assert set(record["own_parts"]) == {"python:short_and_right", "python:centred"}
    metrics = (tmp_path / "run" / "rl" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "reward/short_and_right" in metrics
    assert trainer().train(tmp_path / "run", resume=True, progress=QUIET).policy == done.policy
    with pytest.raises(UserError, match="holds a training run already; go on with resume=True"):
        trainer().train(tmp_path / "run", progress=QUIET)
    monkeypatch.setattr(short_and_right, "__defaults__", (1.0,))
    monkeypatch.setattr("coseek.core.plugins._own_functions", {})  # as in another process
    with pytest.raises(UserError, match=r"short_and_right is not the function that .*run was begun with"):
        trainer().train(tmp_path / "run", resume=True, progress=QUIET)
    with pytest.raises(UserError, match="was defined again after this trainer was made"):
        first.evaluate()


def test_questions_of_a_start_that_was_refused_bind_no_later_start(index: Path, tmp_path: Path) -> None:
    def start(out: Path, *splits: str) -> None:
        questions = {split: [replace(ASKED, gold_ids=("absent",))] for split in splits}
        AgentTrainer("base", retriever=index, questions=questions, reward="f1", **SMALL).train(out, progress=QUIET)

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="something else already"):
        start(tmp_path / "mine", "train", "dev", "test")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    for splits in (("train", "dev", "test", "later"), ("train", "dev", "test")):
        with pytest.raises(UserError, match="names the gold passage 'absent'"):
            start(tmp_path / "run", *splits)
        assert {path.stem for path in (tmp_path / "run" / "questions").iterdir()} == {f"questions.{s}" for s in splits}


@pytest.mark.medium
def test_a_lambda_trains_on_questions_in_memory_and_says_that_it_cannot_be_resumed(
    data: coseek.Dataset, index: Path, tmp_path: Path
) -> None:
    questions = [Question(f"q{number}", f"Who is number {number}?", ("nobody",)) for number in range(6)]

    def trainer(questions: list[Question]) -> AgentTrainer:
        return AgentTrainer("base", retriever=index, reward=lambda run: run.f1, questions=questions, **SMALL)

    with pytest.warns(CannotResume, match="cannot be resumed, since lambda is not identified by its source") as warned:
        made = trainer(questions)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert set(made.evaluate()) == {"reward", "exact_match"}
    made.train(tmp_path / "run", progress=QUIET)
    kept = load_questions(tmp_path / "run" / "data", "train")
    assert len(kept) == 4 and kept[0] in questions  # a tenth, at least one, is set aside for dev and for test
    with pytest.warns(CannotResume), pytest.raises(UserError, match="cannot be resumed: its source does not identify"):
        trainer(questions).train(tmp_path / "run", resume=True, progress=QUIET)
    with pytest.warns(CannotResume), pytest.raises(UserError, match="begun with other questions"):
        trainer(questions[:5] + [Question("x", "y", ("z",))]).train(tmp_path / "run", resume=True, progress=QUIET)


def test_a_recipe_by_name_takes_settings_in_its_spelling_and_shows_them() -> None:
    trainer = AgentTrainer(recipe="quickstart", steps=3, reward=["f1", short_and_right], rl={"group_size": 4}, seed=5)
    expected = load_recipe("quickstart", ["rl.steps=3", "rl.group_size=4", "seed=5", "reward={f1: 1, x: 1}"])
    assert trainer.recipe.rl == expected.rl and trainer.recipe.seed == 5
    assert trainer.recipe.reward == {"f1": 1.0, "python:short_and_right": 1.0}
    assert "<code>rl.steps</code></td><td>3<" in trainer._repr_html_() and "rl.steps=3" in repr(trainer)


def test_settings_may_be_limits_and_numbers_of_numpy_and_a_reward_takes_more_terms(index: Path) -> None:
    trainer = AgentTrainer(
        recipe="quickstart", retriever=index, steps=3, limits=coseek.Limits(max_turns=3), reward="f1",
        rl={"group_size": np.int64(4), "steps": 3}, overrides=["reward.searches=-0.02"],
    )  # fmt: skip
    assert trainer.recipe.limits.max_turns == 3 and trainer.recipe.rl.group_size == 4
    assert trainer.recipe.reward == {"f1": 1.0, "searches": -0.02}


ASKED = Question("q", "Who?", ("nobody",))
MISSPELT: dict[str, tuple[Callable[[Path], object], str]] = {
    "reward": (lambda index: AgentTrainer("base", reward="exact_mach", retriever=index), "did you mean 'exact_match'"),
    "preset": (lambda index: AgentTrainer("base", reward="serch-r1"), "did you mean 'search-r1'"),
    "algorithm": (lambda index: AgentTrainer(recipe="quickstart", algorithm="gropo"), "did you mean 'grpo'"),
    "parameter": (lambda index: AgentTrainer("base", retriver=index), "did you mean 'retriever'"),
    "setting": (lambda index: AgentTrainer(recipe="quickstart", group_sice=4), "did you mean 'rl.group_size'"),
    "protocol": (lambda index: AgentTrainer("base", protocol="serch-r1"), "did you mean 'search-r1'"),
    "model": (lambda index: AgentTrainer("bsae", retriever=index), "did you mean 'base'"),
    "nothing": (lambda index: AgentTrainer(), "name a model folder to train"),
    "a reward of two arguments": (
        lambda index: AgentTrainer("base", reward=lambda a, b: 1.0),  # type: ignore[arg-type]
        "must take (trajectory)",
    ),
    "an algorithm without an argument": (
        lambda index: AgentTrainer(recipe="quickstart", algorithm=lambda: None),  # type: ignore[arg-type, misc]
        "must take (step)",
    ),
    "steps twice": (
        lambda index: AgentTrainer("base", steps=7, rl={"steps": 3}),
        "rl.steps is 7 by a parameter and 3 by a setting; leave one out",
    ),
    "questions twice": (
        lambda index: AgentTrainer("base", questions="data/x", data={"folder": "data/y"}),
        "data.folder is 'data/x' by a parameter and 'data/y' by a setting",
    ),
    "a reward twice": (
        lambda index: AgentTrainer("base", reward="f1", overrides=["reward={exact_match: 1.0}"]),
        "reward.f1 is 1.0 by a parameter and None by a setting",
    ),
    "steps of a retriever twice": (
        lambda index: RetrieverTrainer(recipe="two-cores", steps=7, training={"steps": 3}),
        "training.steps is 7 by a parameter",
    ),
    "no questions": (lambda index: AgentTrainer("base", reward="f1"), "pass questions="),
    "a split": (
        lambda index: AgentTrainer("base", questions={"train": [ASKED], "tset": [ASKED]}),
        "a split 'tset'; did you mean 'test'",
    ),
    "a value of a group": (
        lambda index: AgentTrainer("base", rl={"group_size": {4}}),
        "a value of the setting 'rl' is text, a number, a list or a mapping, not {4}",
    ),
    "two functions of one name": (
        lambda index: AgentTrainer(recipe="quickstart", retriever=lambda query, k: [], view=lambda query: query.text),
        "there is no retriever called 'lambda', only a function of that name for another kind of part (query view)",
    ),
    "an empty list of questions": (lambda index: AgentTrainer("base", questions=[]), "a list of Question, not none"),
    "a recipe of a retriever": (lambda index: RetrieverTrainer(recipe="two-coers"), "did you mean 'two-cores'"),
    "labels": (lambda index: RetrieverTrainer(labells="x"), "did you mean 'labels'"),
    "no labels": (lambda index: RetrieverTrainer("base"), "give one"),
}


@pytest.mark.parametrize("fear", MISSPELT)
def test_what_is_misspelt_ends_with_the_nearest(fear: str, index: Path) -> None:
    call, message = MISSPELT[fear]
    with pytest.raises(UserError, match=re.escape(message)):
        call(index)


def test_a_trajectory_reads_as_a_conversation(data: coseek.Dataset, index: Path) -> None:
    question = data.questions("test")[0]
    (row,) = coseek.rollout("rules", question, index)
    text, page = str(row), row._repr_html_()
    assert text.startswith(f"question: {question.question.strip()}")
    assert "[agent, turn 1]" in text and "[information]" in text
    assert f"{row.searches_made} search" in text.splitlines()[-1] and f"ended by {row.stop}" in text
    assert "<details" in page and "<search>" not in page and "&lt;search&gt;" in page
    assert row.exact_match in (0.0, 1.0) and 0.0 <= row.f1 <= 1.0 and row.gold == question.answers
    assert len(row.hits) == sum(len(search.hits) for search in row.searches)
    assert all(all(row.agent_mask[start:end]) for start, end in row.turn_spans)
    assert sum(end - start for start, end in row.turn_spans) == row.agent_tokens
    with pytest.raises(UserError, match="has no gold answers"):
        _ = coseek.ask("Who?", index).exact_match


def test_a_function_scores_stored_trajectories(data: coseek.Dataset, index: Path) -> None:
    rows = coseek.rollout("rules", data.questions("test"), index)
    values = [reward.value for reward in coseek.score(rows, short_and_right) if isinstance(reward, coseek.Reward)]
    assert values == pytest.approx(list(map(short_and_right, rows)))


def text_only(query: coseek.Query) -> str:
    return query.text


@pytest.mark.slow
def test_a_retriever_is_trained_with_a_view_that_is_a_function(tmp_path: Path) -> None:
    world = {"size": "tiny", "train": 20, "dev": 0, "test": 0}
    held_out = {"seed": 8, "size": "tiny", "train": 0, "dev": 8, "test": 0}
    trainer = RetrieverTrainer(
        recipe="laptop", view=text_only, steps=3,
        synthetic={"worlds": 2, "tokenizer_worlds": 1, "world": world, "held_out": held_out},
        laptop={"hidden": 16, "heads": 2, "feed_forward": 16, "vocabulary": 400}, training={"batch_size": 4},
        threads=1,
    )  # fmt: skip
    before = trainer.evaluate()
    done = trainer.train(tmp_path / "run", progress=QUIET)
    after = trainer.evaluate()
    assert before.keys() == after.keys() and {"mrr", "recall@1"} <= after.keys() and before != after
    assert (done.encoder / "coseek.yaml").is_file() and done.table is not None and "trained" in done._repr_html_()
    assert trainer.train(tmp_path / "run", resume=True, progress=QUIET).encoder == done.encoder


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    for number, block in enumerate(BLOCKS):
        cell = tmp_path / f"cell-{number}.py"  # a notebook keeps the source of its cells, too
        cell.write_text(block, encoding="utf-8")
        exec(compile(block, str(cell), "exec"), names)  # noqa: S102 (our own page)
    trained = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert trained == ["estimator", "loss", "reward", "shelf", "tool"]
    kept = coseek.Run(next((tmp_path / "runs" / "shelf" / "rl" / "rollouts").iterdir()))
    assert all(hit.passage.text.startswith("Nothing is known") for run in kept.trajectories() for hit in run.hits)


def test_each_function_takes_at_most_eight_lines_of_a_notebook() -> None:
    functions = [[line for line in block.splitlines() if line.strip()] for block in BLOCKS if "def " in block]
    assert len(functions) == 6 and max(map(len, functions)) <= 8
