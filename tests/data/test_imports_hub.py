"""The layouts of published files: those of the Hugging Face Hub, tables, and prompts, from JSON lines and parquet."""

import json
from itertools import chain
from pathlib import Path

import pytest
from tests.data.test_imports import HOTPOT, MUSIQUE, parquet, questions_of, write, write_lines

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.answers import read_answers
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question, load_questions

CORPUS: JsonObject = {"id": "0", "contents": '"Orlen"\nOrlen is a town.'}
ROW: JsonObject = HOTPOT[0] if isinstance(HOTPOT[0], dict) else {}
COLUMNS: JsonObject = {
    "title": ["Ada", "Bob", "Cy"],
    "sentences": [["Ada is a film.", " It has songs."], ["Bob is a man."], ["Cy is not."]],
}
FACTS: JsonObject = {"title": ["Ada", "Bob", "Ada"], "sent_id": [0, 1, 1]}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["hotpotqa", "2wiki"])
def test_columns_and_json_in_texts_are_the_authors_own_layout(tmp_path: Path, name: str, packed: bool) -> None:
    own = questions_of(name, [write(tmp_path / "own.json", [ROW])], tmp_path / "own")
    columns: JsonObject = {"context": COLUMNS, "supporting_facts": FACTS}
    as_text: JsonObject = {key: json.dumps(ROW[key]) for key in columns}
    for number, lists in enumerate((columns, as_text)):
        row: JsonObject = {"id": ROW["_id"], **{key: ROW[key] for key in ("question", "answer", "type")}, **lists}
        file = parquet(tmp_path / "q.parquet", row) if packed else write_lines(tmp_path / "q.jsonl", row)
        assert questions_of(name, [file], tmp_path / f"out-{number}") == own
        assert [*Dataset(tmp_path / f"out-{number}").corpus] == [*Dataset(tmp_path / "own").corpus]


def test_evidence_of_2wiki_in_columns_is_a_gold_path(tmp_path: Path) -> None:
    own: JsonObject = {**ROW, "evidences": [["Ada", "spouse", "Bob"], ["Bob", "country", "Elm"]]}
    columns: JsonObject = {"fact": ["Ada", "Bob"], "relation": ["spouse", "country"], "entity": ["Bob", "Elm"]}
    (question,) = questions_of("2wiki", [write(tmp_path / "q.json", [own])], tmp_path / "own")
    assert question.meta["path"]
    shapes: list[Json] = [columns, json.dumps(columns)]
    for number, evidences in enumerate(shapes):
        file = write(tmp_path / "q.json", [{**own, "evidences": evidences}])
        assert questions_of("2wiki", [file], tmp_path / f"{number}") == [question]
    with pytest.raises(DataError, match="item 1: 'evidences' must be a list"):
        import_data("2wiki", [write(tmp_path / "q.json", [{**own, "evidences": "Ada, spouse, Bob"}])], tmp_path / "bad")


def test_columns_of_unequal_length_are_refused(tmp_path: Path) -> None:
    row: JsonObject = {**ROW, "supporting_facts": {"title": ["Ada"], "sent_id": [0, 1]}}
    with pytest.raises(DataError, match="item 1: 'supporting_facts' must be a list of"):
        import_data("hotpotqa", [write(tmp_path / "q.json", [row])], tmp_path / "out")


def test_musique_in_columns_is_the_same_question(tmp_path: Path) -> None:
    row = json.loads(json.dumps(MUSIQUE[0]))
    for name in ("paragraphs", "question_decomposition"):
        row[name] = {key: [each[key] for each in row[name]] for key in row[name][0]}
    own = questions_of("musique", [write(tmp_path / "own.json", MUSIQUE)], tmp_path / "own")
    assert questions_of("musique", [write_lines(tmp_path / "q.jsonl", row)], tmp_path / "out") == own


@pytest.mark.parametrize("packed", [False, True])
def test_squad_has_a_row_for_each_question_on_the_hub(tmp_path: Path, packed: bool) -> None:
    row: JsonObject = {"id": "s1", "title": "Old_Orlen", "context": "On the Tave.", "question": "Which river?"}
    rows: list[JsonObject] = [
        {**row, "answers": {"text": ["Tave", "Tave"], "answer_start": [7, 7]}},
        {**row, "id": "s2", "answers": {"text": [], "answer_start": []}},
        {**row, "id": "s3", "answers": None},
    ]
    file = parquet(tmp_path / "q.parquet", *rows) if packed else write_lines(tmp_path / "q.jsonl", *rows)
    made = import_data("squad", [file], tmp_path / "out")
    first, test_row = Dataset(tmp_path / "out").questions("test")
    assert (first.answers, first.gold_ids, test_row.id, test_row.answers) == (("Tave",), ("Old Orlen",), "s3", ())
    assert made.notes["unanswerable questions left out"] == 1


def test_merged_parquet_has_null_for_what_the_other_set_calls_otherwise(tmp_path: Path) -> None:
    prompt: JsonObject = {"role": "user", "content": "Question: Who?"}
    rows: list[JsonObject] = [
        {"id": "a", "question": "Who?", "golden_answers": ["x"], "data_source": "nq"},
        {"prompt": [prompt], "reward_model": {"ground_truth": {"target": ["x"]}}, "data_source": "hotpotqa",
         "extra_info": {"split": "train", "index": 3}},
        {"id": "7", "contents": '"Ada"\nA film.'},
    ]  # fmt: skip
    questions = questions_of("flashrag", [parquet(tmp_path / "all.parquet", *rows)], tmp_path / "out")
    assert [(question.id, question.question, question.answers) for question in questions] == [
        ("nq/a", "Who?", ("x",)), ("hotpotqa/train_3", "Who?", ("x",)),
    ]  # fmt: skip
    assert Dataset(tmp_path / "out").corpus.by_id("7").text == "A film."


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("Use tags. Question: who won?\n", "who won?"),
        ("Question: a?\nAnswer: b\nQuestion: In 'Question: Sp', who won?\nAnswer:", "In 'Question: Sp', who won?"),
        ("Question: where was mira born? Remember to use <answer> tags.", "where was mira born?"),
        ("Question: Who sang Who Are You? in 1978", "Who sang Who Are You? in 1978"),
        ("Question:\nwho won", "who won"),
        ("Question: Is it A? Or B?", "Is it A? Or B?"),
        ("Question: Who wrote Are You There God? It's Me", "Who wrote Are You There God? It's Me"),
    ],
)  # fmt: skip
def test_a_question_in_a_prompt_ends_before_its_instructions(tmp_path: Path, text: str, question: str) -> None:
    prompt: list[Json] = [
        {"role": "system", "content": "Question: none"},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "<think> Question: what now"},
    ]
    sources = [write_lines(tmp_path / "c.jsonl", CORPUS), write_lines(tmp_path / "q.jsonl", {"prompt": prompt})]
    assert questions_of("search-r1", sources, tmp_path / "out")[0].question == question


def test_a_prompt_may_begin_with_a_bracket_and_an_interval_is_one_answer(tmp_path: Path) -> None:
    prompt, golds = "[INST] Use tags. Question: {} [/INST]", ["[2, 5]", "[2, 5)", '["2", "5"]']
    rows: list[Json] = [
        {"prompt": prompt.format(gold), "reward_model": {"ground_truth": gold}, "extra_info": {"index": number}}
        for number, gold in enumerate(golds)
    ]
    questions, _ = imported(tmp_path, *rows, format_name="search-r1")
    assert [question.answers for question in questions] == [("[2, 5]",), ("[2, 5)",), ("2", "5")]


def test_tables_with_quotes_and_without_ids_are_read(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text('id\ttext\ttitle\n1\t"He said ""no""\tthen."\tAda\n', encoding="utf-8")
    (tmp_path / "simple.csv").write_text('metadata,problem,answer\n,"Who, then?",Bob\n,Why?,\n', encoding="utf-8")
    first, second = questions_of("flashrag", [tmp_path / "psgs.tsv", tmp_path / "simple.csv"], tmp_path / "out")
    assert Dataset(tmp_path / "out").corpus.by_id("1").text == 'He said "no"\tthen.'
    assert (first.question, first.answers, second.answers) == ("Who, then?", ("Bob",), ()) and first.id != second.id


# --- gold answers: texts alone become golds, whatever a file holds; what can match nothing is counted


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
    assert [question.answers for question in questions] == [("Orlen",)] * 3 + [("2",)]
    assert {question.question for question in questions} == {"Which? Choices: Veld | Orlen | 2"}
    assert {question.searched for question in questions} == {"Which?"}
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


def test_golds_that_nothing_can_match_and_questions_without_text_are_counted(tmp_path: Path) -> None:
    golds: list[Json] = [["Orlen"], [""], [], ["The"], None]
    rows: list[Json] = [{"id": str(n), "question": "?", "golden_answers": gold} for n, gold in enumerate(golds)]
    questions, notes = imported(tmp_path, *rows, {"id": "e", "question": " ", "golden_answers": ["x"]})
    assert [question.answers for question in questions] == [("Orlen",), (), (), ("The",), ()]
    assert sorted(notes.values()) == [1, 1, 1, 3]  # no text, an empty gold, an unmatched one; three without golds


def test_rows_of_a_test_split_have_no_gold_and_not_a_wrong_one(tmp_path: Path) -> None:
    rows = json.loads(json.dumps([HOTPOT[0], MUSIQUE[0]]))
    for row, name in ((rows[0], "hotpotqa"), (rows[0], "2wiki"), (rows[1], "musique")):
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
    (question,) = questions_of("hotpotqa", [write(tmp_path / "q.json", [row])], tmp_path / "out")
    gold = [Dataset(tmp_path / "out").corpus.by_id(ident).text for ident in question.gold_ids]
    assert gold == ["Right. End.", "Bob is a man. Two."]  # and a missing sentence is no text `None`
    row["supporting_facts"] = [["Ada", 2], ["Cyd", 0]]
    made = import_data("hotpotqa", [write(tmp_path / "q.json", [row])], tmp_path / "fullwiki")
    assert len(Dataset(tmp_path / "fullwiki").questions("test")[0].gold_ids) == 1
    assert [*chain(*made.named.values())] == [f"{tmp_path / 'q.json'}, item 1: Cyd"]
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
    assert questions_of("flashrag", [corpus, file], tmp_path / "out")[0].answers == ("Orlen, Vesta",)
