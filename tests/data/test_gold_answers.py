"""Gold answers: texts alone become golds, whatever a file holds; what can match nothing is counted."""

import json
from pathlib import Path

import pytest
from tests.data.test_imports import HOTPOT, MUSIQUE, write, write_lines

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.answers import read_answers
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question, load_questions

CORPUS: JsonObject = {"id": "0", "contents": '"Orlen"\nOrlen is a town.'}


def imported(tmp_path: Path, *rows: Json, format_name: str = "flashrag") -> tuple[list[Question], dict[str, int]]:
    sources = [write_lines(tmp_path / "corpus.jsonl", CORPUS), write_lines(tmp_path / "q.jsonl", *rows)]
    made = import_data(format_name, sources, tmp_path / "out")
    return Dataset(tmp_path / "out").questions("test"), made.notes


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        (None, ()), ("Orlen", ("Orlen",)), (["a", "b"], ("a", "b")), ([["a", "b"]], ("a", "b")),
        ([["a"], "b"], ("a", "b")), (1921, ("1921",)), ([3.5, 2], ("3.5", "2")), ([], ()),
    ],
)  # fmt: skip
def test_texts_numbers_and_lists_of_aliases_are_answers(value: Json, answers: tuple[str, ...]) -> None:
    assert read_answers(value, "answers") == answers
    assert Question.from_json({"id": "q", "question": "?", "answers": value}).answers == answers


@pytest.mark.parametrize("value", [[None], True, [True], {"text": "a"}, [{"text": "a"}], [[["a"]]], [["a", None]]])
def test_what_is_no_text_never_becomes_a_gold_and_is_named_with_its_line(tmp_path: Path, value: Json) -> None:
    row: JsonObject = {"id": "q", "question": "?", "golden_answers": value}
    with pytest.raises(DataError, match=r"q\.jsonl, line 2: 'golden_answers' holds .*a gold answer is a text"):
        imported(tmp_path, {**row, "golden_answers": ["fine"]}, row)
    verl: JsonObject = {"prompt": "Question: who?", "reward_model": {"ground_truth": {"target": value}}}
    with pytest.raises(DataError, match=r"q\.jsonl, line 1, .*'target' holds "):
        imported(tmp_path, verl, format_name="search-r1")
    with pytest.raises(DataError, match=r"o\.jsonl, line 1: question 'q': 'golden_answers' holds "):
        load_questions(write_lines(tmp_path / "o.jsonl", row))


def test_positions_of_choices_are_the_chosen_texts_and_the_agent_reads_the_choices(tmp_path: Path) -> None:
    row: JsonObject = {"id": "q", "question": "Which?", "choices": ["Veld", "Orlen", "2"]}
    golds: list[Json] = [1, 1.0, "Orlen", "2"]
    rows: list[Json] = [{**row, "id": str(number), "golden_answers": [gold]} for number, gold in enumerate(golds)]
    questions, notes = imported(tmp_path, *rows)
    assert [one.answers for one in questions] == [("Orlen",)] * 3 + [("2",)]
    assert {one.question for one in questions} == {"Which? Choices: Veld | Orlen | 2"}
    assert questions[0].meta["choices"] == ["Veld", "Orlen", "2"] and list(notes.values()) == [4]
    for wrong in (3, -1, "Karst", "D", True):
        with pytest.raises(DataError, match=r"q\.jsonl, line 1: .*(position|holds true)"):
            imported(tmp_path, {**row, "golden_answers": [wrong]})


@pytest.mark.parametrize(
    "row",
    [
        {"choices": {"A": "Veld", "B": "Orlen"}, "answerKey": "B"},
        {"choices": {"text": ["Veld", "Orlen"], "label": ["1", "2"]}, "answerKey": "2"},
        {"choices": [{"label": "A", "text": "Veld"}, {"label": "B", "text": "Orlen"}], "answer": "B"},
        {"options": ["Veld", "Orlen"], "answer": "B", "answer_index": 1},
        {"options": {"A": "Veld", "B": "Orlen"}, "answer": "Orlen", "answer_idx": "B"},
        {"choices": ["Veld", "Orlen"], "golden_answers": [], "answer": "1"},
    ],
)
def test_labels_and_options_are_the_chosen_texts_too(tmp_path: Path, row: JsonObject) -> None:
    (question,), _ = imported(tmp_path, {"id": "q", "question": "Which?", **row})
    assert (question.answers, question.question) == (("Orlen",), "Which? Choices: Veld | Orlen")


def test_a_number_is_a_position_and_a_text_that_means_two_choices_is_refused(tmp_path: Path) -> None:
    row: JsonObject = {"id": "q", "question": "How many?", "choices": ["1", "2", "0"]}
    assert imported(tmp_path, {**row, "answer": 2})[0][0].answers == ("0",)
    with pytest.raises(DataError, match=r"q\.jsonl, line 1: the gold answer '2' is several choices"):
        imported(tmp_path, {**row, "answer": "2"})


@pytest.mark.parametrize("written", ["['Orlen', 'Orlen town']", "['Orlen' 'Orlen town']", ' ["it\'s"  "b"]'])
def test_a_list_that_python_printed_is_no_gold(tmp_path: Path, written: str) -> None:
    with pytest.raises(DataError, match=r"q\.jsonl, line 1: 'answer' is a list as Python prints it; write it as JSON"):
        imported(tmp_path, {"id": "q", "question": "?", "answer": written})
    (question,), _ = imported(tmp_path, {"id": "q", "question": "?", "answers": [], "answer": ' ["Orlen"]'})
    assert question.answers == ("Orlen",)


def test_aliases_beside_an_answer_are_golds(tmp_path: Path) -> None:
    row: JsonObject = {"id": "q", "question": "?", "answer": "Orlen", "answer_aliases": ["Orlen town"]}
    assert imported(tmp_path, row)[0][0].answers == ("Orlen", "Orlen town")


def test_golds_that_nothing_can_match_and_questions_without_text_are_counted(tmp_path: Path) -> None:
    golds: list[Json] = [["Orlen"], [""], [], ["The"], None]
    rows: list[Json] = [{"id": str(n), "question": "?", "golden_answers": gold} for n, gold in enumerate(golds)]
    questions, notes = imported(tmp_path, *rows, {"id": "e", "question": " ", "golden_answers": ["x"]})
    assert [one.answers for one in questions] == [("Orlen",), (), (), ("The",), ()]
    assert sorted(notes.values()) == [1, 1, 1, 3]  # no text, an empty gold, an unmatched one; three without golds


def test_rows_of_a_test_split_have_no_gold_and_not_a_wrong_one(tmp_path: Path) -> None:
    asked = json.loads(json.dumps([HOTPOT[0], MUSIQUE[0]]))
    for row, name in ((asked[0], "hotpotqa"), (asked[0], "2wiki"), (asked[1], "musique")):
        for lost in ("answer", "answer_aliases", "supporting_facts", "question_decomposition"):
            row.pop(lost, None)
        for paragraph in row.get("paragraphs", []):
            paragraph.pop("is_supporting", None)
        made = import_data(name, [write(tmp_path / f"{name}.json", [row])], tmp_path / name)
        (question,) = Dataset(tmp_path / name).questions("test")
        assert (question.answers, question.gold_ids) == ((), ()) and 1 in made.notes.values()


def test_of_two_own_passages_of_one_title_the_one_with_the_supporting_sentence_is_gold(tmp_path: Path) -> None:
    row = json.loads(json.dumps(HOTPOT[0]))
    row["context"] = [["Ada", ["Right.", None, "End."]], ["Bob", ["Bob is a man.", "Two."]], ["Ada", ["Wrong."]]]
    row["supporting_facts"] = [["Ada", 2], ["Bob", 0]]
    import_data("hotpotqa", [write(tmp_path / "q.json", [row])], tmp_path / "out")
    data = Dataset(tmp_path / "out")
    gold = [data.corpus.by_id(one).text for one in data.questions("test")[0].gold_ids]
    assert gold == ["Right. End.", "Bob is a man. Two."]  # and a missing sentence is no text `None`
    row["supporting_facts"] = [["Ada", 0]]
    made = import_data("2wiki", [write(tmp_path / "q.json", [row])], tmp_path / "both")
    (question,) = Dataset(tmp_path / "both").questions("test")
    assert (len(question.gold_ids), question.hops, made.notes["distractors"]) == (2, 1, 0)  # one title is one hop
    assert "supporting titles that name several own passages, of which all are gold" in made.notes


def test_questions_that_have_gold_passages_alone_are_said_to_have_no_answer(tmp_path: Path) -> None:
    row: JsonObject = {"id": "q", "context": "Orlen is a town.", "question": "?", "answer_text": "Orlen"}
    made = import_data("squad", [write_lines(tmp_path / "s.jsonl", row)], tmp_path / "out")
    assert list(made.notes.values()) == [1]


def test_a_table_with_an_open_quote_or_a_name_twice_is_refused_and_semicolons_are_read(tmp_path: Path) -> None:
    corpus = write_lines(tmp_path / "corpus.jsonl", CORPUS)
    file = tmp_path / "q.tsv"
    for text in ('question\tanswer\n"Open?\tx\nNext?\ty\n', 'question\tanswer\n"A" is what?\tx\n', "id\tid\n1\t2\n"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"q\.tsv.*(mend that line|twice)"):
            import_data("flashrag", [corpus, file], tmp_path / "out")
    file = tmp_path / "q.csv"
    file.write_text("id;question;answer\n1;Where?;Orlen, Vesta\n")
    import_data("flashrag", [corpus, file], tmp_path / "out")
    assert Dataset(tmp_path / "out").questions("test")[0].answers == ("Orlen, Vesta",)
