"""The scripted expert: right with the evidence, silent about what it has not seen, faulty only as set."""

import random
from functools import cache
from statistics import mean

import pytest

from coseek.agents.protocol import load_protocol
from coseek.agents.scripted_agent import Move
from coseek.core.errors import DataError
from coseek.core.prompt_file import fill_template
from coseek.data.answers import exact_match
from coseek.data.passage import Passage
from coseek.data.question import Question, plan_of
from coseek.data.trajectory import Search
from coseek.graders.generator import GeneratorSettings, load_generator_prompt
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings
from coseek.lab.world.plan import kind_of
from coseek.lab.world.world import World, WorldSettings, make_world
from coseek.models.model import EpisodeState
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
    moves: list[Move] = []
    searches: tuple[Search, ...] = ()
    while not moves or moves[-1].answer is None:
        moves.append(
            expert.write(EpisodeState(question, searches), random.Random(f"{seed} {question.id} {len(searches)}"))
        )
        found = (index or bm25()).search(moves[-1].queries, k)
        asked = zip(moves[-1].queries, found, strict=True)
        searches += tuple(Search(query, tuple(hits), turn=len(moves)) for query, hits in asked)
    return moves, searches


def strict_em(expert: ExpertAgent) -> float:
    ends = [(question, run(expert, question)[0][-1].answer or "") for question in world().questions["dev"]]
    return mean(float(exact_match(answer, question.answers)) for question, answer in ends)


def of_kind(kind: str, hops: int = 1) -> Question:
    return next(q for q in world().questions["dev"] if kind_of(q) == kind and q.hops == hops)


def test_the_perfect_expert_answers_nearly_everything_and_the_faulty_one_leaves_room() -> None:
    perfect, faulty = strict_em(ExpertAgent.perfect()), strict_em(ExpertAgent())
    assert perfect >= 0.95
    assert 0.35 < faulty < perfect - 0.2


def test_the_same_seeds_write_the_same_run() -> None:
    for question in world().questions["dev"][:40]:
        assert run(ExpertAgent(), question, seed=7) == run(ExpertAgent(), question, seed=7)
    assert any(run(ExpertAgent(), q, seed=1) != run(ExpertAgent(), q, seed=2) for q in world().questions["dev"][:40])


def test_the_perfect_expert_states_only_what_it_has_read() -> None:
    for question in world().questions["dev"]:
        moves, searches = run(ExpertAgent.perfect(), question)
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
    for expert in (ExpertAgent.perfect(), ExpertAgent()):
        for question in world().questions["dev"][:100]:
            for move in run(expert, question)[0]:
                for text in (move.thought, *move.queries, move.answer or " x"):
                    assert text == " " + " ".join(text.split())


def test_a_chain_is_followed_one_hop_a_search() -> None:
    question = of_kind("composition", 2)
    first, second = plan_of(question)
    passages = [world().corpus.by_id(step.gold_id) for step in (first, second)]
    seen: tuple[Search, ...] = ()
    expert, rng = ExpertAgent.perfect(), random.Random(0)
    move = expert.write(EpisodeState(question, seen), rng)
    assert move.thought == f" Next : the {first.relation} of {first.mention} ."
    assert move.queries == (f" {first.mention} {first.relation}",)
    seen += _found(move, passages[0].id)
    move = expert.write(EpisodeState(question, seen), rng)
    assert move.thought.startswith(f"{passages[0].title} # 1 , {first.relation} : {second.mention} . Next :")
    seen += _found(move, passages[1].id)
    move = expert.write(EpisodeState(question, seen), rng)
    assert move.answer == f" {second.sub_answer}"


def _found(move: Move, *idents: str) -> tuple[Search, ...]:
    hits = FixedRetriever(world().corpus, {move.queries[0]: list(idents)}).search(move.queries, k=3)[0]
    return (Search(move.queries[0], tuple(hits)),)


def test_a_miss_is_noticed_and_asked_again_in_other_words_and_then_admitted() -> None:
    question = of_kind("composition", 3)
    seen: tuple[Search, ...] = ()
    moves = []
    for _ in range(4):
        moves.append(ExpertAgent.perfect().write(EpisodeState(question, seen), random.Random(0)))
        seen += _found(moves[-1]) if moves[-1].queries else ()
    assert all(move.thought.startswith(" Not found . Next :") for move in moves[1:3])
    assert len({move.queries for move in moves[:3]}) == 3
    assert moves[3].answer is not None and moves[3].thought.startswith(" I can not find")


def test_a_comparison_states_both_values_before_it_answers() -> None:
    for question in world().questions["dev"]:
        if kind_of(question) == "comparison":
            moves, _ = run(ExpertAgent.perfect(), question)
            if exact_match(moves[-1].answer or "", question.answers):
                assert all(f" : {step.sub_answer} ." in moves[-1].thought for step in plan_of(question))


def test_stopping_early_answers_with_the_bridge() -> None:
    expert = ExpertAgent(ExpertSettings(stop_early=1, bad_query=0, blind_guess=0, give_up=0))
    question = of_kind("composition", 3)
    moves, searches = run(expert, question)
    assert len(searches) == 1 and moves[-1].answer == f" {plan_of(question)[0].sub_answer}"


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


def test_blind_guesses_search_nothing() -> None:
    expert = ExpertAgent(ExpertSettings(blind_guess=1))
    for question in world().questions["dev"][:50]:
        moves, searches = run(expert, question)
        assert not searches and moves[-1].answer


def test_the_expert_stops_at_its_limit_of_searches() -> None:
    expert = ExpertAgent(ExpertSettings(stop_early=0, bad_query=0, blind_guess=0, give_up=0, max_searches=2))
    moves, searches = run(expert, of_kind("composition", 4))
    assert len(searches) == 2 and moves[-1].answer


def test_a_question_without_a_plan_is_refused_with_a_sentence() -> None:
    with pytest.raises(DataError, match="has no plan"):
        ExpertAgent().write(EpisodeState(Question("nq-1", "who?")), random.Random(0))


def test_a_world_of_other_relations_is_answered_and_its_mistakes_are_no_crash() -> None:
    drawn = make_world(WorldSettings(seed=5, size="tiny", lexicon="drawn", train=0, dev=60, test=0))
    index = Bm25.over(drawn.corpus)
    ends = [run(ExpertAgent.perfect(), question, index=index)[0][-1].answer for question in drawn.questions["dev"]]
    right = [drawn.oracle.judge(one, end or "") for one, end in zip(drawn.questions["dev"], ends, strict=True)]
    assert mean(right) >= 0.8
    for question in drawn.questions["dev"]:
        assert run(ExpertAgent(ExpertSettings(blind_guess=1)), question, index=index)[0][-1].answer
