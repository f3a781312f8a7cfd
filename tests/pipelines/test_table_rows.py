"""Fears about the table at paper size: a set of 125 questions measured by five, and no baseline beside the agent."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, fault, run, search_of
from tests.pipelines.test_agent import OF_A_MODEL, TINY
from tests.scripted import Failing, Scripted, generator, judge

from coseek.core.errors import SettingError, UserError
from coseek.core.progress import NoProgress
from coseek.data.dataset import draw
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import StopReason
from coseek.graders.factory import Graders, GraderSettings
from coseek.measure.score import METRICS, summaries_of
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_check import check_settings
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import alarms_of, train_and_measure
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.dry_run import small_model
from coseek.pipelines.estimate import shape_of
from coseek.pipelines.table_rows import (
    BASELINE,
    CHAIN,
    CHAIN_GROUPS,
    TableRow,
    by_generator,
    cell_folder,
    limits_of,
    metric_of,
    naive_rag,
    pairs_of,
    rows_of,
    scored_by_generator,
    selection_table,
    with_answers,
)
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.retrieval.retriever import FixedRetriever
from coseek.training.rl.monitor import alarm_steps

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


@pytest.mark.medium
def test_a_paper_s_table_asks_every_question_of_the_seven_sets(published: list[Question]) -> None:
    for name in ("search-r1-ppo", "search-r1-grpo", "qagent", "s3", "zerosearch"):
        table = load_recipe(name).table
        drawn = draw(published, table.questions, table.seed, table.per_set)
        assert Counter(question.dataset for question in drawn) == SIZES
    by_share = Counter(question.dataset for question in draw(published, 2000, 0))
    assert by_share["bamboogle"] == 5  # why not


@pytest.mark.medium
def test_a_cap_for_each_set_leaves_the_small_ones_whole(published: list[Question]) -> None:
    cap = load_recipe("search-r1-ppo", ["table.per_set=500"]).table
    drawn = draw(published, cap.questions, cap.seed, cap.per_set)
    assert Counter(question.dataset for question in drawn) == {**dict.fromkeys(SIZES, 500), "bamboogle": 125}
    more = draw(published, None, cap.seed, 600)
    assert {question.id for question in drawn} < {question.id for question in more}
    pairs = load_together_recipe("agentic-r").pairs
    assert len(draw(published, pairs.questions, pairs.seed, pairs.per_set)) == 3125
    looks = load_recipe("search-r1-ppo").table
    seen = Counter(question.dataset for question in draw(published, looks.dev_questions, looks.seed, looks.dev_per_set))
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


@pytest.mark.medium
def test_untrained_models_that_follow_instructions_have_rows_of_their_own(tmp_path: Path, chat_model: Path) -> None:
    recipe = load_recipe("from-nothing", [
        *OF_A_MODEL, "data.unseen=null", "rl.steps=0", "rl.evaluate_every=0", "policy.folder=base", "warm_start=null",
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
    trajectory = next(iter(runs["untrained rag"].trajectories()))
    assert "[assistant]" in trajectory.segments[1].text  # behind what the opening search found
    assert [len(search.hits) for search in trajectory.searches] == [2]  # rag_passages
    assert "[assistant]" not in next(iter(runs["before"].trajectories())).segments[0].text
    beside = "| answers of | the agent, cover_em | the agent, f1 | base, cover_em | base, f1 |"
    assert beside in (training.folder / "table.md").read_text()
    answered = json.loads((training.folder / "table.json").read_text())["test, answers of base"]
    assert {summary["run"] for summary in answered["summaries"] if "f1" in summary["metrics"]} == {*names}
    assert all(len(list(run.folder.glob("reply.*"))) == 1 for run in runs.values())


def cell(training: AgentTraining, name: str, column: QuestionSet) -> Run:
    row = next(row for row in rows_of(training) if row.name == name)
    return Run(cell_folder(training, row, column))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("table.baselines=[directly]", "directly"),
        ("table.metrics=[covr_em]", "did you mean 'cover_em'"),
        ("table.metrics=[]", "table.metrics is empty"),
    ],
)
def test_a_misspelt_baseline_or_metric_is_refused_before_anything_is_trained(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_settings(load_recipe("from-nothing", [setting]))


@pytest.mark.medium
def test_a_baseline_over_the_wrong_retriever_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    recipe = load_recipe("from-nothing", [*TINY, "table.baselines=[rag-rerank]", "prompt_template=default"])
    training = AgentTraining(recipe, tmp_path / "run")
    training.begin(resume=False)
    with pytest.raises(SettingError, match="rag-rerank is meant for a retriever"):
        training.train()
    assert not (tmp_path / "run" / "policy").exists()


SECOND = replace(QUESTION, id="q2", question="who founded Orbo?", answers=("Mira Tan",), hops=1)
CORPUS = Corpus([ORBO, MIRA, OTHER])
SILENT = ["graders={generator: {model: gen}, judge: {model: oracle}, baseline: {passages: 2}}"]


def frozen_of(model: Scripted, folder: Path, marker: Scripted | None = None) -> Graders:
    return Graders(GraderSettings(), folder, generator(model), None if marker is None else judge(marker))


def silent(*more: str) -> AgentRecipe:
    return load_recipe("from-nothing", [*TINY, *SILENT, "protocol=s3", "reward={gbr: 1.0}", *more])


# --- naive RAG for a generator


def test_naive_rag_searches_for_the_question_itself_and_a_second_start_searches_for_nothing(tmp_path: Path) -> None:
    retriever = FixedRetriever(CORPUS, {QUESTION.question: ["orbo", "other", "mira"]})
    kept = Run.create(tmp_path / "cell", {})
    for _ in range(2):
        naive_rag(kept, retriever, [QUESTION], 2, seed=0)
    (only,) = kept.trajectories()
    assert [hit.passage.id for hit in only.searches[0].hits] == ["orbo", "other"]
    assert only.stop is StopReason.COMPLETE and only.answer is None


def test_a_search_of_naive_rag_that_failed_is_a_fault_and_no_wrong_answer(tmp_path: Path) -> None:
    kept = Run.create(tmp_path / "cell", {})
    away = Failing(FixedRetriever(CORPUS, {QUESTION.question: ["mira"]}), lambda query: "who founded" in query.text)
    naive_rag(kept, away, [QUESTION, SECOND], 3, seed=0)
    runs = list(kept.trajectories())
    scored = scored_by_generator(frozen_of(Scripted(lambda _: "Velora"), tmp_path), "RAG", kept.folder, runs)
    assert scored.questions["q1"].metrics["em"] == 1.0
    assert scored.questions["q2"].rows == 0 and scored.questions["q2"].faults == 1


# --- what the generator answers


def test_the_generator_answers_for_the_agent_and_is_asked_once_however_often_one_measures(tmp_path: Path) -> None:
    model, judge = Scripted(lambda _: "the town of Velora"), Scripted(lambda _: "yes")
    frozen, runs = frozen_of(model, tmp_path, judge), [run(search_of("orbo", ORBO, MIRA), answer=None)]
    for _ in range(2):
        scored = scored_by_generator(frozen, "after", tmp_path, runs)
    row = scored.questions["q1"].metrics
    assert (row["em"], row["cover_em"], row["gen_acc"], row["context_passages"]) == (0.0, 1.0, 1.0, 2.0)
    assert len(model.calls) == 1 and len(judge.calls) <= 1
    shown = with_answers(frozen, tmp_path, [*runs, fault(seed=1)])
    assert [reply.answer for reply in shown] == ["the town of Velora"]


def test_what_the_agent_left_out_is_shown_beside_what_it_selected(tmp_path: Path) -> None:
    search = replace(search_of("orbo", ORBO, OTHER, MIRA), selected=("orbo",))
    frozen, runs = frozen_of(Scripted(lambda _: "?"), tmp_path), {"after": [run(search, search, answer=None)]}
    assert frozen.generator is not None
    scored = scored_by_generator(frozen, "after", tmp_path, runs["after"])
    scores = summaries_of([scored], [QUESTION], CHAIN_GROUPS, tuple(METRICS), seed=0)
    table = selection_table(frozen.generator, runs, scores)
    assert [cell.split()[0] for cell in table.rows[0]][1::2] == ["1.0", "3.0"]
    assert float(table.rows[0][4]) > float(table.rows[0][2].split()[0])
    assert {summary.group for summary in scores.summaries} == {"all", "2 hops", CHAIN}


# --- which rows


def test_an_agent_without_answers_stands_beside_rag_with_as_many_passages_as_it_may_serve(tmp_path: Path) -> None:
    rows = rows_of(AgentTraining(silent("table.wide_rag=9"), tmp_path))
    assert [row.label for row in rows if row.passages] == ["RAG k=2", "RAG k=9"]
    assert not {"direct", "naive RAG"} & {row.name for row in rows}  # they answer themselves: another question
    assert ("after", "RAG k=9") in pairs_of(rows)
    assert metric_of(AgentTraining(silent(), tmp_path)) == "gen_acc"


def test_the_headline_is_defined_where_the_data_names_no_gold_passages(tmp_path: Path) -> None:
    paper = ["reward={answer_hit: 1.0}"]  # as the recipe of the real size
    tiers = ["reward={preset: deepretrieval-tiers}"]
    for reward, metric in ((paper, "answer_hit"), (tiers, "answer_hit"), ([], "recall")):
        training = AgentTraining(load_recipe("deepretrieval", ["preset=laptop", *reward]), tmp_path)
        assert metric_of(training) == metric
    assert load_recipe("deepretrieval").reward == load_recipe("deepretrieval", ["preset=laptop", *paper]).reward


def test_an_agent_that_answers_keeps_its_own_answers_whatever_generator_its_reward_asks(tmp_path: Path) -> None:
    training = AgentTraining(load_recipe("from-nothing", [*TINY, *SILENT]), tmp_path)
    assert not by_generator(training) and metric_of(training) == "em"
    assert TableRow("naive RAG", "warm", "rag", 0.0) in rows_of(training)


@pytest.mark.parametrize(
    ("warm_start", "prefix"),
    [
        ("{one_shot: 0.1}", ""),
        ("{one_shot: 0, also: {direct: 0.1, rag: 0.1}}", ""),
        ("{one_shot: 0}", "untaught "),
        ("{demonstrator: runs, runs: [x], worlds: 0}", "untaught "),
    ],
)
def test_a_baseline_that_no_demonstration_shows_is_called_untaught(
    warm_start: str, prefix: str, tmp_path: Path
) -> None:
    training = AgentTraining(load_recipe("from-nothing", [f"warm_start={warm_start}"]), tmp_path)
    assert {f"{prefix}direct", f"{prefix}naive RAG"} <= {row.label for row in rows_of(training)}


@pytest.mark.parametrize("more", ["also: {rag: 0.1}", "reading: 0.1", "also: {rag: 2}"])
def test_demonstrations_that_are_never_made_are_refused(more: str) -> None:
    with pytest.raises(SettingError, match=r"leave both out|at most 1"):
        load_recipe("from-nothing", [f"warm_start={{demonstrator: runs, runs: [x], {more}}}"])


# --- what health said


def test_an_alarm_is_told_with_the_steps_in_which_it_was_on(tmp_path: Path) -> None:
    (stage,) = AgentTraining(load_recipe("from-nothing", TINY), tmp_path).stages
    assert alarms_of(stage) == []
    rows: list[dict[str, float]] = [{"step": step, "alarms": 0} for step in (1, 2, 3, 4)]
    stage.folder.mkdir()
    path = stage.folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert alarms_of(stage) == ["No alarm in 4 steps of reinforcement learning."]
    rows[1]["alarm/no-search"] = rows[3]["alarm/no-search"] = rows[3]["alarm/exploding"] = 1
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert alarm_steps(rows) == {"no-search": [2, 4], "exploding": [4]}
    assert "no-search in 2 of 4 steps" in alarms_of(stage)[0] and "first in step 2" in alarms_of(stage)[0]


# --- the whole road of s3


@pytest.mark.slow
def test_an_s3_recipe_ends_with_its_table(tmp_path: Path, chat_model: Path) -> None:
    recipe = load_recipe("s3", [
        "preset=laptop", *OF_A_MODEL, "data.unseen=null", "warm_start=null", f"policy.folder={chat_model}",
        f"graders.generator.model={chat_model}", "graders.generator.prompt=generator", "graders.baseline.passages=1",
        "select.most=4", "rl.evaluate_every=0",
        "limits={max_turns: 1, max_turn_tokens: 8, max_observation_tokens: 120, max_tokens: 512}",
        "table={questions: 2, dev_questions: 2, rag_passages: 3, wide_rag: 6, sampled: false}",
    ])  # fmt: skip
    train_and_measure(recipe, tmp_path, False, NoProgress())
    table = (tmp_path / "table.md").read_text()
    assert "| gen_acc | dev | test |" in table and "RAG k=6" in table and "tokens, selected" in table
