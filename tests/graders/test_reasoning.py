"""Fears about a model that reads reasonings: an unreadable reply taken for none, a reasoning that forges a number."""

import json
import re

from tests.scripted import Scripted

from coseek.core.files import Json, JsonObject
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.reasoning import ReasonedRun, ReasoningReader
from coseek.graders.structured_output import RETRIES, SCORER
from coseek.measure.reasoning import ReasoningClaims

QUESTION = Question("q", "Where was the director of Night Train born?", ("Merrow",), ("p1",))
RUN = ReasonedRun(
    QUESTION,
    ("Ada directed it [7]", "Eve?", "Ada was born in Merrow"),
    (Passage("p1", "Ada", "Ada directed Night Train."),),
)


def says(prompt: str) -> str:
    """Clues and claims by the names in a text."""
    text = prompt.rpartition("Text: ")[2].partition("\n")[0]
    if "What does each step find" in prompt:
        return '["Ada directed it", "Ada was born in Merrow"]'
    if "What the steps find:" in prompt:
        found = {"correct": re.findall("Ada|Merrow", text), "incorrect": re.findall("Eve", text)}
        return f"```json\n{json.dumps(found)}\n```" if "Ada" in text else json.dumps(found)
    if "numbered list of statements" in prompt:
        return str([at for at, name in enumerate(("Ada", "Eve", "Merrow"), 1) if name in text])
    return '<think>hm</think>["Ada", "Eve", "Merrow"]'


def test_clues_and_claims_of_each_reasoning_are_read_over_the_answers_of_the_steps() -> None:
    model = Scripted(says)
    (read,) = ReasoningReader.over(model).read([RUN])
    assert read == [
        ReasoningClaims(frozenset({0}), 1, 0),
        ReasoningClaims(frozenset({1}), 0, 1),
        ReasoningClaims(frozenset({0, 2}), 2, 0),
    ]
    prompts = [prompt for call in model.calls for prompt in call]
    assert any("Ada | Ada directed Night Train." in prompt for prompt in prompts)
    assert "[1] Ada directed it (7)\n[2] Eve?\n" in prompts[0]


def test_a_question_with_a_plan_is_not_asked_for_its_steps() -> None:
    step: JsonObject = {
        "entity": "Night Train",
        "mention": "Night Train",
        "word": "film",
        "relation": "director",
        "gold_id": "p1",
    }
    plan: list[Json] = [{**step, "sub_answer": "Ada", "sub_question": "Who directed it?"}]
    planned = Question("q", QUESTION.question, ("Merrow",), meta={"plan": plan})
    model = Scripted(says)
    ReasoningReader.over(model).read([ReasonedRun(planned, RUN.reasonings)])
    prompts = [prompt for call in model.calls for prompt in call]
    assert not any("What does each step find" in prompt for prompt in prompts)
    assert any("(1) Who directed it? Ada" in prompt for prompt in prompts)


def replying(wrong: str) -> ReasoningReader:
    return ReasoningReader.over(Scripted(lambda prompt: wrong if "Text: Eve" in prompt else says(prompt)))


def test_a_run_with_a_reply_that_cannot_be_read_twice_or_fails_is_none_and_is_counted() -> None:
    for wrong in ("[9]", "[true]", "none", '{"correct": ["a"]}', "[1, [2]]"):
        assert (reader := replying(wrong)).read([RUN]) == [None] and reader.tally.counts[RETRIES] == 2
    failing = ReasoningReader.over(Scripted(says, fault="the server is gone"))
    assert failing.read([RUN]) == [None] and failing.tally.counts[SCORER] == 2
