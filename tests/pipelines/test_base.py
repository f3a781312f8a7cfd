"""A base model in small: trained, stopped and gone on with, and opened as a generator and as a policy."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipelines.trainings import checked_card, trained
from tests.scripted import Scripted, generator

from coseek.core.errors import DataError, SettingError
from coseek.core.fingerprint import file_digest
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus
from coseek.graders.factory import open_generator
from coseek.graders.generator import GeneratorSettings
from coseek.lab.pipelines.base import BaseTraining, facts_read
from coseek.lab.pipelines.recipes import BaseRecipe, CorpusSettings
from coseek.lab.training.base_tasks import LIVE_WORLDS, BaseTasks
from coseek.lab.training.examples import ExampleSampler
from coseek.library import make_world
from coseek.models.model_folder import model_path
from coseek.models.new_tokens import add_tokens
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer

TINY = {
    "tasks": {"worlds": 4, "world": {"size": "tiny", "lexicon": "drawn", "train": 20, "dev": 0, "test": 0}},
    "held_out": {"size": "tiny", "lexicon": "drawn", "train": 0, "dev": 8, "test": 8, "seed": 1},
    "laptop_world": {"size": "tiny", "train": 0, "dev": 8, "test": 8, "seed": 8},
    "laptop": {"hidden": 32, "layers": ["conv", "full_attention"], "heads": 2, "kv_heads": 1, "feed_forward": 32},
    "sft": {
        "steps": 4, "repeat_steps": 2, "varied_steps": 0, "tokens_per_step": 1200, "evaluate_every": 0,
        "checkpoint_every": 2,
    },
    "max_answer_tokens": 8,
    "threads": 1,
    "tokenizer_worlds": 2,
    "table": {"dev_questions": 4, "questions": 8},
}  # fmt: skip


def tiny() -> BaseRecipe:
    return make_settings(BaseRecipe, TINY)


@pytest.mark.parametrize(
    ("settings", "start", "says"),
    [
        ({}, "bse", "no base model bse, which the recipe names as start; did you mean 'base'"),
        ({"folder": "nowhere"}, "base", "there is no folder nowhere, which corpus.folder names"),
        ({"train": "trian"}, "base", "has no split 'trian'; did you mean 'train'"),
        ({"held_out": "tset"}, "base", "has no split 'tset'; did you mean 'test'"),
    ],
)
def test_what_is_not_there_is_named_before_anything_is_written(
    settings: dict[str, str], start: str, says: str, tmp_path: Path
) -> None:
    make_world(tmp_path / "w", size="tiny", train=5, dev=0, test=5)
    corpus = make_settings(CorpusSettings, {"folder": str(tmp_path / "w"), **settings})
    with pytest.raises((DataError, SettingError), match=says):
        BaseTraining(BaseRecipe(start=start, corpus=corpus), tmp_path / "b").begin(resume=False)
    assert not (tmp_path / "b/recipe.yaml").exists()


def test_a_base_model_is_measured_where_it_never_learnt() -> None:
    recipe = BaseRecipe()
    assert recipe.held_out.lexicon == "held-out" and recipe.tasks.world.lexicon == "drawn"
    tasks = BaseTasks(recipe.tasks, 0, ByteTokenizer(), 256, generator(Scripted(str), prompt="generator-laptop"))
    assert recipe.held_out.seed not in {tasks.world_seed(number) for number in range(recipe.tasks.worlds + LIVE_WORLDS)}


def test_a_fact_counts_as_read_only_if_its_whole_value_is_written() -> None:
    reader = generator(Scripted(str), prompt="generator-laptop")
    tasks = BaseTasks(BaseRecipe().tasks, 0, ByteTokenizer(), 256, reader)
    world = tasks.world(0)
    values = {
        (entity.title.strip(), fact.noun): fact.value.strip()
        for entity in world.oracle.facts.values()
        for fact in entity.facts
    }

    def known(prompt: str) -> str:
        name, _, rest = prompt.rpartition(" So : ")[2].partition(" # ")
        return f" {values[name, rest.partition(' , ')[2].removesuffix(' :')]} . and more"

    def shares_of(writer: Scripted) -> dict[str, list[float]]:
        return facts_read(
            replace(reader, model=writer), tasks, ExampleSampler.of_world(world, "train"), random.Random(0), 200
        )

    right, cut = shares_of(Scripted(known)), shares_of(Scripted(lambda prompt: known(prompt)[:3]))
    assert sorted(right) == ["fact, in other words", "fact, relation first", "fact, value first"]
    assert {value for values in right.values() for value in values} == {1.0}
    assert {value for values in cut.values() for value in values} == {0.0}


@pytest.mark.slow
def test_a_base_model_is_trained_measured_and_opened_as_generator_and_policy(tmp_path: Path) -> None:
    training = trained(BaseTraining(tiny(), tmp_path / "b"))
    table = training.write_results(training.measure())
    names = [row[0] for row in table.rows]
    assert "read a drawn world, hops: 2" in names and "read a laptop world, hops: 2" in names
    assert {"next", "support", "check", "enough", "copy after 300 tokens"} <= set(names)
    stored = json.loads((tmp_path / "b/table.json").read_text())["abilities"]
    assert all(0 <= row["mean"] <= 1 for row in stored.values())

    _, card = checked_card(training.trained_folder, tmp_path)
    assert all(row[0] in card for row in table.rows)
    assert "coseek train base '" in card and "'tasks={" in card
    opened = open_generator(GeneratorSettings(model=str(training.trained_folder), max_answer_tokens=8))
    question = training.held_out.questions["test"][0]
    context = opened.context(question.question, (training.held_out.corpus[0],))
    assert len(opened.answer([context])) == 1
    add_tokens(training.trained_folder, ["<search>"], (), tmp_path / "policy", seed=0)
    assert len(HfTokenizer.load(tmp_path / "policy").encode("<search>")) == 1

    further = BaseTraining(make_settings(BaseRecipe, TINY | {"start": str(training.trained_folder)}), tmp_path / "c")
    further.begin(resume=False)
    further.make_start()
    for name in ("model.safetensors", "tokenizer.json"):
        assert (further.start_folder / name).read_bytes() == (training.trained_folder / name).read_bytes()

    once_more = BaseTraining(tiny(), tmp_path / "b")
    once_more.begin(resume=True)
    before = (training.trained_folder / "model.safetensors").stat().st_mtime_ns
    once_more.train()
    assert (training.trained_folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_corpus_of_which_no_path_is_shown_is_a_sentence(tmp_path: Path) -> None:
    data = make_world(tmp_path / "w", size="compact", train=0, dev=0, test=5)
    corpus = {"folder": str(data.folder), "passage_tokens": 8, "words": 0, "made": {"count": 20, "unanswerable": 0.0}}
    training = BaseTraining(make_settings(BaseRecipe, {**TINY, "start": "base", "corpus": corpus}), tmp_path / "b")
    training.begin(resume=False)
    with pytest.raises(DataError, match=r"that 8 tokens of its passages state; raise corpus\.passage_tokens"):
        training.train()


@pytest.mark.slow
def test_a_base_model_learns_the_words_and_the_questions_of_a_corpus_and_none_that_are_held_out(tmp_path: Path) -> None:
    data = make_world(tmp_path / "w", size="compact", train=20, dev=0, test=20)
    name = f" {data.corpus[0].title.split()[-1]}"
    corpus = {
        "folder": str(data.folder),
        "words": 50,
        "made": {"count": 60, "hop_mix": [1.0, 1.0], "unanswerable": 0.0},
    }
    training = trained(
        BaseTraining(make_settings(BaseRecipe, {**TINY, "start": "base", "corpus": corpus}), tmp_path / "b")
    )
    before, after = (HfTokenizer.load(folder) for folder in (model_path("base"), training.trained_folder))
    assert after.size == before.size + 50 and len(after.encode(name)) <= len(before.encode(name))

    learnt = {question.id for question in training.corpus_sampler("train", "train").supported}
    held_out = {question.id for held in training.held_out_samplers("test").values() for question in held.supported}
    own = {question.id for question in data.questions("train")}
    assert learnt & own and learnt - own and not learnt & held_out
    assert {question.id for question in data.questions("test")} <= held_out
    rows = [row[0] for row in training.write_results(training.measure()).rows]
    assert "read made questions, hops: 1" in rows and "read own questions, hops: 2" in rows

    data.corpus.save(data.corpus_path)  # the same bytes
    again = BaseTraining(training.recipe, tmp_path / "b")
    again.begin(resume=True)
    Corpus(list(data.corpus)[1:], "shorter").save(data.corpus_path)
    with pytest.raises(SettingError, match=r"other parts than there are now.*corpus\.folder corpus\.jsonl"):
        BaseTraining(training.recipe, tmp_path / "b").begin(resume=True)


BASE = model_path("base")
QUESTIONS = 30


def test_the_shipped_base_is_the_file_that_its_card_names() -> None:
    card = (BASE / "README.md").read_text()
    assert file_digest(BASE / "model.safetensors") in card
    assert "license: apache-2.0\n" in card and "\ncoseek train base" in card


@pytest.mark.slow
def test_the_shipped_base_reads_a_world_of_held_out_relations_as_its_card_says(tmp_path: Path) -> None:
    training, generator = BaseTraining(BaseRecipe(), tmp_path), open_generator(GeneratorSettings(model="base"))
    right = training.right_by_hops(generator, ExampleSampler.of_world(training.held_out, "test"), QUESTIONS)
    row = re.compile(r"\| read a drawn world, hops: (\d) \| ([\d.]+) ")
    told = {int(hops): float(share) for hops, share in row.findall((BASE / "README.md").read_text())}
    assert told.keys() == right.keys()
    shares = [told[hops] for hops, values in right.items() for _ in values]
    deviation = sum(share * (1 - share) for share in shares) ** 0.5
    assert abs(sum(map(sum, right.values())) - sum(shares)) < 3 * deviation
