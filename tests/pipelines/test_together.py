"""Co-training: what a round is told, and when there is no other."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from tests.pipelines.small_together import outcome, small as recipe, train
from tests.pipelines.trainings import checked_card
from tests.retrieval.tiny_encoder import make_encoder
from tests.serve.live import live
from tests.training.tiny_labels import label, write_labels

from coseek.core.errors import CoseekError, DataError, SettingError
from coseek.core.progress import NoProgress
from coseek.data.dataset import Dataset
from coseek.data.run import Run
from coseek.pipelines.audit import audits_of
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.run_record import resolve_recipe
from coseek.pipelines.together.labelling import round_questions
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.pipelines.together.together import CoTraining, Results
from coseek.pipelines.together_recipe import (
    GIVEN,
    check_together,
    load_together_recipe,
    together_recipe_names,
)
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.rerank import Reranker

FEW = ("labels.questions=15", "pairs={questions: 2}")
"""Settings of a co-training whose table nobody reads."""


@pytest.fixture(scope="module")
def one_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a co-training of one round."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("together")
    train(recipe(folder, "rounds=1"), folder / "run", False, NoProgress())
    return folder / "run"


# --- the recipe


@pytest.mark.parametrize("name", together_recipe_names())
def test_every_recipe_of_ours_can_be_read(name: str) -> None:
    read = load_together_recipe(name)
    assert read.about and read.rounds == 2
    assert read.retriever.labels == (GIVEN,) and read.retriever.encoder == GIVEN


def test_the_papers_recipe_has_the_papers_numbers() -> None:
    read = load_together_recipe("agentic-r")
    assert (read.agent.rl.algorithm, read.agent.rl.steps, read.agent.rl.num_minibatches) == ("ppo", 500, 2)
    assert (read.agent.limits.max_turns, read.agent.limits.passages_per_search) == (5, 3)
    assert read.agent.reward == {"exact_match": 1.0}
    assert read.agent.data.folder == "data/wiki-18-agentic-r" and read.agent.data.index == "indexes/wiki-18-e5"
    assert read.labels.method == "agentic-r" and read.retriever.view == "question+query"
    assert (read.retriever.loss.temperature, read.retriever.loss.negatives) == (0.01, 15)
    assert (read.retriever.training.epochs, read.retriever.training.optimizer.lr) == (2, 2e-5)


def test_recipes_inside_a_recipe_are_names_files_or_lines(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: from-nothing\nrl: {steps: 7}")
    path = tmp_path / "both.yaml"
    path.write_text("agent: mine.yaml\nstart: minilm\nretriever: agentic-r")
    read = load_together_recipe(str(path), ["agent.rl.kl_coef=0.5", "start.index.dtype=float16"])
    assert (read.agent.rl.steps, read.agent.rl.kl_coef) == (7, 0.5)
    assert (read.start.encoder, read.start.index) == ("minilm", {"dtype": "float16"})
    assert read.retriever.view == "question+query" and read.retriever.labels == (GIVEN,)
    whole = ["agent={extends: search-r1-ppo, preset: laptop}", "start=laptop"]
    again = load_together_recipe(str(path), whole)
    assert again.agent.rl.algorithm == "ppo"
    assert again.start.recipe is not None and again.start.recipe.synthetic is not None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("retriever.labels=[x]", "leave retriever.labels out"),
        ("retriever.encoder=minilm", "leave retriever.encoder out"),
        ("retriever.training.step=3", "did you mean '.*training.steps'"),
        ("agent.learn=demonstrations", "learns nothing in a round"),
        ("retriever.kind=late-interaction", "must both be late-interaction"),
        ("start=!replace {}", "either start.encoder"),
        ("start=http://127.0.0.1:1", "retriever 1 needs weights to begin with"),
        (
            "start=!replace {url: 'http://h:1', encoder: minilm, index: {view: query}}",
            "leave start.recipe and start.index",
        ),
        ("index.retriever=http://127.0.0.1:1", "index.retriever"),
        ("stop.metric=emm", "did you mean 'em'"),
        ("rounds=0", "rounds"),
        ("labels={samples: 4, temperature: 0}", r"one run 4 times; raise labels\.temperature"),
        ("labels.serve=vllm serve MODEL", "and labels.scorer is oracle; set labels.scorer to the address"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_sentence(override: str, message: str) -> None:
    with pytest.raises(CoseekError, match=message):
        load_together_recipe("laptop", [override])


def test_an_encoder_that_retriever_0_cannot_index_is_refused_before_anything_is_trained() -> None:
    sparse = load_together_recipe("laptop", ["index.retriever=sparse", "retriever.kind=sparse", "start=base"])
    with pytest.raises(CoseekError, match="take an encoder for sparse"):
        check_together(sparse)


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("labels.method=agentc", "did you mean 'agentic-r'"),
        ("agent.policy.folder=nowhere", "there is no nowhere"),
        ("agent.data=!replace {folder: DATA}", "the oracle knows laptop worlds only"),
        ("labels.scorer=null", "set labels.scorer to a model"),
        ("labels=!replace {method: dr-synth}", "set labels.scorer to a model"),
        ("labels=!replace {method: dr-synth, scorer: oracle, settings: {samples: 4}}", "leave labels.settings.samples"),
        ("labels=!replace {method: dr-synth, scorer: oracle, settings: {shown: 60}}", "shown=60"),
        ("labels=!replace {method: agentic-r, scorer: oracle, settings: {shown: 3}}", "no setting named 'shown'"),
        ("labels=!replace {method: replug}", "labels.likelihood"),
        (
            "labels=!replace {method: dr-synth, scorer: 'http://127.0.0.1:1', serve: no-program}",
            "no program 'no-program'",
        ),
        ("retriever.loss.kind=kl", "labels.method=agentic-r gives none"),
        ("labels.settings={}", "take labels.settings.gac=false"),
    ],
)
def test_what_a_recipe_cannot_do_is_said_before_anything_is_written(tmp_path: Path, override: str, error: str) -> None:
    more = ["agent.warm_start=null"] if "DATA" in override else []
    for split in ("train", "dev", "test"):
        (tmp_path / f"questions.{split}.jsonl").touch()
    (tmp_path / "corpus.jsonl").touch()
    out = tmp_path / "run"
    with pytest.raises(CoseekError, match=error):
        CoTraining(recipe(tmp_path, override.replace("DATA", str(tmp_path)), *more), out).begin(resume=False)
    assert not out.exists()


@pytest.mark.parametrize(
    ("more", "way_out"), [(("labels.method=agentic-r", "labels.settings={}"), "gac=false"), ((), "reject=false")]
)
def test_an_agent_that_writes_no_answer_can_be_co_trained_as_the_docs_say(
    tmp_path: Path, more: tuple[str, ...], way_out: str
) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    there = [f"agent.{name}={tmp_path}" for name in ("policy.folder", "graders.generator.model")]
    with pytest.raises(SettingError, match=f"take labels.settings.{way_out}"):
        check_together(load_together_recipe("laptop", ["agent={extends: s3, preset: laptop}", *there, *more]))
    also = [*there, *more, f"labels.settings.{way_out}"]
    check_together(load_together_recipe("laptop", ["agent={extends: s3, preset: laptop}", *also]))


@pytest.mark.medium
def test_a_folder_is_gone_on_with_by_the_same_recipe_or_by_one_of_more_rounds(tmp_path: Path) -> None:
    out = tmp_path / "run"
    CoTraining(recipe(tmp_path), out).begin(resume=False)
    (out / "labels.json").write_text("{}")
    with pytest.raises(DataError, match="--resume"):
        CoTraining(recipe(tmp_path), out).begin(resume=False)
    more = recipe(tmp_path, "rounds=5", "agent.rl.monitor.stop=true", "about=more of it")
    CoTraining(more, out).begin(resume=True)
    with pytest.raises(SettingError, match=r"begun with retriever.view = 'question\+query', and now 'query'"):
        CoTraining(recipe(tmp_path, "retriever.view=query"), out).begin(resume=True)
    written = load_together_recipe(str(out / "recipe.yaml"))
    assert written == resolve_recipe(more)


# --- what a round is told


def test_each_learns_over_the_other_as_it_stood_a_round_before(tmp_path: Path) -> None:
    training = CoTrainingPaths(recipe(tmp_path), tmp_path / "run")
    first, second = training.agent_recipe(1), training.agent_recipe(2)
    assert first.data.index == str(tmp_path / "run" / "round-0" / "index")
    assert second.data.index == str(tmp_path / "run" / "round-1" / "index")
    assert first.policy.folder == str(training.first.policy_folder("warm"))
    assert second.policy.folder == str(tmp_path / "run" / "round-1" / "agent" / "policy" / "trained")
    assert first.seed != second.seed and first.warm_start is None and first.rl.steps == 3
    tuned = training.retriever_recipe(2)
    assert tuned is not None and tuned.labels == (str(tmp_path / "run" / "round-2" / "labels"),)
    assert tuned.encoder == str(tmp_path / "run" / "round-1" / "retriever" / "encoder")
    assert training.recipe.threads == 1 == tuned.threads == first.threads


def test_rollout_servers_sample_in_the_rounds_and_may_be_others_when_it_is_gone_on_with(tmp_path: Path) -> None:
    former, other = (recipe(tmp_path, f"agent.rollout.servers=[http://127.0.0.1:{port}]") for port in (1, 2))
    training = CoTrainingPaths(former, tmp_path / "run")
    assert not training.first.recipe.rollout.servers and training.agent_recipe(1).rollout == former.agent.rollout
    assert training.fixed_settings(former) == training.fixed_settings(other)


def test_a_later_round_adds_no_token_to_the_policy_it_begins_with(tmp_path: Path) -> None:
    more = ("agent.policy={folder: base, add_tag_tokens: true, add_word_tokens: 300}",)
    training = CoTrainingPaths(recipe(tmp_path, *more), tmp_path / "run")
    assert training.first.recipe.policy.add_word_tokens == 300 and training.first.recipe.policy.add_tag_tokens
    for number, begins in ((1, training.policy(0)), (2, training.policy(1))):
        training.agent(number).make_policy()
        assert training.agent(number).policy_folder("start") == begins
        assert not training.round(number).agent.exists()


def test_what_is_held_out_in_a_round_was_trained_on_in_none_before(tmp_path: Path) -> None:
    training = CoTrainingPaths(recipe(tmp_path), tmp_path / "run")
    seen: set[str] = set()
    for number in (1, 2):
        write_labels(training.round(number).labels)
        tuned = training.retriever_recipe(number)
        assert tuned is not None and tuned.held_out.share == 0.3
        material = RetrieverTraining(tuned, tmp_path / f"retriever-{number}").material
        assert material.held_out is not None
        held = {label.question.question for label in material.held_out.labels}
        seen |= {label.question.question for label in material.train}
        assert held and not held & seen
    assert len(seen) < len({label(number).question.question for number in range(24)})
    begun, tuned = training.retriever_recipe(0), training.retriever_recipe(1)
    assert begun is not None and tuned is not None and begun.held_out.seed == tuned.held_out.seed
    own = CoTrainingPaths(recipe(tmp_path, "retriever.held_out.seed=5"), tmp_path / "run").retriever_recipe(2)
    assert own is not None and own.held_out.seed == 5


def test_a_round_may_begin_with_what_there_was_at_the_start(tmp_path: Path) -> None:
    training = CoTrainingPaths(recipe(tmp_path, "agent_begins=start", "retriever_begins=start"), tmp_path / "run")
    assert training.agent_recipe(2).policy.folder == str(training.first.policy_folder("warm"))
    tuned = training.retriever_recipe(2)
    assert tuned is not None and tuned.encoder == str(tmp_path / "run" / "round-0" / "retriever" / "encoder")


def test_what_only_the_first_encoder_must_be_told_is_not_told_to_its_successors(tmp_path: Path) -> None:
    more = ("start=!replace {encoder: minilm, index: {view: query}}", "index.settings={search: int8}")
    training = CoTrainingPaths(recipe(tmp_path, *more), tmp_path / "run")
    assert training.index_settings(0) == {"search": "int8", "view": "query", "encoder": "minilm"}
    assert training.index_settings(1) == {"search": "int8", "encoder": training.encoder(1)}
    assert training.retriever_recipe(0) is None


def test_every_round_draws_its_own_training_questions_and_always_the_same(tmp_path: Path) -> None:
    training = CoTrainingPaths(recipe(tmp_path), tmp_path / "run")
    training.first.prepare_data()
    first, second = round_questions(training, 1), round_questions(training, 2)
    assert len(first) == len({question.id for question in first}) == 30
    assert first != second and first == round_questions(CoTrainingPaths(training.recipe, training.folder), 1)
    everything = load_together_recipe(str(tmp_path / "small.yaml"), ["labels.questions=1000"])
    assert len(round_questions(CoTrainingPaths(everything, training.folder), 1)) == 60


def test_an_oracle_that_judges_rewards_knows_the_world_in_every_round(tmp_path: Path) -> None:
    training = CoTrainingPaths(recipe(tmp_path, "agent.graders.judge={model: oracle}"), tmp_path / "run")
    judge = training.agent_recipe(1).graders.judge
    assert judge is not None and judge.model == str(training.data_folder)


# --- the table


@pytest.mark.slow
def test_two_rounds_leave_three_agents_three_encoders_and_every_pair(
    one_round: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round is asked for after the first has ended, as a user does who wants more."""
    out = one_round
    train(recipe(tmp_path), out, True, NoProgress())
    before = outcome(out)
    for weights in ("/policy/", "/retriever/encoder/"):  # comparing weights that never moved would say nothing
        digests = [digest for name, digest in before.items() if weights in name]
        assert len(set(digests)) == len(digests) >= 3
    cells = [path for path in (out / "pairs").iterdir() if not path.name.endswith(".dev")]
    assert len(cells) == 12 and all(len(Run(path).finished_keys()) == 6 for path in cells)
    table = json.loads((out / "table.json").read_text())
    assert table["rounds"] == 2 and not table["stopped_early"] and len(table["dev"]) == 3
    assert len({summary["run"] for summary in table["summaries"]}) == 12
    compared = [(row["run"], row["against"]) for row in table["comparisons"] if row["group"] == "all"]
    steps = [f"agent {agent}, retriever {retriever}" for agent, retriever in ((0, 0), (1, 0), (1, 1), (2, 1), (2, 2))]
    assert compared == [*zip(steps[1:], steps, strict=False), (steps[-1], steps[0]), (steps[-1], "agent 2, bm25")]
    page = (out / "report.html").read_text()
    assert "<script" not in page and "Round by round" in page
    _, card = checked_card(out / "round-2" / "agent" / "policy" / "trained")
    assert "the row agent 2." in card and "| agent 0 |" in card
    assert "| trained − before | all |" in checked_card(out / "round-2" / "retriever" / "encoder")[1]
    run = yaml.safe_load((out / "round-1" / "run" / "run.yaml").read_text())["settings"]
    assert run["retriever"] == str(out / "round-0" / "index")
    audits = [audit for folder in ("round-1/run", "pairs") for audit in audits_of(out / folder)]
    assert [(audit.folder, audit.violations[:1], audit.left_out) for audit in audits if audit.count] == []
    assert all("questions and rows" not in audit.left_out for audit in audits)

    # Everything is there: a later start trains nothing, also by a relative path, and may decide otherwise.
    train(recipe(tmp_path), out, True, NoProgress())
    assert outcome(out) == before
    with monkeypatch.context() as elsewhere:
        elsewhere.chdir(out.parent)
        train(recipe(tmp_path), Path(out.name), True, NoProgress())
        assert outcome(out) == before
    training = CoTraining(recipe(tmp_path, "stop.min_improvement=2.0"), out)
    assert training.train() == 1
    results = Results.of(training, 1)
    assert any("Stopped early: round 1 did not raise it by 2" in note for note in results.headline().notes)


@pytest.mark.slow
def test_a_server_can_be_the_first_retriever_and_the_agents_own(one_round: Path, tmp_path: Path) -> None:
    out, encoder = tmp_path / "run", make_encoder(tmp_path / "encoder")
    with live({"bm25": Bm25.over(Dataset(CoTrainingPaths(recipe(tmp_path), one_round).data_folder).corpus)}) as url:
        start = f"start=!replace {{encoder: {encoder}, url: '{url}'}}"
        served = ("rounds=1", start, f"agent.data.index={url}", *FEW)
        train(recipe(tmp_path, *served), out, False, NoProgress())
    assert outcome(out)
    assert not (out / "round-0" / "index").exists() and (out / "round-1" / "index" / "index.json").is_file()
    run = yaml.safe_load((out / "round-1" / "run" / "run.yaml").read_text())["settings"]
    assert run["retriever"] == url
    assert {path.name for path in (out / "pairs").iterdir()} >= {"agent-1.retriever-0", "agent-1.beside"}


@pytest.mark.slow
def test_a_reranker_takes_the_encoders_place_over_the_first_retriever(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = tmp_path / "run"
    settings = ("rounds=2", "retriever.kind=reranker", "agent.rl.steps=1", "retriever.training.steps=1", "stop=null")
    train(recipe(tmp_path, *settings, *FEW), folder, False, NoProgress())
    second = open_retriever(folder / "round-2" / "index.yaml")
    assert isinstance(second, Reranker)
    assert second.over.identity == open_retriever(folder / "round-0" / "index").identity
    told = yaml.safe_load((folder / "round-2" / "agent" / "recipe.yaml").read_text())["recipe"]
    assert str(told["data"]["index"]).endswith("round-1/index.yaml")
