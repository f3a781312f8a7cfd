import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.rules import RuleAgent, guess, heading, opening_name, with_subject
from coseek.agents.scripted_agent import Move, ScriptedAgentModel
from coseek.agents.sources import served_context
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason
from coseek.measure.retrieval import all_gold_at, served
from coseek.models.model import EpisodeState
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25

CORPUS = Corpus(
    [
        Passage("film", "Devotion (1929 film)", "Devotion is a 1929 German film directed by Guido Brignone."),
        Passage("man", "Guido Brignone", "He was an Italian director, father of Lilla Brignone, born in Milan."),
        Passage("noise", "Directors Guild", "The guild of every film director and of child actors."),
        Passage("other", "Child of Our Time", "A film about a child whose father is a director."),
    ]
)
QUESTION = Question("q", "Who is the child of the director of film Devotion?", ("Lilla Brignone",), ("film", "man"), 2)
BM25 = Bm25.over(CORPUS)


def play(question: Question, rules: RuleAgent, k: int = 3, over: Bm25 = BM25) -> tuple[tuple[Search, ...], list[Move]]:
    """The loop without a driver."""
    searches: tuple[Search, ...] = ()
    moves: list[Move] = []
    while not moves or moves[-1].answer is None:
        moves.append(rules.write(EpisodeState(question, searches), random.Random(len(moves))))
        for query in moves[-1].queries:
            searches = (*searches, Search(query.strip(), tuple(over.search([query], k)[0])))
    return searches, moves


def test_it_follows_the_name_that_a_passage_brings_in() -> None:
    searches, moves = play(QUESTION, RuleAgent())
    assert searches[0].query == QUESTION.question
    assert "Guido Brignone" in searches[1].query
    assert "Devotion" not in searches[1].query  # met in the title that was taken
    assert moves[1].thought == f" I take Devotion (1929 film) . I search {searches[1].query} ."


def test_both_gold_passages_come_first_where_one_search_finds_one() -> None:
    searches, _ = play(QUESTION, RuleAgent())
    assert RuleAgent().evidence(QUESTION.question, searches)[:2] == ["film", "man"]
    assert [hit.passage.id for hit in searches[0].hits] != ["film", "man"]


def test_gold_answers_and_passages_change_nothing() -> None:
    assert play(QUESTION, RuleAgent()) == play(Question("other id", QUESTION.question), RuleAgent())


@pytest.mark.parametrize("most", [1, 2, 4])
def test_it_answers_after_its_searches_are_used_up(most: int) -> None:
    searches, moves = play(QUESTION, RuleAgent(most), k=1)
    assert len(searches) <= most
    assert moves[-1].answer is not None


def test_it_stops_where_a_passage_leads_nowhere() -> None:
    searches, moves = play(QUESTION, RuleAgent(), k=4)
    assert len(searches) < 4
    assert moves[-1].answer == " Guido Brignone"


def test_finding_nothing_ends_in_an_answer() -> None:
    searches, moves = play(Question("q", "zzz yyy?"), RuleAgent())
    assert len(searches) == 1
    assert moves[-1] == Move(thought=" I found nothing . I answer unknown .", answer=" unknown")


def test_its_runs_are_valid_and_a_generator_is_given_what_it_ranked_best_first() -> None:
    protocol = load_protocol("search-r1", "laptop")
    model = ScriptedAgentModel(RuleAgent(), protocol, ByteTokenizer(protocol.grammar.special_tokens))
    (run,) = rollout(Agent(protocol, model), BM25, [QUESTION], [0], Limits(passages_per_search=3))
    assert (run.stop, run.valid) == (StopReason.ANSWERED, True) and all_gold_at(run, 2)
    assert run.evidence == tuple(RuleAgent().evidence(QUESTION.question, run.searches))
    assert [passage.id for passage in served_context(run)] == list(run.evidence)
    assert [passage.id for passage in served_context(replace(run, evidence=None))] == [one.id for one in served(run)]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Is Devotion a film?", "yes"),
        ("When was Devotion made?", "1929"),
        ("Which came first, Devotion or Guido Brignone?", "Devotion"),
        ("Who directed Devotion?", "Guido Brignone"),
    ],
)
def test_answers_are_guessed_from_the_form_of_the_question(question: str, answer: str) -> None:
    taken = [CORPUS.by_id("film")] if "1929" in answer else [CORPUS.by_id("film"), CORPUS.by_id("man")]
    assert guess(question, taken) == answer


TITLE = st.sampled_from(["Ada", "Bob (singer)", "The Of", "…", "", "黑豹"])
TEXT = st.text(alphabet="AdaBob 黑豹.'", max_size=30)


@st.composite
def found(draw: st.DrawFn) -> tuple[Search, ...]:
    passages = [Passage(str(row), draw(TITLE), draw(TEXT)) for row in range(draw(st.integers(1, 5)))]
    lists = draw(st.lists(st.lists(st.sampled_from(passages), max_size=4, unique=True), min_size=1, max_size=4))
    return tuple(Search(f"query {row}", tuple(Hit(passage, 1.0) for passage in hits)) for row, hits in enumerate(lists))


@given(TEXT, found())
def test_whatever_is_found_it_makes_a_move_and_ranks_everything_once(
    question: str, searches: tuple[Search, ...]
) -> None:
    move = RuleAgent().write(EpisodeState(Question("q", question), searches), random.Random(0))
    assert move.thought.startswith(" I ")
    assert all(query.strip() for query in move.queries)
    evidence = RuleAgent().evidence(question, searches)
    assert sorted(evidence) == sorted({hit.passage.id for search in searches for hit in search.hits})


# --- the name of what a passage is about


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("# Opening hours\n\nWe open at nine.", "Opening hours"),
        ("Devotion (1929 film)\nDevotion is a German film.", "Devotion (1929 film)"),
        ("We open at nine.\nWe close at six.", ""),
        ("name | hours\nshop | nine", ""),
        ("The Garry Moore Show is the name of several series.", "Garry Moore Show"),
        ("In the Church of England, courts formerly decided.", "Church of England"),
        ("M. Ward (born 1973) is a singer.", "M. Ward"),
        ("Ed Wood. Ed Wood is a 1994 film.", "Ed Wood"),
        ("1998 was a year.", ""),
        ("nothing here is a name", ""),
        ("", ""),
    ],
)
def test_a_passage_without_a_title_has_the_name_that_its_text_shows(text: str, subject: str) -> None:
    assert with_subject(Passage("p", " ", text)).title == subject


def test_a_title_is_never_replaced() -> None:
    passage = Passage("p", "The title", "# Another heading\n\nText.")
    assert with_subject(passage) is passage


@given(st.text(alphabet="Ab 1.\n#|(’é黑", max_size=60))
def test_a_subject_is_made_of_words_of_its_text(text: str) -> None:
    for found in (heading(text), opening_name(text)):
        assert set(found.split()) <= {part for word in text.split() for part in _ways(word)}


def _ways(word: str) -> set[str]:
    """A word of a text, whole, and as marks around it leave it."""
    return {word[start:end] for start in range(len(word)) for end in range(start + 1, len(word) + 1)}
