"""Fears about dry runs: another machine than the one that was started."""

import json
from pathlib import Path
from typing import cast

import pytest
from tests.agents.test_chat_templates import TEMPLATE
from tests.models.networks import SMALL, TEXTS

from coseek.agents.agent_card import AgentCard
from coseek.agents.factory import former_protocol
from coseek.agents.protocol import load_protocol
from coseek.cli.main import main
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import make_policy
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.demonstrations import policy_warnings
from coseek.pipelines.dry_run import dry_run, small_recipe
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.estimate import check_fits, memory_of, shape_of
from coseek.pipelines.retriever_dry_run import retriever_dry_run, together_dry_run, work_of
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.training.encoder.recipe import load_retriever_recipe
from coseek.training.learner.settings import GIB


@pytest.mark.medium
@pytest.mark.parametrize("protocol", ["search-r1", "search-r1-code", "tongyi", "s3"])
def test_a_policy_that_knows_another_protocol_or_an_unknown_mark_is_named(protocol: str, tmp_path: Path) -> None:
    folder = tmp_path / "policy"
    make_policy(SMALL, TEXTS, [], folder, seed=1)
    tokenizer = HfTokenizer.load(folder)
    recipe = load_recipe("search-r1-grpo", [f"policy.folder={folder}", f"protocol={protocol}"])
    for opened, read in (("", True), ("[THINK]", True), ("<think>\n\n</think>\n\n", True), ("<cot>", False)):
        tokenizer.fast.chat_template = TEMPLATE.replace("assistant\n{% endif", f"assistant\n{opened}{{% endif")
        tokenizer.save(folder)
        assert any("'<cot>'" in line for line in policy_warnings(recipe)) != (read or protocol == "tongyi")
    AgentCard(protocol="search-r1").write(folder)
    # What a run and a recipe say; an answer without a search needs no new tag.
    unlike = {name for name in (protocol, "react", "direct", "cot") if former_protocol(folder, load_protocol(name))}
    assert unlike == {"react"} | ({protocol} - {"search-r1", "search-r1-code"})
    named = [line for line in policy_warnings(recipe) if "trained in the protocol search-r1" in line]
    assert not named if protocol.startswith("search-r1") else f"the recipe's is {protocol}" in named[0]
    taught = load_recipe("quickstart", [f"policy.folder={folder}", f"protocol={protocol}"])
    assert not any("trained in" in line for line in policy_warnings(taught))
    AgentCard(protocol="gone.yaml").write(folder)
    assert not any("trained in" in line for line in policy_warnings(recipe))


# --- processes


def test_one_process_of_a_recipe_for_eight_devices_is_refused_before_anything_is_loaded() -> None:
    recipe = load_recipe("search-r1-grpo")
    shape, _ = shape_of(recipe)
    assert memory_of(recipe, shape).needed / GIB < 60  # on eight
    with pytest.raises(SettingError, match=r"with 1 process .* about 15[0-9] GiB .*torchrun .*--nproc-per-node 8"):
        check_fits(recipe, 1, 80)
    check_fits(recipe, 8, 80)
    check_fits(load_recipe("search-r1-grpo", ["machine.check=false"]), 1, 80)
    check_fits(load_recipe("search-r1-grpo", ["policy.folder=models/unknown"]), 1, 80)  # of unknown shape


@pytest.mark.medium
def test_a_training_that_cannot_fit_ends_before_its_folder_is_written(tmp_path: Path) -> None:
    training = AgentTraining(load_recipe("from-nothing", ["policy.laptop.hidden=262144"]), tmp_path / "run")
    with pytest.raises(SettingError, match=r"needs about 1\d,\d{3} GiB on each device"):
        training.begin(resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_dry_run_is_of_the_recipe_s_devices_or_of_the_processes_of_which_the_first_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    report = dry_run(
        load_recipe("r1", ["threads=1", "table.answer_with=[models/absent]", "rl.group_size=4", "rl.tree_roots=3"])
    )
    assert "table.answer_with" in report.missing  # told, not raised
    [look] = cast(list[dict[str, float]], report.values["stages"])
    assert look["needed"] / GIB < 80 and not look["way_out"]
    assert "--nproc-per-node 8" in str(report.tables[0].rows)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert main(["train", "agent", "r1", "threads=1", "--dry-run", "--json"]) == 2  # its files are not there
    [stage] = json.loads(capsys.readouterr().out)["stages"]
    assert stage["needed"] > 1.1 * look["needed"]
    monkeypatch.setenv("RANK", "1")
    assert main(["train", "agent", "r1", "--dry-run"]) == 0 and not capsys.readouterr().out


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_world(WorldSettings(size="tiny", train=12, dev=4, test=4)).save(Path("mine"))
    return Path("mine")


def few(data: Path) -> list[str]:
    return [f"data.folder={data}", "encoder=base", "data.sentences=10", "threads=1", "training.batch_size=4"]


@pytest.mark.slow
def test_the_rows_and_updates_of_a_retriever_s_dry_run_are_those_of_its_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = load_retriever_recipe("documents", few(data))
    assert main(["train", "retriever", "documents", *few(data), "--dry-run", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    training = RetrieverTraining(recipe, tmp_path / "run")
    assert report["rows"] == len(training.rows()) and report["steps"] == round(-(-report["rows"] // 4) * 2)
    assert report["update_s"] > 0 and report["peak"] > 0
    assert report["searches"] == 2 * report["held_out"] > 0
    whole = retriever_dry_run(load_retriever_recipe("documents", [*few(data), "training.cached=false"]), NoProgress())
    assert report["needed"] < cast(float, whole.values["needed"])  # a micro-batch at a time
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_the_memory_of_a_training_is_known_before_its_labels_and_its_encoder_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    planned = ["train", "retriever", "agentir", "encoder=models/Qwen3-Embedding-4B", "--labels", "next", "--dry-run"]
    assert main([*planned, "--json"]) == 2
    printed = capsys.readouterr()
    assert 15 < json.loads(printed.out)["needed"] / GIB < 25
    assert "hf download Qwen/Qwen3-Embedding-4B" in printed.err and "next holds no labels" in printed.err


def test_a_round_s_searches_and_scorer_calls_are_counted_from_its_recipe() -> None:
    work = work_of(load_together_recipe("agentic-r", ["labels.questions=1000"]))
    assert (work.runs, work.searches, work.candidates) == (1000, 5000, 20)
    assert (work.scorer_calls, work.continuations) == (5000, 100_000)
    half = work_of(
        load_together_recipe("agentic-r", ["labels.questions=1000", "labels.settings={window: 10, gac: false}"])
    )
    assert (half.scorer_calls, half.continuations) == (10_000, 0)
    gold = work_of(load_together_recipe("documents"))
    assert (gold.scorer_calls, gold.continuations) == (0, 0)


@pytest.mark.slow
def test_a_co_training_s_dry_run_names_everything_that_is_missing_and_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    local = ["labels.scorer=models/Qwen2.5-72B-Instruct", "labels.serve=null"]
    assert main(["train", "together", "agentic-r", "agent.threads=1", *local, "--dry-run", "--json"]) == 2
    printed = capsys.readouterr()
    tree = json.loads(printed.out)
    assert tree["scorer"] == pytest.approx(135 * GIB, rel=0.02)  # 72 billion in bfloat16, in each process
    assert "each of 8 processes would load labels.scorer=models/Qwen2.5-72B-Instruct, 135 GiB" in printed.err
    assert tree["vectors"] == 4e6 * 768 and sum(tree["encoder"].values()) > GIB and tree["runs_s"] > 0
    for missing in ("data/wiki-18-agentic-r", "models/Qwen2.5-7B", "models/e5-base-v2", "labels.scorer"):
        assert missing in printed.err
    assert not list(tmp_path.iterdir())
    laptop = together_dry_run(load_together_recipe("laptop", ["agent.threads=1"]))
    assert sum(cast(dict[str, float], laptop.values["encoder"]).values()) > 0
    assert cast(JsonObject, laptop.values["work"])["searches"] == 4800
    laptop.refuse()


@pytest.mark.parametrize(
    "override",
    [
        "data.test=dev",
        "data={index: 'http://127.0.0.1:9', view: query}",
        "data.training_retriever={retriever: rerank, over: 'http://127.0.0.1:9', model: models/absent}",
        "select={ids: absent.txt, answerable: false}",
        "table={select: {ids: absent.txt}, baselines: [rag-rerank]}",
        "track=[wandb]",
        "rollout={servers: ['http://127.0.0.1:9'], max_steps_behind: 1}",
        "rl={backend: verl, backend_settings: {gpus: 1}}",
    ],
)
def test_the_small_step_reads_no_data_and_asks_no_server_of_the_recipe(override: str) -> None:
    plain = small_recipe(load_recipe("quickstart"), "base")
    assert small_recipe(load_recipe("quickstart", [override]), "base") == plain
