"""Agents with the tokenizers and chat templates of six model families, as published: `make test-templates`."""

from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, Typist, assert_sound, script
from tests.agents.test_chat_templates import as_published, in_marks, instruction_of
from tests.agents.test_native_calls import check_conversations, conversation
from tests.models.chat_styles import STYLES, Calls

from coseek.agents.drivers import Agent, rollout
from coseek.agents.protocol import load_protocol
from coseek.core.errors import SettingError
from coseek.data.trajectory import Author, Trajectory
from coseek.models.chat import render_template
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import REASONING_MARKS
from coseek.training.learner.batch import make_batch

FOLDER = Path(__file__).parents[2] / "build" / "tokenizers"
FAMILIES = ("qwen2_5", "qwen3", "llama3_1", "gemma3", "deepseek_v3", "gptoss")
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""A template for gpt-oss, whose package has no template."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (FOLDER / "made-from-these-digests").is_file(), reason="make test-templates"),
    pytest.mark.parametrize("family", FAMILIES, scope="module"),
]


@pytest.fixture(scope="module")
def tokenizer(family: str) -> HfTokenizer:
    return HfTokenizer.load(FOLDER / family)


def check(name: str, tokenizer: HfTokenizer, run: Trajectory, read: tuple[int, ...]) -> None:
    """The run is valid and sound, its row is what the model read and wrote, and the loss sees what it wrote."""
    assert run.valid and (run.answer == "1815" or name == "s3"), run.format_error
    assert read == run.ids
    assert_sound(run, load_protocol(name), tokenizer)
    batch = make_batch([run])
    written = [token for segment in run.segments if segment.author is Author.AGENT for token in segment.ids]
    assert batch.ids_BT[0].tolist() == [*run.ids] and batch.ids_BT[batch.agent_BT].tolist() == written


def test_native_calls_stand_as_the_template_writes_them(tokenizer: HfTokenizer, family: str) -> None:
    protocol, thought = load_protocol("tools"), "Look it up." if family == "qwen3" else ""
    calls: Calls = [("search", {"query": "Ada"}), ("search", {"query": "Eve"})]
    turns = [(thought, "", calls), (thought, "1815", ())]
    model = Typist(tokenizer, [STYLES["thinking"].write(*turn) for turn in turns])
    agent = Agent(protocol, model)
    if tokenizer.fast.chat_template and not family.startswith("qwen"):  # the published template takes no tools
        with pytest.raises(SettingError, match="does not show the tool 'search'"):
            rollout(agent, Shelf(), [QUESTION], [7], WIDE)
        return
    (run,) = rollout(agent, Shelf(), [QUESTION], [7], WIDE)
    check("tools", tokenizer, run, model.read[0])
    if tokenizer.fast.chat_template:
        rendered = render_template(
            tokenizer, conversation(run, turns, tokenizer), protocol.grammar.schemas, answers=False
        )
        assert rendered == f"{tokenizer.decode(run.ids)}\n"
        assert list(run.ids) == tokenizer.encode(rendered)[: len(run.ids)]


def test_native_calls_survive_the_tokenizers_of_every_family(
    tokenizer: HfTokenizer, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the published template if it takes tools, else in a template of its family."""
    style = STYLES[{"qwen3": "thinking", "llama3_1": "llama3", "gptoss": "harmony"}.get(family, "hermes")]
    if not family.startswith("qwen"):
        monkeypatch.setattr(tokenizer.fast, "chat_template", style.template)
    check_conversations(style, tokenizer, 40)


@pytest.mark.parametrize("name", ["search-r1", "react", "qagent", "s3", "search-o1"])
def test_a_run_is_framed_as_the_template_frames_it_and_only_ever_extended(tokenizer: HfTokenizer, name: str) -> None:
    model = Typist(tokenizer, script(name))
    (run,) = rollout(Agent(load_protocol(name), model), Shelf(), [QUESTION], [7], WIDE)
    check(name, tokenizer, run, model.read[0])
    if tokenizer.fast.chat_template and name not in ("s3", "search-o1"):  # a search opens s3, braces are in the other
        assert run.segments[0].ids == as_published(tokenizer, instruction_of(name))
    bos = tokenizer.fast.bos_token_id
    assert bos is None or run.ids.count(bos) <= 1


@pytest.mark.parametrize("opens", [False, True], ids=["written", "opened"])
@pytest.mark.parametrize(("opening", "closing"), REASONING_MARKS)
def test_a_thought_in_a_models_own_marks_is_valid(
    tokenizer: HfTokenizer, opening: str, closing: str, opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"{{% if add_generation_prompt %}}{opening}{{% endif %}}" if opens else ""
    monkeypatch.setattr(tokenizer.fast, "chat_template", (tokenizer.fast.chat_template or HARMONY) + mark)
    for name in ("search-r1", "s3", "qagent"):
        turns = [in_marks(turn, opening, closing) for turn in script(name)]
        if opens:
            turns[0] = turns[0].removeprefix(opening)
        model = Typist(tokenizer, turns)
        (run,) = rollout(Agent(load_protocol(name), model), Shelf(), [QUESTION], [7], WIDE)
        check(name, tokenizer, run, model.read[0])
