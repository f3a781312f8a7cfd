"""Answers without a model: what is quoted, from where, and when nothing is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.agents.actions import NOT_FOUND
from coseek.agents.drivers import rollout
from coseek.agents.factory import limits_for, open_agent, settings_for
from coseek.agents.scripted.extract import LONGEST, extract
from coseek.agents.sources import holds, reply_of, sources_of
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.retrieval.retrievers.bm25 import Bm25

CORPUS = Corpus(
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
BM25 = Bm25.over(CORPUS)


def ask(question: str) -> Trajectory:
    settings = settings_for("extract")
    return rollout(open_agent(settings), BM25, [Question("q", question)], [0], limits_for(settings))[0]


@pytest.mark.parametrize(
    ("question", "words", "place"),
    [
        ("When does the office open in April?", "opens at half past seven", "notes/office.md"),
        ("What does a berth cost a night?", "A berth costs 14 euros a night.", "a.pdf#page=3"),
        ("When was the crane built?", "built in 1871", ""),
        ("黑豹队的防守丢了多少分？", "308分", "https://example.org/zh"),
    ],
)
def test_an_answer_is_quoted_from_a_passage_that_is_its_source(question: str, words: str, place: str) -> None:
    run = ask(question)
    assert words in (run.answer or "")
    sources = sources_of(run)
    assert [source.place for source in sources] == [place]
    assert all(holds(source, run.answer or "") for source in sources)


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
    assert not holds(CORPUS.by_id("fees"), "4 euros")  # within another number
    assert not holds(CORPUS.by_id("fees"), "…")


def test_a_line_that_was_wrapped_does_not_cut_the_answer_short() -> None:
    assert ask("When does the office open in April?").answer == (
        "From April on it opens at half past seven in the morning."
    )


TEXT = st.text(alphabet="abA 1.!\n|黑。", max_size=80)


@given(TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=4))
def test_whatever_is_found_the_answer_is_a_stretch_of_it_or_a_refusal(
    question: str, rows: list[tuple[str, str]]
) -> None:
    passage, answer = extract(question, [Passage(str(row), *texts) for row, texts in enumerate(rows)])
    assert 0 < len(answer) <= LONGEST
    assert answer == NOT_FOUND if passage is None else answer in " ".join(passage.text.split())
