"""Starting a training, and resuming it with more steps: which folders are accepted, what is recomputed, what is
kept, and what is refused."""

import json
from pathlib import Path

import pytest
from tests.pipelines.test_agent import FEW, TINY
from tests.pipelines.trainings import begin, same, trained, weights

from coseek.agents.prompt_template import FOLDER
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress
from coseek.core.settings import Settings, dump_settings, fixed_settings
from coseek.data.question import Question, save_questions
from coseek.data.run import Run
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import train_and_measure
from coseek.pipelines.run_record import FILE, agent_identities
from coseek.retrieval.index import build_index
from coseek.retrieval.retrievers.noisy import NoisyRetriever
from coseek.training.sft.settings import SftSettings


class Plan(Settings):
    """A recipe."""

    steps: int = 1
    """How many."""


def test_training_is_never_begun_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    for resume in (False, True):
        with pytest.raises(DataError, match=r"something else already \(corpus\.jsonl, and no recipe\.yaml\)"):
            begin(tmp_path, Plan(), resume)
    with pytest.raises(DataError, match="is a file; choose another place"):
        begin(tmp_path / "corpus.jsonl", Plan(), resume=False)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_a_recipe_that_was_emptied_is_one_sentence(tmp_path: Path) -> None:
    begin(tmp_path, SftSettings(), resume=False)
    (tmp_path / FILE).write_text("recipe: {steps: few}\n")
    with pytest.raises(SettingError, match=r"recipe\.yaml: setting 'steps' needs a whole number"):
        begin(tmp_path, SftSettings(), resume=True)
    (tmp_path / FILE).write_text("")
    begin(tmp_path, SftSettings(), resume=True)  # settings younger than the folder count as their defaults


def test_a_start_that_failed_leaves_a_folder_that_may_be_begun_anew(tmp_path: Path) -> None:
    begin(tmp_path, Plan(steps=1), resume=False)
    for resume, steps in ((False, 2), (True, 3)):
        begin(tmp_path, Plan(steps=steps), resume)
        assert f"steps: {steps}" in (tmp_path / FILE).read_text()
    (tmp_path / "rl").mkdir()
    (tmp_path / "rl" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="--resume"):
        begin(tmp_path, Plan(steps=3), resume=False)
    with pytest.raises(SettingError, match="begun with steps = 3, and now 4"):
        begin(tmp_path, Plan(steps=4), resume=True)


def test_a_recipe_that_somebody_wrote_is_never_taken_for_a_failed_start(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("extends: from-nothing\n")
    with pytest.raises(DataError, match="choose another --out"):
        begin(tmp_path, Plan(), resume=False)
    assert (tmp_path / FILE).read_text() == "extends: from-nothing\n"


def test_training_does_not_go_on_with_parts_that_were_replaced(tmp_path: Path) -> None:
    begin(tmp_path, Plan(), resume=False, identities={"policy.folder": "one", "data.train": "one"})
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    for changed in ("policy.folder", "data.train"):
        now = {"policy.folder": "one", "data.train": "one", changed: "another"}
        with pytest.raises(SettingError, match=rf"what differs: {changed}\)"):
            begin(tmp_path, Plan(), resume=True, identities=now)
    begin(tmp_path, Plan(), resume=True)  # a recipe that names nothing has nothing that could be replaced


@pytest.mark.medium
def test_an_index_of_another_corpus_is_refused_and_earns_no_reward_of_0(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("other", 5)):
        make_world(WorldSettings(size="tiny", train=4, dev=3, test=2, seed=seed)).save(tmp_path / name)
    build_index(tmp_path / "other", "bm25", tmp_path / "index")
    named = [f"data.folder={tmp_path / 'one'}", f"data.index={tmp_path / 'index'}", "data.world=null"]
    recipe = load_recipe("from-nothing", [*named, "data.unseen=null"])
    with pytest.raises(DataError, match="is another passage"):
        AgentTraining(recipe, tmp_path / "run").prepare_data()


@pytest.mark.slow
def test_every_path_that_a_recipe_names_has_an_identity_that_its_replacement_changes(tmp_path: Path) -> None:
    shape = LaptopSettings(hidden=16, layers=("conv",), heads=2, kv_heads=1, feed_forward=16, vocabulary=300)
    data, index, words = tmp_path / "set", tmp_path / "index", tmp_path / "words.yaml"
    text = (FOLDER / "laptop.yaml").read_text()
    make_world(WorldSettings(size="tiny", train=4, dev=3, test=2)).save(data)
    build_index(data, "bm25", index)
    for name in ("policy", "generator"):
        make_policy(shape, ["a book"], [], tmp_path / name, seed=0)
    words.write_text(text)
    named = [f"data.folder={data}", f"data.index={index}", f"policy.folder={tmp_path / 'policy'}"]
    named += [f"prompt_template={words}", "data.world=null", "data.unseen=null", "warm_start=null"]
    (chosen := tmp_path / "chosen.txt").write_text("w0-train-00000\n")
    named += [f"select.ids={chosen}", f"table.select.ids={chosen}"]  # the table's runs have digests of their own
    recipe = load_recipe("from-nothing", [*named, f"graders.generator.model={tmp_path / 'generator'}"])

    def identities() -> dict[str, str]:
        return dict(agent_identities(recipe, AgentTraining(recipe, tmp_path / "run").given_retriever))

    def changed() -> set[str]:
        now = identities()
        assert now.keys() == before.keys()
        return {name for name in now if now[name] != before[name]}

    before = identities()
    names = {"policy.folder", "graders.generator.model", "select.ids", str(words)}
    names |= {f"data.{name}" for name in ("train", "dev", "test", "index")}
    assert before.keys() == names and changed() == set()
    make_policy(shape, ["a book"], [], tmp_path / "policy", seed=1)
    assert changed() == {"policy.folder"}
    make_policy(shape, ["a book"], [], tmp_path / "generator", seed=1)
    save_questions(data / "questions.dev.jsonl", [Question("q", "who", ("a",))])
    words.write_text(text + "nothing_found: none\n")
    chosen.write_text("w0-train-00001\n")
    assert changed() == {"policy.folder", "graders.generator.model", "data.dev", "select.ids", str(words)}
    build_index(data, "bm25", index, {"k1": 2.0})
    assert changed() == names - {"data.train", "data.test"}


MOVING = ["rl.overlong={max_tokens: 400, margin_tokens: 390}"]
"""A cost of length, which differs from run to run of a policy that has learnt nothing, so that its weights move."""


def recipe(*more: str) -> AgentRecipe:
    few = "table={questions: 2, dev_questions: 1, sampled: false}"
    return load_recipe("from-nothing", [*TINY, *MOVING, *FEW, few, *more])


def train(folder: Path, *more: str, resume: bool = False) -> AgentTraining:
    return trained(AgentTraining(recipe(*more), folder), resume)


def begun(folder: Path, *more: str) -> None:
    """A training whose metrics tell of one step."""
    AgentTraining(recipe(*more), folder).begin(resume=False)
    (folder / "rl").mkdir()
    (folder / "rl" / "metrics.jsonl").write_text('{"step": 1}\n')


def train_with_table(folder: Path, *more: str, resume: bool = False) -> None:
    train_and_measure(recipe(*more), folder, resume, NoProgress())


def ids(cell: Path) -> list[list[tuple[int, ...]]]:
    return [[segment.ids for segment in trajectory.segments] for trajectory in Run(cell).trajectories()]


@pytest.mark.slow
def test_more_steps_end_as_if_asked_for_at_once_also_after_a_kill_before_them_and_leave_nothing_stale(
    tmp_path: Path,
) -> None:
    whole, longer = tmp_path / "whole", tmp_path / "longer"
    train_with_table(whole, "rl.steps=4")
    train_with_table(longer, "rl.steps=2")
    short = weights(longer)
    cells = {path.name: Run(path).record["identities"] for path in (longer / "table").iterdir()}
    killed = AgentTraining(recipe("rl.steps=4"), longer)
    killed.begin(resume=True)  # and here it is killed
    del killed
    assert not (longer / "policy" / "trained").exists()
    train_with_table(longer, "rl.steps=4", resume=True)
    assert not same(short, weights(longer)) and same(weights(longer), weights(whole))
    assert same(short, weights(longer, "trained.2-steps"))  # nothing that was trained is lost
    lines = (longer / "rl" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4]
    assert load_recipe(str(longer / "recipe.yaml")).rl.steps == 4
    for path in (longer / "table").iterdir():
        assert (Run(path).record["identities"] == cells[path.name]) == (not path.name.startswith("after."))
        assert ids(path) == ids(whole / "table" / path.name)
    assert "No alarm in 4 steps" in (longer / "table.md").read_text()

    finished = (longer / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns
    train(longer, "rl.steps=4", resume=True)  # the same steps once more train nothing
    assert (longer / "policy" / "trained" / "model.safetensors").stat().st_mtime_ns == finished
    with pytest.raises(SettingError, match=r"rl\.steps cannot change from 4 to 3 in .*: 4 steps are taken already"):
        train(longer, "rl.steps=3", resume=True)
    (longer / "rl" / "checkpoints").rename(longer / "elsewhere")
    with pytest.raises(SettingError, match="holds no checkpoint to go on from"):
        train(longer, "rl.steps=6", resume=True)
    assert same(weights(longer), weights(whole))


STAGES = "stages={one: {}, two: {rl: {kl_coef: 0.0}}}"


@pytest.mark.slow
def test_what_is_spread_over_the_steps_or_built_upon_says_why_it_gets_no_more(tmp_path: Path) -> None:
    cosine = "rl.policy={optimizer: {lr_scheduler_type: cosine}}"
    begun(tmp_path / "cosine", cosine, "rl.steps=1")
    says = r"rl\.policy\.optimizer\.lr_scheduler_type spreads a schedule over all steps"
    with pytest.raises(SettingError, match=says) as refused:
        train(tmp_path / "cosine", cosine, "rl.steps=2", resume=True)
    assert f"policy.folder={tmp_path / 'cosine' / 'policy' / 'trained'}" in str(refused.value)
    assert load_recipe(str(tmp_path / "cosine" / "recipe.yaml")).rl.steps == 1

    noisy = "data.training_retriever={retriever: noisy, noise: {start: 0.0, end: 0.5}}"
    training = train(tmp_path / "noisy", noisy, "rl.steps=2")
    engine = training.training_retriever
    assert isinstance(engine, NoisyRetriever)
    assert (engine._stage.step, engine._stage.steps) == (1, 1)  # the last of two steps has the last rate
    assert training.retrievers["data"] is not engine  # dev questions are asked of the undisturbed one
    with pytest.raises(SettingError, match=r"data\.training_retriever spreads a schedule over all steps"):
        train(tmp_path / "noisy", noisy, "rl.steps=3", resume=True)

    train(tmp_path / "two", STAGES, "rl.steps=1")
    says = r"stages\.one\.rl\.steps cannot change .* the stage two has already started"
    with pytest.raises(SettingError, match=says):
        train(tmp_path / "two", STAGES, "stages.one.rl.steps=2", "rl.steps=1", resume=True)
    before = weights(tmp_path / "two", "one")
    train(tmp_path / "two", STAGES, "stages.two.rl.steps=2", "rl.steps=1", resume=True)
    assert same(before, weights(tmp_path / "two", "one"))
    assert (tmp_path / "two" / "policy" / "trained.1-steps").is_dir()


def test_steps_health_and_the_ways_out_that_errors_name_may_change_alone() -> None:
    def fixed(*more: str) -> JsonObject:
        return fixed_settings(AgentRecipe, dump_settings(recipe(*more)))

    plain = fixed(STAGES)
    assert plain == fixed(STAGES, "stages.one.rl.steps=9", "rl.steps=7", "rl.monitor.stop=true")
    assert plain != fixed(STAGES, "stages.one.rl.kl_coef=0.1")
    assert plain != fixed("stages={one: {}, three: {}}")
    ways_out = ("machine={check: false, memory_gib: 80}", "cache_gib=2", "concurrency=8", "table.select.hops=[1]")
    assert plain == fixed(STAGES, *ways_out)  # those of the memory check and of a table without questions
