"""The scripted expert: right with the evidence, silent about what it has not seen, faulty only as set."""

import random
import re
from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.expert import PERFECT, ExpertAgent, ExpertSettings
from coseek.agents.scripted_agent import Move
from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.core.prompt_file import fill_template
from coseek.data.answers import exact_match
from coseek.data.dataset import Dataset
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search
from coseek.graders.generator import GeneratorSettings, load_generator_prompt
from coseek.models.model import EpisodeState
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.synthesis.settings import SynthesisSettings
from coseek.synthesis.synthesis import synthesize
from coseek.world.plan import kind_of, plan_of
from coseek.world.world import World, WorldSettings, make_world


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


def test_a_fact_names_its_passage_by_the_title_and_number_that_the_agent_was_shown() -> None:
    seconds = 0
    for question in world().questions["dev"][:100]:
        moves, searches = run(ExpertAgent.perfect(), question)
        for at, move in enumerate(moves[1:]):
            shown = {f"{hit.passage.title} # {n} ," for n, hit in enumerate(searches[at].hits, 1)}
            told = [line for line in shown if line in move.thought]
            assert told or " Not found ." in move.thought or " can not find" in move.thought
            seconds += any(" # 2 ," in line for line in told)
    assert seconds >= 3


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


def test_an_expert_may_search_the_question_first_and_no_miss_of_it_counts() -> None:
    question = of_kind("composition", 2)
    expert = ExpertAgent(PERFECT.model_copy(update={"question_first": 1.0, "retries": 0}))
    moves, searches = run(expert, question)
    assert searches[0].query.strip() == question.question.strip()
    assert moves[-1].answer is not None and exact_match(moves[-1].answer, question.answers)
    nothing = (Search(searches[0].query, ()),)
    move = expert.write(EpisodeState(question, nothing), random.Random(0))
    assert move.queries == run(ExpertAgent.perfect(), question)[0][0].queries  # the first fact, as if nothing was asked
    assert "Not found" not in move.thought


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


def test_the_share_of_early_stops_is_that_of_questions_not_of_steps() -> None:
    expert = ExpertAgent(ExpertSettings(stop_early=0.5, bad_query=0, blind_guess=0, give_up=0))
    questions = [q for q in world().questions["dev"] if kind_of(q) == "composition" and q.hops == 4]
    right = [exact_match(run(expert, q, seed)[0][-1].answer or "", q.answers) for q in questions for seed in range(8)]
    assert 0.38 < mean(map(float, right)) < 0.62


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


def test_a_demonstration_that_breaks_off_says_nothing_of_what_is_left() -> None:
    breaks_off = ExpertAgent(RESTATES.settings.model_copy(update={"stop_early": 1}))
    moves, _ = run(breaks_off, of_kind("composition", 3))
    assert moves[-1].answer is not None
    assert "Now :" not in moves[-1].thought


def test_two_dates_are_written_again_with_their_names_behind_them_and_two_names_beside_each_other() -> None:
    compared = [question for question in world().questions["dev"] if kind_of(question) == "comparison"]
    ends = {True: 0, False: 0}
    for question in compared:
        moves, _ = run(ExpertAgent.perfect(), question)
        if not exact_match(moves[-1].answer or "", question.answers):
            continue
        thought, answer, plan = moves[-1].thought, (moves[-1].answer or "").strip(), plan_of(question)
        same = question.meta.get("compare") == "same"
        ends[same] += 1
        titles = [world().corpus.by_id(step.gold_id).title.strip() for step in plan]
        if same:
            assert thought.endswith(f" : {plan[1].sub_answer} . {'the same' if answer == 'yes' else 'not the same'} .")
        else:
            assert " , ".join(f"{step.sub_answer} {title}" for step, title in zip(plan, titles, strict=True)) in thought
            first = plan[titles.index(answer)].sub_answer
            assert f" . {first} is before " in thought and thought.endswith(f" . {first} {answer} .")
    assert min(ends.values()) >= 3


def test_comparisons_can_be_left_out_of_the_early_stops() -> None:
    question = of_kind("comparison")
    for guess, searched in ((True, 1), (False, 2)):
        settings = ExpertSettings(stop_early=1, bad_query=0, blind_guess=0, give_up=0, guess_comparisons=guess)
        assert len(run(ExpertAgent(settings), question)[1]) == searched


def test_blind_guesses_search_nothing() -> None:
    expert = ExpertAgent(ExpertSettings(blind_guess=1))
    for question in world().questions["dev"][:50]:
        moves, searches = run(expert, question)
        assert not searches and moves[-1].answer


def test_bad_queries_find_less() -> None:
    expert = ExpertAgent(ExpertSettings(stop_early=0, bad_query=1, blind_guess=0, give_up=1))
    assert strict_em(expert) < 0.5


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


@pytest.mark.slow
def test_the_perfect_expert_follows_the_path_of_a_question_made_from_passages(tmp_path: Path) -> None:
    world().corpus.save(tmp_path / "in" / "corpus.jsonl")
    synthesize(tmp_path / "in", tmp_path / "out", SynthesisSettings(count=200, dev=0, test=0, unanswerable=0))
    made = Dataset(tmp_path / "out").questions("train")
    right: list[bool] = []
    stated = 0
    for question in made:
        moves, searches = run(ExpertAgent(PERFECT.model_copy(update={"restate": True})), question)
        right.append(exact_match(moves[-1].answer, question.answers))
        for at, move in enumerate(moves):
            read = " ".join(hit.passage.text for search in searches[:at] for hit in search.hits)
            if fact := re.match(r" .+? , .+? : ([^?]+?) \.", move.thought):
                assert f" {fact[1]} " in read, move.thought
                stated += 1
    assert stated >= 0.95 * sum(question.hops or 0 for question in made)
    assert {question.hops for question in made} == {1, 2, 3, 4}
    assert mean(right) >= 0.9


def test_what_is_still_asked_of_a_made_question_begins_with_what_was_found() -> None:
    path: list[Json] = [
        {"passage": "a", "from": "Dark Hunter", "to": "Galo Branwell ( singer )", "written": "Galo Branwell",
         "phrase": "with … as voice", "back": False, "question": "Dark Hunter is with whom as voice?",
         "rest": "Galo Branwell ( singer ) is born in which city?"},
        {"passage": "b", "from": "Galo Branwell ( singer )", "to": "Julmere", "phrase": "born in", "back": False,
         "question": "Galo Branwell ( singer ) is born in which city?"},
    ]  # fmt: skip
    question = Question("q", "?", ("Julmere",), ("a", "b"), 2, {"kind": "chain", "path": path})
    hits = (Hit(Passage("a", "Dark Hunter", "…"), 1.0),)
    expert = ExpertAgent(PERFECT.model_copy(update={"restate": True}))
    move = expert.write(EpisodeState(question, (Search("", hits),)), random.Random(0))
    asked = "Galo Branwell is born in which city?"
    assert move.thought == f" Dark Hunter # 1 , with as voice : Galo Branwell . Now : {asked} Next : {asked} ."
    assert move.queries == (" Galo Branwell born in",)
