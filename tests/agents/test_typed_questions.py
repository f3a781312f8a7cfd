"""Fears about typed questions: that the laptop policy reads another spelling than it learnt, that another model's
question is respelled, and that a run stores what nobody asked."""

import pytest
from tests.agents.playing import Shelf, typist

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.data.question import Question
from coseek.models.model_folder import model_path
from coseek.models.tokenizer import HfTokenizer

LEARNT = Question("q", " Who heads Ulmstad Seminary ?")
TYPED = Question("q", "who heads Ulmstad  Seminary")


@pytest.mark.parametrize("protocol", ["search-r1", "react", "search-o1", "direct", "s3"])
def test_the_prompt_of_a_typed_question_is_that_of_the_learnt_one(protocol: str) -> None:
    tokenizer = HfTokenizer.load(model_path("base"))
    ours, others = load_protocol(protocol, "laptop").template, load_protocol(protocol, "default").template
    assert ours.prompt_ids(tokenizer, TYPED) == ours.prompt_ids(tokenizer, LEARNT)
    assert tokenizer.decode(ours.prompt_ids(tokenizer, LEARNT)[0]).endswith(LEARNT.question)
    assert "who heads Ulmstad  Seminary" in tokenizer.decode(others.prompt_ids(tokenizer, TYPED)[0])
    kept = load_protocol(protocol, "laptop-typed").template
    assert tokenizer.decode(kept.prompt_ids(tokenizer, TYPED)[0]).endswith(" who heads Ulmstad  Seminary")


def test_a_run_keeps_the_question_as_it_was_typed() -> None:
    protocol = load_protocol("search-r1", "laptop")
    agent = Agent(protocol, typist(protocol, "<think> a</think><answer> b</answer>"))
    run = rollout(agent, Shelf(), [TYPED], [0], Limits())[0]
    assert run.question == TYPED and run.segments[0].text == " Question : Who heads Ulmstad Seminary ?"
