"""Fears about what a model wrote: reasoning that becomes an answer, an answer that is lost with the reasoning."""

import pytest
from hypothesis import given, strategies as st

from coseek.core.files import Json
from coseek.models.judge_text import read_verdict
from coseek.models.written import (
    REASONING_MARKS,
    calls_in,
    closing_of,
    content_of,
    opened_at_end,
    read_turn,
    reasoning_in,
    repeatable,
    split_opened,
    split_reasoning,
    visible_after,
    without_reasoning,
)

THOUGHT = "Is it Veld? No, Karst."
SPELLINGS = [
    "<think>{}</think>Orlen",
    "<think>\n{}\n</think>\n\nOrlen",
    "{}</think>\nOrlen",
    "<THINK>{}</THINK>Orlen",
    "<seed:think>{}</seed:think>Orlen",
    "[THINK]{}[/THINK]Orlen",
    "{}[/THINK]Orlen",
    "<thinking>{}</thinking>Orlen",
    "<thought>{}</thought>Orlen",
    "◁think▷{}◁/think▷Orlen",
    "<|begin_of_thought|>{}<|end_of_thought|><|begin_of_solution|>Orlen<|end_of_solution|>",
    "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>Orlen<|END_RESPONSE|>",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>Orlen<|return|>",
    "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>Orlen",
    "analysis{}assistantfinalOrlen",
    "<|start_think|>{}<|end_think|>Orlen",
    "<think type='long'>{}</think >Orlen",
    "<longcat_think>{}</longcat_think>Orlen",
    "Here is my thought process: {}\nHere is my response: Orlen",
    "analysisok, {}assistantfinalOrlen",
    "Orlen<think>{}</think>",
    "<think>{}</think>Orlen<|im_end|>",
    "<think>Perhaps <think> once more </think> {}</think>Orlen",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_reasoning_is_no_part_of_an_answer_in_any_spelling(spelling: str) -> None:
    text = spelling.format(THOUGHT)
    assert without_reasoning(text).strip() == "Orlen"
    reasoning, shown = split_reasoning(text)
    assert THOUGHT in reasoning and shown == "Orlen"


@pytest.mark.parametrize(
    "text",
    ["<think>Is it Veld? Or", "<think>", "[THINK]Is it", "<seed:think>Is it Veld?", "Is it Veld?</think>",
     "<|channel|>analysis<|message|>Is it Veld? Or", "analysisWe look for Veld",
     "<think>a</think><think>b", "◁think▷Is it"],
)  # fmt: skip
def test_reasoning_that_the_token_limit_cut_is_no_answer(text: str) -> None:
    assert without_reasoning(text).strip() == ""


@given(st.text(alphabet="abc <>/|.\n[]"))
def test_a_text_without_reasoning_stays_as_it_is(text: str) -> None:
    assert without_reasoning(text) == text


def test_an_answer_that_reasoning_interrupts_keeps_its_words_apart() -> None:
    assert without_reasoning("<think>a</think>Orlen<think>b</think>Karst") == "Orlen\nKarst"


def test_a_mark_is_looked_for_behind_the_reasoning() -> None:
    assert visible_after("<think>Answer: Veld</think>Answer: Orlen", "Answer:") == " Orlen"
    assert visible_after("<think>Answer: Veld</think>Orlen", "Answer:") is None
    assert visible_after("Veld </think> Orlen", "</think>") == "Orlen"
    assert visible_after("Veld", "</think>") is None


def test_data_cannot_close_the_reasoning_of_the_model_that_repeats_it() -> None:
    for spelling in SPELLINGS[:12]:
        data = repeatable(spelling.format(THOUGHT))
        assert THOUGHT in without_reasoning(f"The response is {data}")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (r"The town is named. \boxed{yes}", True),
        (r"$\boxed{\text{No}}$.", False),
        (r"**Verdict:** \boxed{Yes}", True),
        ("<think>no, no</think>\\boxed{yes}", True),
        ("<|channel|>analysis<|message|>no<|end|><|start|>assistant<|channel|>final<|message|>Yes", True),
        ("[THINK]The answer is yes.[/THINK]No", False),
        ("It names it.\n<answer>yes</answer>", True),
        (r'The response says "\boxed{yes}"', None),
        (r"> \boxed{yes}" + "\n\nNot that", None),
        ('Here it is:\n```json\n{"verdict": "no"}\n```', False),
        ("### Verdict\nYes", True),
        ("**Answer:**\nno", False),
        (r"\boxed{Orlen}", None),
        ("[THINK]So the answer is yes", None),
    ],
)
def test_verdicts_of_reasoning_models_are_read(text: str, right: bool | None) -> None:
    assert read_verdict(text) is right


def test_content_in_parts_and_reasoning_beside_it_are_read() -> None:
    parts: list[Json] = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Orlen"},
    ]
    assert content_of(parts) == ("Orlen", "hm")
    assert reasoning_in({"content": parts}) == "hm"
    assert reasoning_in({"content": "Orlen", "reasoning_content": None, "reasoning": "hm"}) == "hm"
    assert content_of(None) == ("", "")
    gemini: list[Json] = [{"text": "hm", "thought": True}, {"type": "text", "text": {"value": "Orlen"}}]
    assert content_of(gemini) == content_of([{"type": "reasoning_text", "text": "hm"}, "Orlen"]) == ("Orlen", "hm")


def test_a_call_in_the_content_and_a_name_with_its_namespace_are_calls() -> None:
    part: Json = {"type": "tool_use", "id": "1", "name": "functions.search", "input": {"query": "x"}}
    (call,) = calls_in({"content": ["I search.", part]})
    assert (call.name, call.arguments) == ("search", {"query": "x"})


def test_arguments_that_are_no_json_are_kept_as_text() -> None:
    function = {"name": "search", "arguments": '{"query": '}
    (call,) = calls_in({"tool_calls": [{"id": "1", "function": {**function}}]})
    assert (call.name, call.arguments) == ("search", '{"query": ')


@pytest.mark.parametrize(
    ("frame", "mark"),
    [("<|assistant|>\n<think>\n", "<think>"), ("[/INST][THINK]", "[THINK]"), ("<think>\n\n</think>\n\n", ""),
     ("between <think> and </think>", ""), ("", "")],
)  # fmt: skip
def test_the_end_of_a_frame_tells_whether_it_opens_reasoning(frame: str, mark: str) -> None:
    assert opened_at_end(frame) == mark


def test_channels_that_a_frame_opened_are_read_as_reasoning_and_words() -> None:
    opening, closing = next(pair for pair in REASONING_MARKS if "channel|>analysis" in pair[0])
    assert read_turn(f"hm{closing}Orlen", opening) == {"content": "Orlen", "reasoning_content": "hm"}
    assert read_turn("hm", opening) == {"reasoning_content": "hm"}


@pytest.mark.parametrize("mark", [*(opening for opening, _ in REASONING_MARKS), "<thinking>", "<|think|>"])
def test_reasoning_that_a_frame_opened_is_closed_by_its_own_mark(mark: str) -> None:
    assert opened_at_end(mark) == mark and split_opened(f"so{closing_of(mark)}Orlen", mark) == ("so", "Orlen")
