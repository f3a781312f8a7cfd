"""Fears about the table at paper size: a set of 125 questions measured by five, and no baseline beside the agent."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.pipelines.test_agent import TINY

from coseek.core.errors import SettingError, UserError
from coseek.core.progress import NoProgress
from coseek.data.dataset import draw
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import check_settings
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_results import train_and_measure
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.dry_run import small_model
from coseek.pipelines.estimate import shape_of
from coseek.pipelines.table_rows import BASELINE, TableRow, cell_folder, limits_of, pairs_of, rows_of
from coseek.pipelines.together_recipe import load_together_recipe

SIZES = {
    "nq": 3610, "triviaqa": 11_313, "popqa": 14_267, "hotpotqa": 7405, "2wikimultihopqa": 12_576, "musique": 2417,
    "bamboogle": 125,
}  # fmt: skip
"""Test questions of the seven sets as they are published."""


def test_a_baseline_has_the_budgets_of_its_own_protocol_and_of_the_paper(tmp_path: Path) -> None:
    """004, appendix A.1: four turns of three documents, where s3 has two of eight."""
    training = AgentTraining(load_recipe("s3"), tmp_path)
    limits = {name: limits_of(training, TableRow("", BASELINE, name, 0.0)) for name in ("search-o1", "rag")}
    assert (limits["search-o1"].max_turns, limits["search-o1"].passages_per_search) == (4, 3)
    assert limits["search-o1"].max_turn_tokens >= 2048 and limits["rag"].passages_per_search == 3
    assert limits_of(training, TableRow("after", "trained", "s3", 0.0)) == training.recipe.limits
    with pytest.raises(SettingError, match="max_turns"):
        load_recipe("s3", ["table.baseline_limits={max_turn: 4}"])


@pytest.fixture(scope="module")
def published() -> list[Question]:
    return [
        Question(f"{name}_{number}", "Who?", ("Bob",), meta={"data_source": name})
        for name, size in SIZES.items()
        for number in range(size)
    ]


def test_a_paper_s_table_asks_every_question_of_the_seven_sets(published: list[Question]) -> None:
    for name in ("search-r1-ppo", "search-r1-grpo", "qagent", "s3", "zerosearch"):
        table = load_recipe(name).table
        drawn = draw(published, table.questions, table.seed, table.per_set)
        assert Counter(one.dataset for one in drawn) == SIZES
    by_share = Counter(one.dataset for one in draw(published, 2000, 0))
    assert by_share["bamboogle"] == 5  # why not


def test_a_cap_for_each_set_leaves_the_small_ones_whole(published: list[Question]) -> None:
    cap = load_recipe("search-r1-ppo", ["table.per_set=500"]).table
    drawn = draw(published, cap.questions, cap.seed, cap.per_set)
    assert Counter(one.dataset for one in drawn) == {**dict.fromkeys(SIZES, 500), "bamboogle": 125}
    more = draw(published, None, cap.seed, 600)
    assert {one.id for one in drawn} < {one.id for one in more}
    pairs = load_together_recipe("agentic-r").pairs
    assert len(draw(published, pairs.questions, pairs.seed, pairs.per_set)) == 3125
    looks = load_recipe("search-r1-ppo").table
    seen = Counter(one.dataset for one in draw(published, looks.dev_questions, looks.seed, looks.dev_per_set))
    assert seen.total() == 200 and min(seen.values()) > 25  # of 14,267 and of 125 alike


# --- baselines


CHAT = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model with a chat template and a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("chat") / "model"
    recipe = load_recipe("from-nothing", ["policy.folder=base", "prompt_template=default"])
    small_model(recipe, shape_of(recipe)[0], recipe.load_protocol(), folder)
    tokenizer = HfTokenizer.load(folder)
    tokenizer.fast.chat_template = CHAT
    tokenizer.save(folder)
    return folder


def test_untrained_models_that_follow_instructions_have_rows_of_their_own(tmp_path: Path, chat_model: Path) -> None:
    recipe = load_recipe("from-nothing", [
        *TINY, "data.unseen=null", "rl.steps=0", "rl.evaluate_every=0", "policy.folder=base", "warm_start=null",
        "prompt_template=default", "limits={max_tokens: 1024, max_turn_tokens: 8}",
        "table={questions: 2, dev: false, sampled: false, dev_questions: 1, rag_passages: 2}",
        "table.baselines=[direct, cot, rag, ircot, search-o1, rules]", f"table.baseline_model={chat_model}",
        "table.metrics=[cover_em, f1]", "table.answer_with=[base]",
    ])  # fmt: skip
    training, table = train_and_measure(recipe, tmp_path / "run", False, NoProgress())
    assert table is not None
    names = ["before", "after", *(f"untrained {name}" for name in recipe.table.baselines[:-1]), "rules"]
    assert [row[0] for row in table.rows] == names and table.columns == ("agent", "test, cover_em", "test, f1")
    assert ("after", "untrained rag") in pairs_of(rows_of(training))
    [column] = training.sets
    runs = {row.name: cell(training, row.name, column) for row in rows_of(training)}
    assert all(len(list(run.trajectories())) == 2 for run in runs.values())
    asked = next(iter(runs["untrained rag"].trajectories()))
    assert "[assistant]" in asked.segments[1].text  # behind what the opening search found
    assert [len(search.hits) for search in asked.searches] == [2]  # rag_passages
    assert "[assistant]" not in next(iter(runs["before"].trajectories())).segments[0].text
    beside = "| answers of | the agent, cover_em | the agent, f1 | base, cover_em | base, f1 |"
    assert beside in (training.folder / "table.md").read_text()
    answered = json.loads((training.folder / "table.json").read_text())["test, answers of base"]
    assert {one["run"] for one in answered["summaries"] if "f1" in one["metrics"]} == {*names}
    assert all(len(list(run.folder.glob("reply.*"))) == 1 for run in runs.values())


def cell(training: AgentTraining, name: str, column: QuestionSet) -> Run:
    row = next(row for row in rows_of(training) if row.name == name)
    return Run(cell_folder(training, row, column))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("table.baselines=[directly]", "directly"),
        ("table.metrics=[covr_em]", "did you mean 'cover_em'"),
        ("table.metrics=[]", "table.metrics is empty"),
    ],
)
def test_a_misspelt_baseline_or_metric_is_refused_before_anything_is_trained(setting: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_settings(load_recipe("from-nothing", [setting]))


def test_a_baseline_over_the_wrong_retriever_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    recipe = load_recipe("from-nothing", [*TINY, "table.baselines=[rag-rerank]", "prompt_template=default"])
    training = AgentTraining(recipe, tmp_path / "run")
    training.begin(resume=False)
    with pytest.raises(SettingError, match="rag-rerank is meant for a retriever"):
        training.train()
    assert not (tmp_path / "run" / "policy").exists()
