"""Scripted agents: their searches, their answers from passages, and when they decline."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from tests.agents.playing import moves_of

from coseek.agents.drivers import Agent, rollout
from coseek.agents.factory import limits_for, open_agent, settings_for
from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.agents.scripted.evidence import LONGEST as LONGEST_QUOTATION, EvidenceAgent, quotation
from coseek.agents.scripted.extract import LONGEST, extract
from coseek.agents.scripted.rules import RuleAgent, guess, heading, opening_name, with_subject
from coseek.agents.scripted_agent import Move, ScriptedAgentModel
from coseek.agents.sources import holds, reply_of, served_context, sources_of
from coseek.agents.tag import NOT_FOUND
from coseek.core.files import Json
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
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
    moves, searches = moves_of(rules, question, over, k)
    return searches, moves


def test_it_follows_the_name_that_a_passage_brings_in() -> None:
    searches, moves = play(QUESTION, RuleAgent())
    assert searches[0].query == QUESTION.question
    assert "Guido Brignone" in searches[1].query
    assert "Devotion" not in searches[1].query  # covered by the title that was taken
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


def test_its_runs_are_valid_and_a_generator_is_given_what_it_ranked_best_first() -> None:
    protocol = load_protocol("search-r1", "laptop")
    model = ScriptedAgentModel(RuleAgent(), protocol, ByteTokenizer(protocol.grammar.special_tokens))
    (run,) = rollout(Agent(protocol, model), BM25, [QUESTION], [0], Limits(passages_per_search=3))
    assert (run.stop, run.valid) == (StopReason.ANSWERED, True) and all_gold_at(run, 2)
    assert run.evidence == tuple(RuleAgent().evidence(QUESTION.question, run.searches))
    assert [passage.id for passage in served_context(run)] == list(run.evidence)
    assert [passage.id for passage in served_context(replace(run, evidence=None))] == [used.id for used in served(run)]


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
def drawn_searches(draw: st.DrawFn) -> tuple[Search, ...]:
    passages = [Passage(str(row), draw(TITLE), draw(TEXT)) for row in range(draw(st.integers(1, 5)))]
    lists = draw(st.lists(st.lists(st.sampled_from(passages), max_size=4, unique=True), min_size=1, max_size=4))
    return tuple(Search(f"query {row}", tuple(Hit(passage, 1.0) for passage in hits)) for row, hits in enumerate(lists))


@given(TEXT, drawn_searches())
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


@given(st.text(alphabet="Ab 1.\n#|(’é黑", max_size=60))
def test_a_subject_is_made_of_words_of_its_text(text: str) -> None:
    for subject in (heading(text), opening_name(text)):
        assert set(subject.split()) <= {way for word in text.split() for way in _ways(word)}


def _ways(word: str) -> set[str]:
    """All parts of a word, with and without the marks around it."""
    return {word[start:end] for start in range(len(word)) for end in range(start + 1, len(word) + 1)}


# --- the demonstrator for real questions: it quotes what it was shown, and never answers from what it has not seen


FILMS = Corpus([
    Passage("kiss", "Kiss and Tell (film)", "Kiss and Tell is a film. It stars Shirley Temple as Corliss Archer."),
    Passage("temple", "Shirley Temple (actress)", "Shirley Temple was an actress. She was Chief of Protocol."),
    Passage("other", "Corliss", "Corliss is a film that nobody saw."),
    Passage("rome", "Rome", "Rome was made by Romulus."),
    Passage("romulus", "Romulus", "Romulus was born in Alba Longa."),
])  # fmt: skip


def demonstrated(question: Question) -> list[Move]:
    return moves_of(EvidenceAgent(FILMS), question, Bm25.over(FILMS), k=1)[0]


def test_it_reaches_the_second_passage_by_a_title_that_the_first_one_names() -> None:
    question = Question("q", "Who is the star of Kiss and Tell?", ("Chief of Protocol",), ("kiss", "temple"))
    first, second, last = demonstrated(question)
    assert first.queries == (" Who is the star of Kiss and Tell?",)
    assert "It stars Shirley Temple as Corliss Archer." in second.thought
    assert second.queries == (" Shirley Temple",)
    assert "She was Chief of Protocol." in last.thought
    assert last.answer == " Chief of Protocol"
    assert last.selected == ("kiss", "temple")


@pytest.mark.parametrize(
    "meta",
    [
        {"decomposition": [
            {"question": "Rome >> made by", "answer": "Romulus", "gold_id": "rome"},
            {"question": "Where was #1 born?", "answer": "Alba Longa", "gold_id": "romulus"},
        ]},
        {"path": [
            {"passage": "rome", "from": "Rome", "to": "Romulus", "written": "Romulus", "phrase": "made by",
             "back": False, "question": "What is the made by of Rome?"},
            {"passage": "romulus", "from": "Romulus", "to": "Alba Longa", "written": "Alba Longa", "phrase": "born",
             "back": False, "question": "What is the born of Romulus?"},
        ]},
    ],
)  # fmt: skip
def test_known_steps_are_searched_in_order_with_what_was_found(meta: dict[str, Json]) -> None:
    question = Question("q", "Where was the maker of the town born?", ("Alba Longa",), ("rome", "romulus"), meta=meta)
    first, second, last = demonstrated(question)
    assert "made by" in first.queries[0]
    assert "Romulus" in second.queries[0]
    assert "born" in second.queries[0]
    assert "Rome was made by Romulus." in second.thought
    assert last.answer == " Alba Longa"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Where is Corliss shown?", ("temple",)),  # no passage found names it
        ("Who is the star of Kiss and Tell?", ("kiss", "rome")),
        ("Who is the star of Kiss and Tell?", ()),
    ],
)
def test_what_it_was_not_shown_it_does_not_answer(text: str, gold: tuple[str, ...]) -> None:
    assert demonstrated(Question("q", text, ("Chief of Protocol",), gold))[-1].answer == f" {NOT_FOUND}"


def test_a_long_sentence_is_cut_around_what_it_should_say() -> None:
    long = Passage("p", "Long", f"{'word ' * 100}Romulus made it {'again ' * 100}.")
    cut = quotation(long, ["Romulus"])
    assert "Romulus made it" in cut
    assert len(cut) <= LONGEST_QUOTATION
    assert cut in " ".join(long.text.split())


def test_a_quotation_keeps_the_end_of_its_sentence() -> None:
    at_end = Passage("p", "End", f"{'word ' * 80}directed by Harold Young.")
    assert quotation(at_end, ["Harold Young"]).endswith("directed by Harold Young.")


def test_the_answer_is_one_that_the_passage_holds() -> None:
    question = Question("q", "Who made Rome?", ("Romulus the king", "Romulus"), ("rome",))
    assert demonstrated(question)[-1].answer == " Romulus"


# --- answers without a model: what is quoted, from where, and when nothing is


OFFICE = Corpus(
    [
        Passage(
            "hours",
            "Harbour office › Hours",
            "The office is closed on Sundays. From April on it\nopens at half past seven in the morning. Ring twice.",
            meta={"path": "notes/office.md"},
        ),
        Passage("fees", "Harbour office › Fees", "A berth costs 14 euros a night.", meta={"path": "a.pdf", "page": 3}),
        Passage("history", "", "# The old crane\n\nThe crane was built in 1871 by two brothers from Tarn."),
        Passage(
            "zh", "黑豹队", "黑豹队的防守只丢了308分。他们以24次拦截领先联盟。", meta={"url": "https://example.org/zh"}
        ),
    ]
)
OFFICE_INDEX = Bm25.over(OFFICE)


def ask(question: str) -> Trajectory:
    settings = settings_for("extract")
    return rollout(open_agent(settings), OFFICE_INDEX, [Question("q", question)], [0], limits_for(settings))[0]


@pytest.mark.parametrize(
    ("question", "words", "place"),
    [
        (
            "When does the office open in April?",
            "From April on it opens at half past seven in the morning.",  # which was wrapped
            "notes/office.md",
        ),
        ("What does a berth cost a night?", "A berth costs 14 euros a night.", "a.pdf#page=3"),
        ("When was the crane built?", "built in 1871", ""),
        ("黑豹队的防守丢了多少分？", "308分", "https://example.org/zh"),
        ("丢", "308分", "https://example.org/zh"),
    ],
)
def test_an_answer_is_quoted_from_a_passage_that_is_its_source(question: str, words: str, place: str) -> None:
    run = ask(question)
    assert words in (run.answer or "")
    sources = sources_of(run)
    assert [source.place for source in sources] == [place]
    assert all(holds(source, run.answer or "") for source in sources)


def test_a_decomposed_letter_cuts_no_word_of_a_query() -> None:
    heron = Passage("heron", "Reiher", "Der Reiher fischt mit Vo\u0308geln aus Ko\u0308ln.")
    searches, _ = play(Question("q", "Wo lebt der Reiher?"), RuleAgent(), over=Bm25.over(Corpus([heron])))
    assert [search.query for search in searches[1:]] == ["Wo lebt der V\u00f6geln K\u00f6ln"]


@pytest.mark.parametrize(
    "question",
    [
        "Who won the 1998 world cup?",
        "What is the capital of Australia?",
        "How long does it take to boil an egg?",
        "黑洞是什么？",
        "zzz yyy",
        "?",
    ],
)
def test_a_question_that_the_documents_do_not_answer_gets_no_source(question: str) -> None:
    run = ask(question)
    assert (run.declined, run.valid, run.answer, reply_of(run)) == (True, True, None, NOT_FOUND)
    assert sources_of(run) == []


def test_an_answer_that_no_passage_holds_is_not_said_to_stand_in_one() -> None:
    run = ask("What does a berth cost a night?")
    made_up = replace(run, answer="15 euros")
    assert not any(holds(passage, "15 euros") for passage in sources_of(made_up))
    assert not holds(OFFICE.by_id("fees"), "4 euros")  # within another number
    assert not holds(OFFICE.by_id("fees"), "…")


WORDS = st.text(alphabet="abA 1.!\n|黑。", max_size=80)


@given(WORDS, st.lists(st.tuples(WORDS, WORDS), max_size=4))
def test_whatever_is_found_the_answer_is_a_stretch_of_it_or_a_refusal(
    question: str, rows: list[tuple[str, str]]
) -> None:
    passage, answer = extract(question, [Passage(str(row), *texts) for row, texts in enumerate(rows)])
    assert 0 < len(answer) <= LONGEST
    assert answer == NOT_FOUND if passage is None else answer in " ".join(passage.text.split())
