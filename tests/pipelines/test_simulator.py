"""Fears about tuning a simulator: pairs of the wrong kind, another prompt than in use, faults taken for noise."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, play, script
from tests.models.networks import SMALL, TEXTS
from tests.pipelines.test_stored_runs import stored
from tests.pipelines.trainings import checked_card, trained
from tests.scripted import Scripted

from coseek.core.errors import DataError, SettingError
from coseek.core.prompt_file import load_prompt
from coseek.core.settings import make_settings
from coseek.data.trajectory import Author, Search
from coseek.lab.pipelines.recipes import SimulatorRecipe, check_simulator
from coseek.lab.pipelines.simulator import SimulatorTraining, examples
from coseek.models.chat import chat_frame
from coseek.models.laptop import make_policy
from coseek.models.text_model import open_local_text_model
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import without_reasoning
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.simulated import (
    SIMULATED_FIELDS,
    SimulatedPrompt,
    SimulatedRetriever,
    SimulatedSettings,
    parse_documents,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "small"
    make_policy(SMALL, TEXTS, (), folder, seed=3)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One right run, one wrong one, and one whose second query failed."""
    right = play("search-r1", *script("search-r1"))
    wrong = play("search-r1", "<think>a</think><search>Bob</search>", "<think>b</think><answer>7</answer>")
    faulty = replace(wrong, searches=(*wrong.searches, Search("bad", fault="the disk is gone")))
    return stored(tmp_path_factory.mktemp("runs") / "real", right, wrong, faulty)


def recipe(model: Path, runs: str, **more: object) -> SimulatorRecipe:
    return make_settings(SimulatorRecipe, {"model": str(model), "runs": [runs], **more})


def test_documents_of_right_runs_are_useful_those_of_wrong_runs_noisy_and_faults_teach_nothing(
    model: Path, runs: str
) -> None:
    useful, noisy = examples(recipe(model, runs), HfTokenizer.load(model))
    assert (len(useful), len(noisy)) == (1, 1)
    documents = parse_documents(useful[0].segments[1].text.replace("<|end|>", ""), 5)
    assert [(document.title, document.text) for document in documents] == [
        ("Ada", "Ada Lovelace was born in 1815."), ("Bob", "Bob is a cat.")
    ]  # fmt: skip
    assert [segment.author for segment in noisy[0].segments] == [Author.ENVIRONMENT, Author.AGENT]
    assert noisy[0].segments[1].ids[-1] == HfTokenizer.load(model).eos_id


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_prompt_is_token_for_token_that_of_the_simulated_engine(model: Path, runs: str, noise: float) -> None:
    tokenizer = HfTokenizer.load(model)
    example = examples(recipe(model, runs), tokenizer)[int(noise)][0]
    query = "Bob" if noise else "Ada"
    texts: list[str] = []
    prompt = load_prompt(SimulatedPrompt, "simulated", Path(), SIMULATED_FIELDS, PROMPTS)
    settings = make_settings(SimulatedSettings, {"model": "-", "noise": {"start": noise, "end": noise}})

    def says(text: str) -> str:
        texts.append(text)
        return "Document 1: a\nb"

    engine = SimulatedRetriever(settings, Scripted(says), prompt, {QUESTION.question: "1815"})
    engine.search([Query(query, question=QUESTION.question)], 2)
    before, after = chat_frame(tokenizer)  # as a local text model reads it
    assert (*before, *tokenizer.encode_data(texts[0]), *after) == example.segments[0].ids
    blind = examples(recipe(model, runs, hint=False), HfTokenizer.load(model))[int(noise)][0]
    assert "1815" not in blind.segments[0].text and "1815" in example.segments[0].text


def test_what_a_simulator_learns_to_write_is_visible_where_its_template_opens_a_thought(model: Path, runs: str) -> None:
    tokenizer = HfTokenizer.load(model)
    tokenizer.fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    prompt, documents = (segment.text for segment in examples(recipe(model, runs), tokenizer)[0][0].segments)
    assert f"<think>{documents}".startswith(tokenizer.decode(chat_frame(tokenizer, given=True)[1]))  # as it is scored
    assert prompt.endswith("<think>") and without_reasoning(f"<think>{documents}").startswith("Document 1: Ada")


def test_runs_of_one_kind_alone_and_wrong_paths_are_refused(model: Path, tmp_path: Path) -> None:
    right = stored(tmp_path / "right", play("search-r1", *script("search-r1")))
    with pytest.raises(DataError, match="no wrong trajectory of"):
        examples(recipe(model, right), HfTokenizer.load(model))
    for wrong in (recipe(tmp_path / "x", right), recipe(model, str(tmp_path / "y"))):
        with pytest.raises(DataError):
            check_simulator(wrong)
    with pytest.raises(SettingError, match="'model' is missing"):
        make_settings(SimulatorRecipe, {"runs": ["r"]})


@pytest.mark.slow
def test_a_tuned_simulator_is_a_model_folder_that_opens_as_an_engine(model: Path, runs: str, tmp_path: Path) -> None:
    sft = {"steps": 4, "tokens_per_step": 1500, "log_every": 1, "learner": {"precision": "float32"}}
    training = trained(SimulatorTraining(recipe(model, runs, sft=sft), tmp_path / "out"))
    writer = open_local_text_model(training.simulator_folder)
    assert writer.identity != open_local_text_model(model).identity and len(writer.write(["Query: Ada"], 8)) == 1
    _, card = checked_card(training.simulator_folder, tmp_path / "scratch")
    assert f"| begins with | …/{'/'.join(model.parts[-2:])} |" in card and "it was not measured" in card
    trained(SimulatorTraining(recipe(model, runs, sft=sft), tmp_path / "out"), resume=True)
