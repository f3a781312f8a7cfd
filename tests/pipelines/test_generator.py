"""A laptop generator in small: trained, stopped and gone on with, and asked by its folder."""

import json
from pathlib import Path

import pytest
from tests.pipelines.trainings import checked_card, trained

from coseek.core.errors import DataError, SettingError
from coseek.core.settings import make_settings
from coseek.graders.factory import open_generator
from coseek.graders.generator import GeneratorSettings
from coseek.hardware.placement import FLOAT32
from coseek.lab.pipelines.reader import GeneratorTraining
from coseek.lab.pipelines.recipes import GeneratorRecipe
from coseek.lab.world.settings import WorldSettings
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import HfTokenizer

TINY = {
    "start": None, "worlds": 2, "world": {"size": "tiny", "train": 20, "dev": 0, "test": 0},
    "held_out": {"size": "tiny", "train": 0, "dev": 8, "test": 8, "seed": 8},
    "laptop": {"hidden": 32, "heads": 2, "kv_heads": 1, "feed_forward": 32, "vocabulary": 1500},
    "sft": {"steps": 4, "repeat_steps": 2, "varied_steps": 2, "rounds": 1, "tokens_per_step": 900, "evaluate_every": 2},
    "max_answer_tokens": 8, "threads": 1, "table": {"dev_questions": 4, "questions": 6},
}  # fmt: skip


def tiny() -> GeneratorRecipe:
    return make_settings(GeneratorRecipe, TINY)


@pytest.mark.slow
def test_a_generator_is_trained_measured_and_asked_by_its_folder(tmp_path: Path) -> None:
    training = trained(GeneratorTraining(tiny(), tmp_path / "g"))
    table = training.write_results(training.measure())
    rows = ["before, gold among 5", "gold among 5", "gold alone", "gold among 12", "naive RAG, top 5"]
    assert [row[0] for row in table.rows] == rows
    assert table.notes[0].startswith("Verdict: ")
    assert "| gold among 5 |" in checked_card(training.trained_folder)[1]
    readings = [json.loads(line) for line in (tmp_path / "g/training/round-1/metrics.jsonl").read_text().splitlines()]
    assert "eval/em" in readings[-1]
    before = (training.trained_folder / "model.safetensors").stat().st_mtime_ns

    opened = open_generator(GeneratorSettings(model=str(training.trained_folder), max_answer_tokens=8))
    assert opened.prompt.answer_after == " Answer :"  # the folder's own prompt, not the one for talking models
    room = training.held_out.questions["test"][0]
    context = opened.context(room.question, (training.held_out.corpus[0],))
    again = training.generator_of(load_model(training.trained_folder, FLOAT32), "again")
    assert opened.answer([context]) == again.answer([context])

    with pytest.raises(DataError, match="--resume"):
        GeneratorTraining(tiny(), tmp_path / "g").begin(resume=False)
    changed = tiny().model_copy(update={"held_out": WorldSettings(size="tiny", train=0, seed=9)})
    with pytest.raises(SettingError, match=r"begun with held_out\.seed = 8, and now 9"):
        GeneratorTraining(changed, tmp_path / "g").begin(resume=True)
    trained(GeneratorTraining(tiny(), tmp_path / "g"), resume=True)
    assert (training.trained_folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.medium
def test_a_generator_begins_with_the_shipped_base_and_writes_the_worlds_words_whole(tmp_path: Path) -> None:
    training = GeneratorTraining(make_settings(GeneratorRecipe, {**TINY, "start": "base", "words": 30}), tmp_path / "g")
    training.make_start()
    known, learnt = HfTokenizer.load(model_path("base")), HfTokenizer.load(training.start_folder)
    assert learnt.size == known.size + 30
    texts = [question.question for question in training.held_out.questions["dev"]]
    assert sum(map(len, map(learnt.encode, texts))) < sum(map(len, map(known.encode, texts)))
    with pytest.raises(DataError, match="no base model bse, which the recipe names as start; did you mean 'base'"):
        GeneratorTraining(GeneratorRecipe(start="bse"), tmp_path / "h").begin(resume=False)
