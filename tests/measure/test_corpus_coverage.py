import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most

from coseek.cli.main import main
from coseek.data.answers import cover_match
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.measure.corpus_coverage import AnswerFinder, answer_words, corpus_coverage

PASSAGES = [
    Passage("ada", "Ada Lovelace", "She was born in London, in 1815."),
    Passage("bob", "Bob", "The founder of the party: yes."),
]

TEXTS = st.text(alphabet="ab c-'.AN", max_size=30)


@settings(max_examples=at_most(300))
@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=6))
def test_an_answer_is_found_exactly_where_cover_em_finds_it(texts: list[str], answers: list[str]) -> None:
    finder = AnswerFinder(tuple(answer_words(answer)) for answer in answers)
    for text in texts:
        finder.read(text)
    for answer in answers:
        is_found = tuple(answer_words(answer)) in finder.found
        assert is_found == any(cover_match(text, [answer]) for text in texts)


def reach(*answers: str, gold: tuple[str, ...] = ()) -> tuple[bool | None, tuple[str, ...]]:
    (row,) = corpus_coverage(PASSAGES, {"test": [Question("q", "?", answers, gold)]}).rows
    return row.answer, row.missing_gold


def test_an_answer_counts_as_whole_words_of_title_and_text() -> None:
    assert reach("Ada Lovelace")[0] is True
    assert reach("born in London")[0] is True
    assert reach("art")[0] is False  # party
    assert reach("London founder")[0] is False  # of two passages
    assert reach("Nobody", "london")[0] is True


def test_yes_no_and_numbers_are_not_called_unreachable() -> None:
    assert reach("no")[0] is reach("1815")[0] is reach("1,999")[0] is reach("The")[0] is reach()[0] is None
    assert reach("no", "Nobody")[0] is False
    assert reach("Nobody", "1815")[0] is True  # another form of a decidable answer


@pytest.mark.parametrize(
    ("text", "reached", "absent"),
    [
        ("愛達出生於倫敦（Ogród Saski）。", ("倫敦", "Ogród Saski"), ("巴黎",)),
        ("दिन में सूरज निकलता है। İstanbul büyük; छ\u093f", ("दिन", "istanbul", "छि"), ("दान",)),  # another vowel sign
        ("倫\u0301敦", ("倫敦",), ()),
        ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", ("เมืองหลวง",), ("เมืองท่า",)),
    ],
)
def test_words_of_other_scripts_are_reached(text: str, reached: tuple[str, ...], absent: tuple[str, ...]) -> None:
    questions = [Question("q", "?", (answer,)) for answer in (*reached, *absent)]
    rows = corpus_coverage([Passage("p", "", text)], {"t": questions}).rows
    assert [row.answer for row in rows] == [True] * len(reached) + [False] * len(absent)


def test_gold_passages_that_are_not_there_are_named() -> None:
    assert reach("x", gold=("ada", "eve", "bob"))[1] == ("eve",)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    Corpus(PASSAGES).save(tmp_path / "d" / "corpus.jsonl")
    questions = [
        Question("nq/1", "?", ("London",), meta={"data_source": "nq"}),
        Question("nq/2", "?", ("Paris",), meta={"data_source": "nq"}),
        Question("hotpotqa/1", "?", ("yes",), ("ada", "eve"), meta={"data_source": "hotpotqa"}),
        Question("hotpotqa/2", "?", ("Bob",), ("ada", "bob"), meta={"data_source": "hotpotqa"}),
    ]
    save_questions(tmp_path / "d" / "questions.test.jsonl", questions)
    return tmp_path / "d"


def test_an_audit_says_by_data_set_what_the_corpus_lacks(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "corpus", str(data), "--out", str(data.parent / "lost.jsonl"), "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert list(groups) == ["all", "hotpotqa", "nq"]
    assert (groups["nq"]["answer_absent"], groups["nq"]["em_lost"], groups["nq"]["recall_lost"]) == (1, 0.5, None)
    hotpot = groups["hotpotqa"]
    assert (hotpot["gold_missing"], hotpot["recall_lost"], hotpot["undecidable"], hotpot["em_lost"]) == (1, 0.25, 1, 0)
    lost = [json.loads(line) for line in (data.parent / "lost.jsonl").read_text().splitlines()]
    assert [(row["id"], row["missing_gold_ids"], row["answer_in_corpus"]) for row in lost] == [
        ("nq/2", [], False), ("hotpotqa/1", ["eve"], None),
    ]  # fmt: skip
    assert main(["audit", "corpus", str(data)]) == 0
    assert "1 of 2" in capsys.readouterr().out
