"""Beginning: which folders a training may be begun in."""

from pathlib import Path

import pytest
from tests.pipelines.beginning import begin

from coseek.agents.prompt_template import FOLDER
from coseek.core.errors import DataError, SettingError
from coseek.core.settings import Settings
from coseek.data.question import Question, save_questions
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.run_record import FILE, agent_identities
from coseek.retrieval.index import build_index
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


def test_training_goes_on_in_its_own_folder_whatever_it_wrote(tmp_path: Path) -> None:
    begin(tmp_path / "run", Plan(), resume=False)
    (tmp_path / "run" / "metrics.jsonl").touch()
    begin(tmp_path / "run", Plan(), resume=True)


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


@pytest.mark.parametrize(("corpus", "sentence"), [("few", "names the gold passage"), ("other", "is another passage")])
def test_an_index_of_another_corpus_is_refused_and_earns_no_reward_of_0(
    corpus: str, sentence: str, tmp_path: Path
) -> None:
    for name, seed in (("one", 0), ("other", 5)):
        make_world(WorldSettings(size="tiny", train=4, dev=3, test=2, seed=seed)).save(tmp_path / name)
    (tmp_path / "few").mkdir()
    passages = (tmp_path / "other" / "corpus.jsonl").read_text().splitlines(keepends=True)[:3]
    (tmp_path / "few" / "corpus.jsonl").write_text("".join(passages))
    build_index(tmp_path / corpus, "bm25", tmp_path / "index")
    named = [f"data.folder={tmp_path / 'one'}", f"data.index={tmp_path / 'index'}", "data.world=null"]
    recipe = load_recipe("from-nothing", [*named, "data.unseen=null"])
    with pytest.raises(DataError, match=sentence):
        AgentTraining(recipe, tmp_path / "run").prepare_data()


@pytest.mark.slow
def test_every_path_that_a_recipe_names_has_an_identity_that_its_replacement_changes(tmp_path: Path) -> None:
    shape = LaptopSettings(hidden=16, layers=("conv",), heads=2, kv_heads=1, feed_forward=16, vocabulary=300)
    data, index, words = tmp_path / "set", tmp_path / "index", tmp_path / "words.yaml"
    said = (FOLDER / "laptop.yaml").read_text()
    make_world(WorldSettings(size="tiny", train=4, dev=3, test=2)).save(data)
    build_index(data, "bm25", index)
    for name in ("policy", "generator"):
        make_policy(shape, ["a book"], [], tmp_path / name, seed=0)
    words.write_text(said)
    named = [
        f"data.folder={data}",
        f"data.index={index}",
        f"policy.folder={tmp_path / 'policy'}",
        f"prompt_template={words}",
    ]
    named += ["data.world=null", "data.unseen=null", "warm_start=null"]
    recipe = load_recipe("from-nothing", [*named, f"graders.generator.model={tmp_path / 'generator'}"])

    def identities() -> dict[str, str]:
        return dict(agent_identities(recipe, AgentTraining(recipe, tmp_path / "run").given_retriever))

    def changed() -> set[str]:
        now = identities()
        assert now.keys() == before.keys()
        return {name for name in now if now[name] != before[name]}

    before = identities()
    names = {
        "data.train",
        "data.dev",
        "data.test",
        "data.index",
        "policy.folder",
        "graders.generator.model",
        str(words),
    }
    assert before.keys() == names and changed() == set()
    make_policy(shape, ["a book"], [], tmp_path / "policy", seed=1)
    assert changed() == {"policy.folder"}
    make_policy(shape, ["a book"], [], tmp_path / "generator", seed=1)
    save_questions(data / "questions.dev.jsonl", [Question("q", "who", ("a",))])
    words.write_text(said + "nothing_found: none\n")
    assert changed() == {"policy.folder", "graders.generator.model", "data.dev", str(words)}
    build_index(data, "bm25", index, {"k1": 2.0})
    assert changed() == names - {"data.train", "data.test"}
