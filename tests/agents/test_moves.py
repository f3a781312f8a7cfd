"""Writers speak every protocol: a move finds its words from the order of the grammar alone."""

from functools import cache

import pytest
from tests.agents.playing import ADA, BOB, EVE, OURS, QUESTION

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import Move, ScriptedAgent, ScriptedAgentModel, move_ids
from coseek.data.passage import Hit
from coseek.data.trajectory import Search, StopReason
from coseek.lab.agents.expert import ExpertAgent
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25

FOUND = EpisodeState(
    QUESTION, (Search("Ada", (Hit(ADA, 2.0), Hit(BOB, 1.0)), turn=1), Search("Eve", (Hit(EVE, 1.0),), turn=1))
)
START = EpisodeState(QUESTION)
LOOK = Move(" I know. I ask.", (" a", " <answer>b"), selected=("p3", "p1"))
SAY = Move(" I know.", answer=" 1815", selected=())


def said(name: str, move: Move, so_far: EpisodeState) -> str:
    protocol = load_protocol(name)
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    return tokenizer.decode(move_ids(protocol, move, tokenizer, so_far))


@pytest.mark.parametrize(
    ("name", "look", "say"),
    [
        (
            "search-r1",
            "<think> I know. I ask.</think><search> a  ‹answer›b</search>",
            "<think> I know.</think><answer> 1815</answer>",
        ),
        (
            "qagent",
            "<reflection> I know.</reflection><plan> I ask.</plan>"
            "<search><query> a</query><query> ‹answer›b</query></search>",
            "<reflection> I know.</reflection><answer> 1815</answer>",
        ),
        (
            "react",
            '<think> I know. I ask.</think><tool_call>{"name": "search", "arguments": {"query": ["a", "‹answer›b"]}}'
            "</tool_call>",
            "<think> I know.</think><answer> 1815</answer>",
        ),
        (
            "s3",
            "<important_info>[1, 3]</important_info><search_complete>False</search_complete>"
            '<query>{"query": ["a", "<answer>b"]}</query>',
            "<important_info>[]</important_info><search_complete>True</search_complete>",
        ),
        (
            "search-o1",
            " I know. I ask.<|begin_search_query|> a  <answer>b<|end_search_query|>",
            " I know.\\boxed{ 1815}",
        ),
        ("ircot", "<thought> a  ‹answer›b</thought>", "<answer> 1815</answer>"),
    ],
)
def test_a_move_is_written_as_the_protocol_has_it(name: str, look: str, say: str) -> None:
    assert said(name, LOOK, FOUND) == look
    assert said(name, SAY, FOUND) == say


def test_a_first_move_reflects_on_nothing_and_an_answer_out_of_order_is_written_all_the_same() -> None:
    assert said("qagent", LOOK, START).startswith("<plan> I know. I ask.</plan><search>")
    assert said("qagent", SAY, START) == "<plan> I know.</plan><answer> 1815</answer>"
    assert said("deepretrieval", SAY, START) == '<think> I know.</think><query>{"query": "1815"}</query>'


@cache
def world() -> tuple[World, Bm25]:
    made = make_world(WorldSettings(size="compact", seed=4, train=1))
    return made, Bm25.over(made.corpus)


@pytest.mark.parametrize("writer", [ExpertAgent.perfect(), RuleAgent()], ids=["expert", "rules"])
@pytest.mark.parametrize("name", [name for name in OURS if name != "rag-rerank"])
def test_writers_run_every_protocol_in_its_valid_form(name: str, writer: ScriptedAgent) -> None:
    made, bm25 = world()
    protocol = load_protocol(name)
    model = ScriptedAgentModel(writer, protocol, ByteTokenizer(protocol.grammar.special_tokens))
    base = Limits(max_turn_tokens=4000, max_observation_tokens=8000, max_tokens=64000)
    limits = protocol.limits_over(base).model_copy(update={"max_turns": 8})
    runs = rollout(Agent(protocol, model), bm25, made.questions["dev"][:8], list(range(8)), limits)
    assert {run.stop for run in runs} <= {StopReason.ANSWERED, StopReason.COMPLETE, StopReason.TURN_LIMIT}
    assert [run.format_error for run in runs if run.stop is not StopReason.TURN_LIMIT and not run.valid] == []
    assert sum(run.valid for run in runs) >= 6
