"""Data sets that come with judgements: BEIR folders and BrowseComp-Plus, in tiny files of our own."""

import csv
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from tests.data.test_imports import questions_of, write_lines

from coseek.agents.search_turns import TurnId
from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset, QuestionFilter
from coseek.data.imports import import_data
from coseek.data.imports._sources import NO_TEXT
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.pool import PoolSource, make_pool
from coseek.data.question import Question, twins
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.measure.corpus_coverage import corpus_coverage
from coseek.measure.rankings import Metric
from coseek.measure.retrieval import recall_at, run_recall, searched_ids
from coseek.measure.searched import RetrievalMeasure, SearchedQuestion, of_run_file, search_questions
from coseek.pipelines.labelling import LoggedSearch
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.bm25 import Bm25


def text(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "scifact"
    write_lines(
        folder / "corpus.jsonl",
        {"_id": "4983", "title": "Ada", "text": "Born 1815.", "metadata": {}},
        {"_id": "57", "title": "", "text": "No title."},
        {"_id": "58", "text": "None at all."},
    )
    write_lines(
        folder / "queries.jsonl", {"_id": "0", "text": "When?"}, {"_id": "1", "text": "Who?"}, {"_id": 2, "text": "?"}
    )
    text(folder / "qrels" / "train.tsv", "query-id\tcorpus-id\tscore", "1\t57\t1")
    text(folder / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "0\t57\t1", "0\t4983\t2", "0\t58\t0")
    return folder


def test_a_beir_folder_keeps_its_splits_and_grades(beir: Path, tmp_path: Path) -> None:
    made = import_data("beir", [beir], tmp_path / "out")
    assert (made.passages, made.questions) == (3, {"test": 1, "train": 1})
    assert made.notes == {"queries that no split judges": 1}
    dataset = Dataset(tmp_path / "out")
    (question,) = dataset.questions("test")
    assert (question.id, question.question, question.gold_ids) == ("0", "When?", ("57", "4983"))
    assert question.meta["relevance"] == {"57": 1, "4983": 2, "58": 0}
    assert dataset.corpus.by_id("4983") == Passage("4983", "Ada", "Born 1815.")
    assert dataset.corpus.by_id("58").title == ""


def test_judgements_of_what_is_not_there_are_named_and_cost_only_themselves(beir: Path, tmp_path: Path) -> None:
    text(beir / "qrels" / "test.tsv", "query-id\tcorpus-id\tscore", "0\t57\t1", "0\t99\t1", "ghost\t57\t1")
    made = import_data("beir", [beir], tmp_path / "out")
    assert made.questions == {"test": 1, "train": 1}
    card = json.loads((tmp_path / "out" / "source.json").read_text())
    assert sorted(chain(*card["named"].values())) == ["0: 99", "ghost"]
    (question,) = Dataset(tmp_path / "out").questions("test")
    assert question.gold_ids == ("57",) and question.meta["relevance"] == {"57": 1, "99": 1}
    dataset = Dataset(tmp_path / "out")
    (row,) = corpus_coverage(dataset.corpus, {"test": [question]}).unreachable
    assert row.missing_gold == ("99",)
    perfect = SearchedQuestion(("57",), (1.0,), None)
    assert RetrievalMeasure((Metric.named("recall"),)).judge(question, perfect) == {"recall": 0.5}


def test_a_query_that_is_a_passage_does_not_find_itself(tmp_path: Path) -> None:
    folder = tmp_path / "arguana"
    passages: list[Json] = [{"_id": ident, "text": f"heron {ident}"} for ident in ("a", "b", "c")]
    write_lines(folder / "corpus.jsonl", *passages)
    write_lines(folder / "queries.jsonl", {"_id": "a", "text": "heron a"}, {"_id": "c", "text": "heron c"})
    text(folder / "qrels" / "test.tsv", '"query-id"\t"corpus-id"\t"score"', '"a"\t"b"\t"1.0"', "c\tc\t1")
    import_data("beir", [folder], tmp_path / "out")
    data = Dataset(tmp_path / "out")
    first, second = data.questions("test")
    assert (first.own_passage, second.own_passage) == ("a", None)  # the judge of the second calls its own relevant
    (results,) = search_questions(Bm25.over(data.corpus), [first, second], 2)
    assert set(results[0][1].ids) == {"b", "c"} and results[1][1].ids[0] == "c"  # at full depth without the own one
    ((_, logged),) = of_run_file({"a": [("a", 2.0), ("b", 1.0)]}, [first])
    assert logged.ids == ("b",)
    search = Search("heron a", tuple(Hit(data.corpus.by_id(ident), 1.0) for ident in ("a", "b")))
    run = Trajectory(first, "search-r1", (), (search,), StopReason.ANSWERED)
    assert (recall_at(run, 1), run_recall(run, 1), searched_ids(run)) == (1.0, 1.0, [["b"]])

    make_pool([PoolSource("mine", "beir", (folder,))], tmp_path / "pool")
    pool = Dataset(tmp_path / "pool")
    pooled = {question.id: question.own_passage for split in pool.splits for question in pool.questions(split)}
    assert pooled == {"mine/a": "a", "mine/c": None}
    (twin, other) = twins({"test": [first, second]}, {"b"})["test"]
    assert (twin.id, twin.own_passage, other.own_passage) == ("a-unanswerable", "a", None)
    logged_search = LoggedSearch(TurnId("a", 0, 1), first, Query("heron"), ("b",)).question
    assert (logged_search.id, logged_search.own_passage) == ("a/0/1", "a")


PAGE = "---\ntitle: Ada\n---\nBorn 1815."
DOC: JsonObject = {"docid": "58102", "text": PAGE, "url": "http://localhost/ada"}
NEGATIVE: JsonObject = {"docid": "7", "text": "Nothing."}
QUERY: Json = {
    "query_id": "769",
    "query": "Which year?",
    "answer": "1815",
    "evidence_docs": [DOC, {"docid": "9", "text": "Ada."}],
    "gold_docs": [DOC],
    "negative_docs": [NEGATIVE],
}


@pytest.fixture
def browsecomp(tmp_path: Path) -> Path:
    folder = tmp_path / "BrowseComp-Plus"
    write_lines(folder / "data" / "browsecomp_plus_decrypted.jsonl", QUERY)
    write_lines(
        folder / "corpus" / "part-0.jsonl", DOC, NEGATIVE, {"docid": "9", "text": "Ada."}, {"docid": "8", "text": "."}
    )
    text(folder / "topics-qrels" / "qrel_evidence.txt", "769 Q0 58102 1", "769 Q0 9 1")
    text(folder / "topics-qrels" / "qrel_golds.txt", "769 Q0 58102 1")
    text(folder / "topics-qrels" / "queries.tsv", "769\tWhich year?")
    text(folder / "README.md", "not read")
    return folder


def test_a_browsecomp_plus_folder_gives_evidence_and_gold(browsecomp: Path, tmp_path: Path) -> None:
    made = import_data("browsecomp-plus", [browsecomp], tmp_path / "out")
    assert (made.passages, made.questions, made.notes) == (4, {"test": 1}, {})
    dataset = Dataset(tmp_path / "out")
    (question,) = dataset.questions("test")
    assert (question.question, question.answers) == ("Which year?", ("1815",))
    assert (question.gold_ids, question.meta) == (("58102", "9"), {"gold_docs": ["58102"]})
    assert dataset.corpus.by_id("58102") == Passage("58102", "", PAGE)


def test_the_decrypted_file_alone_brings_its_own_corpus_and_judgements(browsecomp: Path, tmp_path: Path) -> None:
    made = import_data("browsecomp-plus", [browsecomp / "data" / "browsecomp_plus_decrypted.jsonl"], tmp_path / "out")
    assert (made.passages, made.notes) == (3, {"questions whose own pages are the corpus": 1})
    (question,) = Dataset(tmp_path / "out").questions("test")
    assert (question.gold_ids, question.meta) == (("58102", "9"), {"gold_docs": ["58102"]})


# --- benchmarks without a corpus, in the shapes that their publishers give them; all texts are made up


GPQA = {"question": "Question", "answers": "Correct Answer", "dataset": "gpqa"}
CHOICES = ["Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"]


def write_csv(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def gpqa(path: Path, count: int = 1) -> Path:
    row = {"Pre-Revision Question": "Old?", "Correct Answer": "4", "Incorrect Answer 1": "1",
           "Incorrect Answer 2": "2", "Incorrect Answer 3": "3, or\nnone", "Record ID": "rec06"}  # fmt: skip
    return write_csv(path, *(row | {"Question": f"How many herons\nnest in {number}?"} for number in range(count)))


def test_the_choices_of_gpqa_stand_behind_the_question_in_an_order_that_does_not_tell(tmp_path: Path) -> None:
    made = import_data(
        "questions", [gpqa(tmp_path / "d.csv", 40)], tmp_path / "out", settings={**GPQA, "choices": CHOICES}
    )
    questions = Dataset(tmp_path / "out").questions("test")
    assert made.passages == 0 and len(questions) == 40 and not (tmp_path / "out" / "corpus.jsonl").exists()
    places = set()
    for question in questions:
        choices = question.meta["choices"]
        assert isinstance(choices, list) and sorted(map(str, choices)) == ["1", "2", "3, or\nnone", "4"]
        assert question.answers == ("4",) and question.dataset == "gpqa" and question.id.startswith("gpqa/")
        assert question.question.endswith(" | ".join(map(str, choices)))
        assert question.searched.endswith("?")
        places.add(choices.index("4"))
    assert places == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("columns", "answer"),
    [("AB", "B"), (("opa", "opb"), "B"), (("opa", "opb"), "opb"), (("opa", "opb"), "1"), (("opa", "opb"), "Orlen")],
)
def test_a_letter_a_column_or_a_position_is_the_text_of_its_choice(
    tmp_path: Path, columns: Sequence[str], answer: str
) -> None:
    row = {"question": "Which?", columns[0]: "Veld", columns[1]: "Orlen"}
    settings = {"choices": [*columns], "answers": "label"}
    table = write_csv(tmp_path / "a.csv", row | {"label": answer})
    (question,) = questions_of("questions", [table], tmp_path / "out", settings=settings)
    assert (question.answers, question.searched) == (("Orlen",), "Which?")
    table = write_csv(tmp_path / "b.csv", row | {"label": "E"})
    with pytest.raises(DataError, match="gold answer 'E' is neither a choice nor a label nor a position"):
        import_data("questions", [table], tmp_path / "out", settings=settings)


def test_rows_without_a_question_and_a_line_that_names_the_separator_refuse_no_table(tmp_path: Path) -> None:
    table = tmp_path / "excel.csv"
    table.write_text("sep=;\nquestion;answer\nWho, then?;Mira\n;\n;Orbo\n ;Velora\n")
    made = import_data("questions", [table], tmp_path / "out")
    assert [question.answers for question in Dataset(tmp_path / "out").questions("test")] == [("Mira",)]
    assert made.notes == {NO_TEXT: 2}


@pytest.mark.parametrize("name", ["q.ndjson", "q.json", "q.jsonl"])
def test_lines_of_json_are_read_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"question": "Who?", "answer": "Mira"}\n{"question": "Where?", "answer": "Orbo"}\n')
    assert import_data("questions", [tmp_path / name], tmp_path / "out").questions == {"test": 2}


def test_simpleqa_and_webquestions_are_read_by_their_own_columns(tmp_path: Path) -> None:
    simple = {"metadata": "{'topic': 'Birds', 'urls': ['https://herons.example']}", "problem": "Who fed them?"}
    write_csv(tmp_path / "simple.csv", simple | {"answer": "Mira Vale"}, simple | {"problem": "Who?", "answer": "1958"})
    named: dict[str, object] = {"dataset": "simpleqa", "most": 1}
    (drawn,) = questions_of("questions", [tmp_path / "simple.csv"], tmp_path / "s", settings=named)
    assert drawn.answers in (("Mira Vale",), ("1958",)) and drawn.dataset == "simpleqa"
    web = {"url": "http://herons.example", "question": "where do herons nest?", "answers": ["Velora", "Orbo"]}
    (tmp_path / "web.jsonl").write_text(json.dumps(web))
    assert questions_of("questions", [tmp_path / "web.jsonl"], tmp_path / "w")[0].answers == ("Velora", "Orbo")


def test_a_folder_keeps_its_corpus_and_its_other_splits(tmp_path: Path) -> None:
    out = tmp_path / "out"
    Corpus([Passage("p1", "Herons", "Herons nest.")]).save(tmp_path / "corpus.jsonl")
    (tmp_path / "train.jsonl").write_text(
        '{"id": "q", "question": "Who?", "golden_answers": ["A"], "gold_ids": ["p1"]}'
    )
    import_data("flashrag", [tmp_path / "corpus.jsonl", tmp_path / "train.jsonl"], out, split="train")
    command = ["data", "import", "questions", str(gpqa(tmp_path / "d.csv")), "question=Question", "--out", str(out)]
    assert main([*command, "answers=Correct Answer", "--split", "gpqa"]) == 0
    data = Dataset(out)
    assert data.splits == ["gpqa", "train"] and len(data.corpus) == 1 and len(data.questions("gpqa")) == 1


def test_a_column_that_is_not_there_is_named_beside_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'Question '; did you mean 'Question'"):
        import_data("questions", [gpqa(tmp_path / "d.csv")], tmp_path / "out", settings={"question": "Question "})


def test_golds_lie_in_several_columns_or_in_a_field_of_one(tmp_path: Path) -> None:
    row = {"question": "Who?", "answer": {"value": "Mira", "aliases": ["M. Vale", "Mira V."]}, "also": None}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    table = write_csv(tmp_path / "a.csv", {"question": "Who?", "answer": "Mira", "aliases": '["M. Vale", "Mira V."]'})
    columns = {tmp_path / "a.jsonl": ["answer.value", "answer.aliases", "also"], table: ["answer", "aliases"]}
    for file, answers in columns.items():
        (question,) = questions_of("questions", [file], tmp_path / file.suffix, settings={"answers": answers})
        assert question.answers == ("Mira", "M. Vale", "Mira V.")
    with pytest.raises(DataError, match="no column 'text'"):
        import_data("questions", [tmp_path / "a.jsonl"], tmp_path / "b", settings={"answers": "answer.text"})


@pytest.mark.parametrize("settings", [{}, {"answers": "answer"}])
def test_a_named_column_of_answers_keeps_their_aliases(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"question": "Who?", "answer": "Mira", "answer_aliases": ["M."]}))
    (question,) = questions_of("questions", [tmp_path / "a.jsonl"], tmp_path / "out", settings=settings)
    assert question.answers == ("Mira", "M.")


@pytest.mark.medium
def test_questions_beside_documents_lose_neither_their_report_nor_a_later_import(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("Herons nest in Velora.")
    (tmp_path / "notes" / "empty.md").touch()
    out, cards = tmp_path / "out", []
    for number in range(2):
        import_data("documents", [tmp_path / "notes"], out)
        import_data("questions", [gpqa(tmp_path / "d.csv")], out, split=f"s{number}", settings=GPQA)
        cards.append(json.loads((out / "source.json").read_text()))
        (tmp_path / "notes" / "a.md").write_text("Herons nest in Orbo.")
    assert [len(card["unread"]) for card in cards] == [1, 1]
    assert Dataset(out).splits == ["s0", "s1"] and cards[1]["questions"] == {"s0": 1, "s1": 1}


def questions_named(*names: str) -> list[Question]:
    return [Question(f"hotpotqa/dev_{number}", f"{name}?") for number, name in enumerate(names)]


def test_a_list_of_ids_or_of_ircot_s_rows_chooses_these_questions(tmp_path: Path) -> None:
    questions, path = questions_named("Who", "Where", "When"), tmp_path / "ids"
    for lines, chosen in [
        ("hotpotqa/dev_0\n\ndev_2\n", [0, 2]),
        ('{"question_id": "5a8b57f2", "question_text": "Where? "}\n', [1]),
        ('{"_id": "dev_1"}\ndev_1', [1]),
    ]:
        path.write_text(lines)
        picked = make_settings(QuestionFilter, {"ids": str(path)}).apply(questions)
        assert picked == [questions[number] for number in chosen]


def test_a_listed_question_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("dev_0\ndev_9\n")
    with pytest.raises(DataError, match="line 2: none of the questions is 'dev_9'"):
        QuestionFilter(ids=str(tmp_path / "ids")).apply(questions_named("Who"))
    with pytest.raises((DataError, SettingError), match="nothing"):
        QuestionFilter(ids=str(tmp_path / "nothing")).apply(questions_named("Who"))
