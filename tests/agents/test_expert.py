"""The scripted expert: right with the evidence, silent about unseen facts; and the moves of scripted agents."""

import random
from functools import cache
from statistics import mean

import pytest
from tests.agents.playing import ADA, BOB, EVE, LOOPS, QUESTION, moves_of

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import Move, ScriptedAgent, ScriptedAgentModel, move_ids
from coseek.core.errors import DataError
from coseek.core.prompt_file import fill_template
from coseek.data.answers import exact_match
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question, plan_of
from coseek.data.trajectory import Search, StopReason
from coseek.graders.generator import GeneratorSettings, load_generator_prompt
from coseek.lab.agents.expert import PERFECT, ExpertAgent, ExpertSettings
from coseek.lab.world.rationales import kind_of
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.bm25 import Bm25


@cache
def world() -> World:
    return make_world(WorldSettings(size="compact", seed=4, train=1))


@cache
def bm25() -> Bm25:
    return Bm25.over(world().corpus)


def run(
    expert: ExpertAgent, question: Question, seed: int = 0, k: int = 2, index: Bm25 | None = None
) -> tuple[list[Move], tuple[Search, ...]]:
    return moves_of(expert, question, index or bm25(), k, seed)


def strict_em(expert: ExpertAgent) -> float:
    ends = [(question, run(expert, question)[0][-1].answer or "") for question in world().questions["dev"]]
    return mean(float(exact_match(answer, question.answers)) for question, answer in ends)


def of_kind(kind: str, hops: int = 1) -> Question:
    return next(q for q in world().questions["dev"] if kind_of(q) == kind and q.hops == hops)


def test_the_perfect_expert_answers_nearly_everything_and_the_faulty_one_leaves_room() -> None:
    perfect, faulty = strict_em(ExpertAgent(PERFECT)), strict_em(ExpertAgent())
    assert perfect >= 0.95
    assert 0.35 < faulty < perfect - 0.2


def test_the_same_seeds_write_the_same_run() -> None:
    for question in world().questions["dev"][:40]:
        assert run(ExpertAgent(), question, seed=7) == run(ExpertAgent(), question, seed=7)
    assert any(run(ExpertAgent(), q, seed=1) != run(ExpertAgent(), q, seed=2) for q in world().questions["dev"][:40])


def test_the_perfect_expert_states_only_what_it_has_read() -> None:
    for question in world().questions["dev"]:
        moves, searches = run(ExpertAgent(PERFECT), question)
        for at, move in enumerate(moves):
            read = [hit.passage.text for search in searches[:at] for hit in search.hits]
            seen = f"{' '.join(read)} {question.question} "
            stated = [step for step in plan_of(question) if f" : {step.sub_answer} . " in f"{move.thought} "]
            assert all(f" {step.sub_answer} " in seen for step in stated)


def test_the_laptop_agent_is_shown_passages_in_the_form_that_the_base_and_the_generator_read() -> None:
    passage = Passage("a", " Red Hour", " Red Hour is a film .")
    template = load_protocol("search-r1", "laptop").template.file
    shown = template.document.replace("{rank}", "1").replace("{title}", passage.title).replace("{text}", passage.text)
    prompt = load_generator_prompt(GeneratorSettings(model="base"))
    read = fill_template(prompt.passage, number="1", title=passage.title.strip(), text=passage.text.strip())
    assert shown == read


def test_every_word_that_the_expert_writes_has_a_space_before_it() -> None:
    for expert in (ExpertAgent(PERFECT), ExpertAgent()):
        for question in world().questions["dev"][:100]:
            for move in run(expert, question)[0]:
                for text in (move.thought, *move.queries, move.answer or " x"):
                    assert text == " " + " ".join(text.split())


def _searches_of(move: Move, *idents: str) -> tuple[Search, ...]:
    hits = FixedRetriever(world().corpus, {move.queries[0]: list(idents)}).search(move.queries, k=3)[0]
    return (Search(move.queries[0], tuple(hits)),)


def test_a_miss_is_noticed_and_asked_again_in_other_words_and_then_admitted() -> None:
    question = of_kind("composition", 3)
    seen: tuple[Search, ...] = ()
    moves = []
    for _ in range(4):
        moves.append(ExpertAgent(PERFECT).write(EpisodeState(question, seen), random.Random(0)))
        seen += _searches_of(moves[-1]) if moves[-1].queries else ()
    assert all(move.thought.startswith(" Not found . Next :") for move in moves[1:3])
    assert len({move.queries for move in moves[:3]}) == 3
    assert moves[3].answer is not None and moves[3].thought.startswith(" I can not find")


RESTATES = ExpertAgent(ExpertSettings(stop_early=0, bad_query=0, blind_guess=0, give_up=0, restate=True))


def test_an_expert_that_restates_writes_behind_every_fact_what_is_left_of_the_question_or_its_answer() -> None:
    question = of_kind("composition", 3)
    plan = plan_of(question)
    moves, _ = run(RESTATES, question)
    for step, move in zip(plan[:-1], moves[1:-1], strict=True):
        assert f" : {step.sub_answer} . Now :{step.rest} Next :" in move.thought
    assert "Now :" not in moves[0].thought
    assert moves[-1].thought.endswith(f" : {plan[-1].sub_answer} . Now :{moves[-1].answer} .")
    assert exact_match(moves[-1].answer or "", question.answers)


def test_a_question_without_a_plan_is_refused_with_a_sentence() -> None:
    with pytest.raises(DataError, match="has no plan"):
        ExpertAgent().write(EpisodeState(Question("nq-1", "who?")), random.Random(0))


def test_a_world_of_other_relations_is_answered_and_its_mistakes_are_no_crash() -> None:
    drawn = make_world(WorldSettings(seed=5, size="tiny", lexicon="drawn", train=0, dev=60, test=0))
    index = Bm25.over(drawn.corpus)
    ends = [run(ExpertAgent(PERFECT), question, index=index)[0][-1].answer for question in drawn.questions["dev"]]
    right = [drawn.oracle.judge(q, end or "") for q, end in zip(drawn.questions["dev"], ends, strict=True)]
    assert mean(right) >= 0.8
    for question in drawn.questions["dev"]:
        assert run(ExpertAgent(ExpertSettings(blind_guess=1)), question, index=index)[0][-1].answer


# --- writers speak every protocol: a move finds its words from the order of the grammar alone


FOUND = EpisodeState(
    QUESTION, (Search("Ada", (Hit(ADA, 2.0), Hit(BOB, 1.0)), turn=1), Search("Eve", (Hit(EVE, 1.0),), turn=1))
)
START = EpisodeState(QUESTION)
LOOK = Move(" I know. I ask.", (" a", " <answer>b"), selected=("p3", "p1"))
SAY = Move(" I know.", answer=" 1815", selected=())


def written_turn(name: str, move: Move, so_far: EpisodeState) -> str:
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
            "s3",
            "<important_info>[1, 3]</important_info><search_complete>False</search_complete>"
            '<query>{"query": ["a", "<answer>b"]}</query>',
            "<important_info>[]</important_info><search_complete>True</search_complete>",
        ),
    ],
)
def test_a_move_is_written_as_the_protocol_has_it(name: str, look: str, say: str) -> None:
    assert written_turn(name, LOOK, FOUND) == look
    assert written_turn(name, SAY, FOUND) == say


def test_a_first_move_reflects_on_nothing_and_an_answer_out_of_order_is_written_all_the_same() -> None:
    assert written_turn("qagent", LOOK, START).startswith("<plan> I know. I ask.</plan><search>")
    assert written_turn("qagent", SAY, START) == "<plan> I know.</plan><answer> 1815</answer>"
    assert written_turn("deepretrieval", SAY, START) == '<think> I know.</think><query>{"query": "1815"}</query>'


@pytest.mark.parametrize("writer", [ExpertAgent(PERFECT), RuleAgent()], ids=["expert", "rules"])
@pytest.mark.parametrize("name", [name for name in LOOPS if name != "rag-rerank"])
def test_writers_run_every_protocol_in_its_valid_form(name: str, writer: ScriptedAgent) -> None:
    protocol = load_protocol(name)
    model = ScriptedAgentModel(writer, protocol, ByteTokenizer(protocol.grammar.special_tokens))
    base = Limits(max_turn_tokens=4000, max_observation_tokens=8000, max_tokens=64000)
    limits = protocol.limits_over(base).model_copy(update={"max_turns": 8})
    runs = rollout(Agent(protocol, model), bm25(), world().questions["dev"][:8], list(range(8)), limits)
    assert {run.stop for run in runs} <= {StopReason.ANSWERED, StopReason.COMPLETE, StopReason.TURN_LIMIT}
    assert [run.format_error for run in runs if run.stop is not StopReason.TURN_LIMIT and not run.valid] == []
    assert sum(run.valid for run in runs) >= 6
