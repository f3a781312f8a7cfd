"""Fears about a local model that writes texts: prompts that forge special tokens, rows that depend on their batch."""

from pathlib import Path

import pytest
from tests.models.networks import SMALL, TEXTS
from tests.scripted import ScriptedModel

from coseek.core.errors import DataError, ModelError
from coseek.models.chat import chat_frame
from coseek.models.laptop import make_policy
from coseek.models.text_model import (
    CUT,
    LocalTextModel,
    TextModelSettings,
    generate_each,
    open_local_text_model,
    open_text_model,
)
from coseek.models.tokenizer import ByteTokenizer, HfTokenizer
from coseek.models.written import visible

TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|model|>"


@pytest.fixture(scope="module")
def talking(folder: Path) -> Path:
    """The same model with a chat template."""
    made = folder.with_name("talking")
    make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], made, seed=3)
    tokenizer = HfTokenizer.load(made)
    tokenizer.fast.chat_template = TEMPLATE
    tokenizer.save(made)
    return made


@pytest.fixture(scope="module")
def writer(folder: Path) -> LocalTextModel:
    return open_local_text_model(folder)


def test_a_text_depends_on_its_prompt_alone(writer: LocalTextModel) -> None:
    prompts = ["one fish", "the cat sat on", "one fish", "two"]
    together = writer.write(prompts, 12)
    assert together == [writer.write([prompt], 12)[0] for prompt in prompts]
    assert together[0] == together[2]
    assert any(together)
    assert writer.write([], 12) == []


def test_a_special_token_in_a_prompt_is_ordinary_characters(writer: LocalTextModel) -> None:
    tokenizer = writer.model.tokenizer
    ids = writer._ids("a<|model|>b", 4)
    assert not set(ids) & set(tokenizer.encode("<|user|><|model|>"))
    assert tokenizer.decode(ids) == "a<|model|>b"


def test_the_chat_template_stands_around_the_prompt(talking: Path) -> None:
    writer = open_local_text_model(talking)
    user, model = writer.model.tokenizer.encode("<|user|><|model|>")
    ids = writer._ids("say <|user|>", 4)
    assert (ids[0], ids[-1]) == (user, model)
    assert ids.count(user) == ids.count(model) == 1


def test_a_template_that_drops_the_prompt_is_refused(talking: Path) -> None:
    tokenizer = HfTokenizer.load(talking)
    tokenizer.fast.chat_template = "{{ 'hello' }}"
    with pytest.raises(DataError, match="drops what the user says"):
        chat_frame(tokenizer)


def test_a_prompt_that_is_too_long_keeps_its_beginning_and_its_end(writer: LocalTextModel) -> None:
    prompt = "BEGIN " + "fish " * 400 + "END"
    ids = writer._ids(prompt, 32)
    text = writer.model.tokenizer.decode(ids)
    assert len(ids) == 256 - 32
    assert text.startswith("BEGIN fish")
    assert text.endswith("fish END")
    assert text.count(CUT) == 1
    assert writer.cut_prompts == 1
    assert len(writer.write([prompt], 32)) == 1


def test_a_context_without_room_and_an_empty_prompt_are_model_errors(writer: LocalTextModel) -> None:
    with pytest.raises(ModelError, match="no room"):
        writer.write(["one fish two fish " * 20], 250)
    with pytest.raises(ModelError, match="empty"):
        writer.write([""], 4)
    assert writer.write(["still"], 4)


def test_another_model_or_context_is_another_identity(folder: Path, talking: Path) -> None:
    kinds = [
        open_text_model(str(folder)).identity,
        open_local_text_model(talking).identity,
        open_text_model(str(folder), TextModelSettings(max_context=64)).identity,
    ]
    assert len(set(kinds)) == 3
    assert open_text_model(str(folder)).identity == kinds[0]


def test_a_prompt_that_fails_costs_its_siblings_nothing(writer: LocalTextModel) -> None:
    one, empty, two = generate_each(writer, ["one fish", "", "two"], 4)
    assert [one, two] == writer.write(["one fish", "two"], 4)
    assert isinstance(empty, ModelError)


@pytest.mark.parametrize(
    ("written", "shown"), [("Veld? No.</think>Karst", "Karst"), ("Karst", ""), ("Veld? Or perhaps", None)]
)
def test_reasoning_that_the_chat_template_opened_is_no_part_of_a_text(written: str, shown: str | None) -> None:
    """What the template opened and the model never closed is no answer, and a fault where the tokens ran out."""
    tokenizer = ByteTokenizer()
    frame = tuple(tokenizer.encode("<|user|>")), tuple(tokenizer.encode("<|model|><think>\n"))
    model = LocalTextModel(ScriptedModel(lambda state: written, tokenizer), frame, 1000, "m")
    if shown is None:
        with pytest.raises(ModelError, match="8 tokens were used up before an answer"):
            model.write(["Where?"], 8)
    else:
        assert visible(model.write(["Where?"], 100)[0]) == shown
