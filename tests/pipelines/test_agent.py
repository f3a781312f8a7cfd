"""The whole road in small: from a recipe to a table, stopped and gone on with."""

import json
import re
import sys
from pathlib import Path
from runpy import run_path

import pytest
import yaml
from tests.core.test_lock import holder
from tests.models.vllm_server import vllm_server
from tests.pipelines.trainings import checked_card, trained, typed
from tests.processes import run_workers

from coseek.cli.main import main
from coseek.core.errors import InUse, SettingError, UserError
from coseek.core.fingerprint import file_digest
from coseek.core.settings import make_settings
from coseek.data.run import Run
from coseek.data.token_data import read_token_data
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import files_of, scores_of, write_results
from coseek.pipelines.audit import audit_run
from coseek.pipelines.table_rows import answer_cells
from coseek.training.learner.checkpoint import TrainingState
from coseek.training.rl.settings import RlSettings
from coseek.view.run_source import open_sources

TINY = [
    "data.world={seed: 3, size: tiny, train: 60, dev: 20, test: 20}",
    "data.unseen={seed: 4, size: tiny, train: 0, dev: 0, test: 20}",
    "limits={max_turns: 2, max_turn_tokens: 32, max_observation_tokens: 128, max_tokens: 400}",
    "policy.laptop={hidden: 32, heads: 2, kv_heads: 1, feed_forward: 32, vocabulary: 1500}",
    "warm_start.world={size: tiny, train: 20, dev: 0, test: 0}",
    "warm_start.worlds=2",
    "warm_start.sft={steps: 6, repeat_steps: 2, rounds: 1, tokens_per_step: 1500}",
    "overlap=true",
    "rl={steps: 2, questions_per_step: 3, group_size: 2, evaluate_every: 1}",
    "table={questions: 8, dev_questions: 6}",
    "threads=1",
]
OF_A_MODEL = [setting for setting in TINY if not setting.startswith("policy.laptop")]
"""`TINY` for a recipe that begins with a model, whose shape is its own."""
FEW = ["table={questions: 3, dev_questions: 3, dev: false, sampled: false}", "data.unseen=null", "rl.evaluate_every=0"]
"""Settings behind `TINY` for a test that is not about the table: half of the time of a run."""


def tiny(*more: str) -> AgentRecipe:
    return load_recipe("from-nothing", [*TINY, *more])


@pytest.mark.slow
def test_a_recipe_becomes_a_trained_policy_a_table_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = trained(AgentTraining(tiny("track=[tensorboard]"), tmp_path / "run"))
    parts = {str(path.parent.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("events.out.*")}
    assert parts == {"trackers/tensorboard/rl", "trackers/tensorboard/warm-start/round-1"}  # runs of their own
    answer_cells(training)
    table = write_results(training, scores_of(training))
    assert table.columns == ("em", "dev", "test", "unseen")
    assert [row[0] for row in table.rows] == ["before", "after", "before, T=1", "after, T=1", "direct", "naive RAG"]
    assert all(Path(path).exists() for path in files_of(training))
    cells = sorted(path.name for path in (tmp_path / "run" / "table").iterdir())
    assert len(cells) == 18 and all(len(Run(tmp_path / "run" / "table" / cell).finished_keys()) == 8 for cell in cells)
    steps = [json.loads(line) for line in (tmp_path / "run" / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [1, 2] and "eval/reward" in steps[0]
    _, untrained = checked_card(training.policy_folder("start"))
    assert "nothing: an untrained model" in untrained
    front, card = checked_card(training.policy_folder("trained"), tmp_path)
    assert front["library_name"] == "transformers" and "base_model" not in front
    assert "the row after." in card and all(cell in card for row in table.rows for cell in row)
    assert "supervised training on demonstrations (expert) → reinforcement learning" in card
    assert file_digest(tmp_path / "run" / "data" / "questions.train.jsonl") in card
    (recipe,) = re.findall(r"```yaml\n(.*?)```", card, flags=re.DOTALL)
    assert make_settings(AgentRecipe, yaml.safe_load(recipe)) == training.recipe
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script" not in page and "What was learnt" in page
    (kept,) = (tmp_path / "run" / "rl" / "rollouts").iterdir()
    audit = audit_run(kept)
    assert kept.name == "step-000002" and audit.rows == audit.derived == 6 and audit.bound and not audit.violations
    for cell in cells:
        audit = audit_run(tmp_path / "run" / "table" / cell)
        assert audit.rows == audit.derived == 8 and not audit.violations, cell
    assert main(["score", str(kept)]) == 0
    sources, _ = open_sources([tmp_path / "run"])
    assert len(sources) == 19 and len(read_token_data(sources[-1].folder)) == 6

    again = AgentTraining(tiny(), tmp_path / "run")  # everything is there: nothing is done twice
    before = (tmp_path / "run" / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns
    again.begin(resume=True)
    again.train()
    answer_cells(again)
    assert write_results(again, scores_of(again)) == table
    assert (tmp_path / "run" / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns == before

    example = Path(__file__).parents[2] / "examples" / "grpo.py"
    monkeypatch.setattr(sys, "argv", [str(example), str(tmp_path / "run"), "2"])
    capsys.readouterr()
    run_path(str(example))
    assert [line[:8] for line in capsys.readouterr().out.splitlines()] == ["step  1 ", "step  2 "]


@pytest.mark.slow
def test_two_workers_go_through_every_kind_of_training_with_shards(tmp_path: Path) -> None:
    """Warm start, reinforcement learning with critic and reference, and rejection sampling of one recipe."""
    shards = "{micro_batch_tokens: 512, strategy: fsdp2}"
    rejection = f"{{samples: 1, at_least: -9, sft: {{steps: 2, repeat_steps: 0, learner: {shards}}}}}"
    stages = f"{{first: {{learn: rl}}, second: {{learn: rejection, rejection: {rejection}}}}}"
    words = [*TINY, *FEW, f"warm_start.sft.learner={shards}", f"rl.policy={shards}", f"rl.critic={shards}"]
    words += ["rl.algorithm=ppo", "rl.kl_coef=0.01", "rl.evaluate_every=1", f"stages={stages}", "select.most=4"]
    run_workers(2, typed, "train", "agent", "from-nothing", "--out", str(tmp_path / "run"), *words)
    assert (tmp_path / "run" / "table.md").exists()
    for cell in (tmp_path / "run" / "table").iterdir():
        assert len(Run(cell).finished_keys()) == 3 and not (cell / "parts").exists()
    for name in ("warm", "first", "trained"):
        assert (tmp_path / "run" / "policy" / name / "model.safetensors").exists()
    rollouts = list(Run(tmp_path / "run" / "rl" / "first" / "rollouts" / "step-000002").trajectories())
    assert len(rollouts) == 6 == len({(trajectory.question.id, trajectory.seed) for trajectory in rollouts})
    looks = (tmp_path / "run" / "rl" / "first" / "metrics.jsonl").read_text().splitlines()
    assert all("eval/reward" in json.loads(line) for line in looks)  # each worker answers a share of the questions
    for stage in ("warm-start/round-1", "rl/first", "rl/second/round-1"):
        newest = max((tmp_path / "run" / stage / "checkpoints").glob("step-*"))
        assert len([*newest.glob("shard-*")]) == 2


@pytest.mark.slow
def test_a_folder_in_which_another_process_trains_is_left_alone(tmp_path: Path) -> None:
    with holder("folder", tmp_path / "run"), holder("folder", tmp_path / "rl"):
        with pytest.raises(InUse):
            AgentTraining(tiny(), tmp_path / "run").begin(resume=True)
        with pytest.raises(InUse):
            TrainingState(tmp_path / "rl", RlSettings(), {}, {}, resume=True)
    assert not (tmp_path / "run" / "recipe.yaml").exists() and not (tmp_path / "rl" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.train=trian", "did you mean 'train'"),
        ("data.retriever_settings={kk1: 1.0}", "did you mean 'k1'"),
        ("policy.laptop.hidden=100", "hidden must be an even multiple of heads"),
        ("policy.folder=/", "/ holds no config.json and no"),
        ("warm_start.also={s3-think: 0.1}", "could not tell them apart"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_before_anything_is_written(
    setting: str, message: str, tmp_path: Path
) -> None:
    recipe = load_recipe("from-nothing", [setting])
    with pytest.raises(UserError, match=message):
        AgentTraining(recipe, tmp_path / "run").begin(resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_recipe_trains_with_servers_that_sample_ahead(tmp_path: Path) -> None:
    first = AgentTraining(load_recipe("from-nothing", TINY), tmp_path / "warm")
    first.begin(resume=False)
    first.prepare_data()
    first.make_policy()
    first.warm_start()
    warm = first.policy_folder("warm")
    with vllm_server(warm) as server:
        settings = [
            *OF_A_MODEL, "learn=rl", "warm_start=null", f"policy.folder={warm}", "rl.steps=4",
            f"rollout={{servers: [{server.url}], weights: {tmp_path / 'served'}, max_steps_behind: 1}}",
        ]  # fmt: skip
        trained(AgentTraining(load_recipe("from-nothing", settings), tmp_path / "run"))
        assert server.written_tokens > 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["faults"], row["servers"]) for row in rows] == [(step, 0, 1) for step in range(1, 5)]
    assert all("eval/reward" in row and 0 <= row["steps_behind_max"] <= 1 for row in rows)
    assert (tmp_path / "run" / "policy" / "trained" / "model.safetensors").exists()


def test_a_recipe_that_cannot_sample_ahead_is_refused_before_anything_is_made() -> None:
    ahead = "rollout={servers: ['http://127.0.0.1:9'], max_steps_behind: 1}"
    with pytest.raises(SettingError, match="set max_steps_behind=0 or dynamic_sampling=false"):
        load_recipe("from-nothing", [ahead, "rl.dynamic_sampling=true"])
