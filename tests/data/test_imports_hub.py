"""The layouts of published files: those of the Hugging Face Hub, tables, and prompts, from JSON lines and parquet."""

import json
from pathlib import Path

import pytest
from tests.data.test_imports import HOTPOT, MUSIQUE, write, write_lines

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question

CORPUS: JsonObject = {"id": "0", "contents": '"Orlen"\nOrlen is a town.'}
ROW: JsonObject = HOTPOT[0] if isinstance(HOTPOT[0], dict) else {}
COLUMNS: JsonObject = {
    "title": ["Ada", "Bob", "Cy"],
    "sentences": [["Ada is a film.", " It has songs."], ["Bob is a man."], ["Cy is not."]],
}
FACTS: JsonObject = {"title": ["Ada", "Bob", "Ada"], "sent_id": [0, 1, 1]}


def parquet(path: Path, *rows: JsonObject) -> Path:
    pyarrow = pytest.importorskip("pyarrow", reason="comes with coseek[encoder]")
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


def questions(out: Path) -> list[Question]:
    return Dataset(out).questions("test")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["hotpotqa", "2wiki"])
def test_columns_and_json_in_texts_are_the_authors_own_layout(tmp_path: Path, name: str, packed: bool) -> None:
    import_data(name, [write(tmp_path / "own.json", [ROW])], tmp_path / "own")
    columns: JsonObject = {"context": COLUMNS, "supporting_facts": FACTS}
    as_text: JsonObject = {key: json.dumps(ROW[key]) for key in columns}
    for number, lists in enumerate((columns, as_text)):
        row: JsonObject = {"id": ROW["_id"], **{key: ROW[key] for key in ("question", "answer", "type")}, **lists}
        file = parquet(tmp_path / "q.parquet", row) if packed else write_lines(tmp_path / "q.jsonl", row)
        import_data(name, [file], tmp_path / f"out-{number}")
        assert questions(tmp_path / f"out-{number}") == questions(tmp_path / "own")
        assert [*Dataset(tmp_path / f"out-{number}").corpus] == [*Dataset(tmp_path / "own").corpus]


def test_evidence_of_2wiki_in_columns_is_a_gold_path(tmp_path: Path) -> None:
    own: JsonObject = {**ROW, "evidences": [["Ada", "spouse", "Bob"], ["Bob", "country", "Elm"]]}
    columns: JsonObject = {"fact": ["Ada", "Bob"], "relation": ["spouse", "country"], "entity": ["Bob", "Elm"]}
    for number, row in enumerate((own, {**own, "evidences": columns}, {**own, "evidences": json.dumps(columns)})):
        import_data("2wiki", [write(tmp_path / "q.json", [row])], tmp_path / f"{number}")
        assert questions(tmp_path / f"{number}") == questions(tmp_path / "0")
    assert questions(tmp_path / "0")[0].meta["path"]
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
    import_data("musique", [write(tmp_path / "own.json", MUSIQUE)], tmp_path / "own")
    import_data("musique", [write_lines(tmp_path / "q.jsonl", row)], tmp_path / "out")
    assert questions(tmp_path / "out") == questions(tmp_path / "own")


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
    first, test_row = questions(tmp_path / "out")
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
    import_data("flashrag", [parquet(tmp_path / "all.parquet", *rows)], tmp_path / "out")
    assert [(one.id, one.question, one.answers) for one in questions(tmp_path / "out")] == [
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
    ],
)  # fmt: skip
def test_a_question_in_a_prompt_ends_before_its_instructions(tmp_path: Path, text: str, question: str) -> None:
    prompt: list[Json] = [
        {"role": "system", "content": "Question: none"},
        {"role": "user", "content": text},
        {"role": "assistant", "content": "<think> Question: what now"},
    ]
    sources = [write_lines(tmp_path / "c.jsonl", CORPUS), write_lines(tmp_path / "q.jsonl", {"prompt": prompt})]
    import_data("search-r1", sources, tmp_path / "out")
    assert questions(tmp_path / "out")[0].question == question


def test_tables_with_quotes_and_without_ids_are_read(tmp_path: Path) -> None:
    (tmp_path / "psgs.tsv").write_text('id\ttext\ttitle\n1\t"He said ""no""\tthen."\tAda\n', encoding="utf-8")
    (tmp_path / "simple.csv").write_text('metadata,problem,answer\n,"Who, then?",Bob\n,Why?,\n', encoding="utf-8")
    import_data("flashrag", [tmp_path / "psgs.tsv", tmp_path / "simple.csv"], tmp_path / "out")
    assert Dataset(tmp_path / "out").corpus.by_id("1").text == 'He said "no"\tthen.'
    first, second = questions(tmp_path / "out")
    assert (first.question, first.answers, second.answers) == ("Who, then?", ("Bob",), ()) and first.id != second.id
