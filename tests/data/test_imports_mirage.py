"""MIRAGE in files of its real shape: options are asked and never searched, and only a judge says what is right."""

import json
from pathlib import Path

import pytest
from tests.agents.playing import WIDE, Shelf, typist

from coseek.agents.drivers import Agent, rollout
from coseek.agents.protocol import load_protocol
from coseek.core.errors import DataError
from coseek.core.files import Json, write_jsonl
from coseek.data.dataset import Dataset
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.imports import import_data
from coseek.data.imports._sources import SplitAssignment
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.score import judged
from coseek.measure.searched import search_questions
from coseek.retrieval.query import Query
from coseek.rewards.grades import Grades, is_right, left_to_judge
from coseek.rewards.parts import gbr, gen_acc

FOUR = {"A": "Iron", "B": "Vitamin B12", "C": "Folate", "D": "None of these"}
SETS: dict[str, tuple[dict[str, str], list[str]]] = {
    "medqa": (FOUR, [f"{number:04d}" for number in range(5)]),
    "medmcqa": (FOUR, [f"{number}a5c-77d1-4d2e" for number in range(5)]),
    "pubmedqa": ({"A": "yes", "B": "no", "C": "maybe"}, [f"1747700{number}" for number in range(5)]),
    "bioasq": ({"A": "yes", "B": "no"}, [f"5be44bef133db5eb7800000{number}" for number in range(5)]),
    "mmlu": (FOUR, [f"anatomy-{number:03d}" for number in range(4)] + ["0000"]),
}


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows: dict[str, Json] = {
        name: {
            ident: {"question": f"{name} {ident}: which?", "options": {**options}, "answer": "B"} for ident in idents
        }
        for name, (options, idents) in SETS.items()
    }
    benchmark, chunks, wiki = tmp_path / "benchmark.json", tmp_path / "textbooks", tmp_path / "wiki.jsonl"
    benchmark.write_text(json.dumps(rows, indent=4), encoding="utf-8")
    chunks.mkdir()
    body = "Lack of cobalamin."
    whole = {"title": "Blood", "content": body, "contents": f"Blood. {body}"}
    write_jsonl(chunks / "Blood.jsonl", ({"id": f"Blood_{number}", **whole} for number in range(2)))
    write_jsonl(wiki, [{"id": "7", "contents": '"Anaemia"\nA decrease of red cells.'}])
    return [benchmark, chunks, wiki]


def test_five_sets_are_imported_over_the_chunks_of_several_corpora(sources: list[Path], tmp_path: Path) -> None:
    made = import_data("mirage", sources, tmp_path / "out")
    assert (made.passages, made.questions) == (3, {"test": 25})
    data = Dataset(tmp_path / "out")
    assert data.corpus.by_id("Blood_0") == Passage("Blood_0", "Blood", "Lack of cobalamin.")
    assert (data.corpus.by_id("7").title, data.corpus.by_id("7").text) == ("Anaemia", "A decrease of red cells.")
    questions = {question.id: question for question in data.questions("test")}
    assert {question.dataset for question in questions.values()} == set(SETS)
    first = questions["medqa/0000"]
    assert first.question == ("medqa 0000: which?\nOptions:\nA. Iron\nB. Vitamin B12\nC. Folate\nD. None of these")
    assert first.searched == "medqa 0000: which?" and first.judge_only
    assert first.answers == ("Vitamin B12", "B. Vitamin B12")
    assert questions["bioasq/5be44bef133db5eb78000004"].answers == ("no", "B. no")
    assert Question.from_json(first.to_json()) == first
    dealt = import_data("mirage", sources, tmp_path / "two", deal=SplitAssignment(test=("mmlu", "pubmedqa")))
    assert dealt.questions == {"test": 10}


def test_an_answer_that_is_no_option_is_refused_with_its_place(sources: list[Path], tmp_path: Path) -> None:
    text = sources[0].read_text(encoding="utf-8")
    sources[0].write_text(text.replace('"answer": "B"', '"answer": "E"', 1), encoding="utf-8")
    with pytest.raises(DataError, match=r"medqa, 0000: the answer 'E' is none of the options A, B, C, D"):
        import_data("mirage", sources, tmp_path / "out")


ASKED = Question(
    "medqa/1", "Which lack?\nOptions:\nA. Iron\nB. Cobalamin", ("Iron", "A. Iron"), meta={"judge_only": True},
    search_text="Which lack?",
)  # fmt: skip


@pytest.mark.parametrize("name", ["s3", "ircot", "rag"])
def test_the_options_are_read_and_not_searched(name: str) -> None:
    shelf = Shelf(Corpus([Passage("p1", "Iron", "text")]), {"Which lack?": ["p1"]})
    protocol = load_protocol(name, "default")
    turn = "<search_complete>True</search_complete>" if name == "s3" else "<answer>Iron</answer>"
    (run,) = rollout(Agent(protocol, typist(protocol, turn)), shelf, [ASKED], [7], WIDE)
    assert "B. Cobalamin" in run.segments[0].text
    assert [search.query for search in run.searches] == ["Which lack?"]
    assert shelf.asked == [Query("Which lack?", "Which lack?")]


def test_naive_rag_searches_without_the_options() -> None:
    shelf = Shelf(Corpus([Passage("p1", "Iron", "text")]), {"Which lack?": ["p1"]})
    ((_, found),) = next(search_questions(shelf, [ASKED], 1))
    assert [passage.id for passage in found.passages or ()] == ["p1"] and "Cobalamin" not in str(shelf.asked)


def test_only_the_judge_says_what_is_right_about_options() -> None:
    response = "Not A. Iron, but B."  # holds the gold answer
    wrong = Verdict(ASKED.id, response, False)
    assert left_to_judge("gen_acc", ASKED, response) and left_to_judge("gen_acc_span", ASKED, response)
    assert not is_right("gen_acc", ASKED, response, Grades(verdicts={response: wrong}))
    assert judged(ASKED, response, {(ASKED.id, response): wrong})["gen_acc"] == 0
    assert "gen_acc" not in judged(ASKED, response, {})
    said = GeneratedAnswer(ASKED.id, 0, "", response)
    grades = Grades(said, GeneratedAnswer(ASKED.id, 0, "", "B"), {response: wrong, "B": Verdict(ASKED.id, "B", False)})
    run = Trajectory(ASKED, "s3", (), (), StopReason.COMPLETE, valid=True)
    assert gbr.to_judge(run, gbr.GbrSettings(), grades) == [response, "B"]
    assert gbr.reward(run, gbr.GbrSettings(), grades).value == 0
    assert gen_acc.reward(run, gen_acc.GenAccSettings(), grades).value == 0
