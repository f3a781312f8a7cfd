"""Data sets that come with judgements: BEIR folders and BrowseComp-Plus, in tiny files of our own."""

import json
from itertools import chain
from pathlib import Path

import pytest
from tests.data.test_imports import write_lines

from coseek.core.files import Json, JsonObject
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.measure.corpus_coverage import corpus_coverage
from coseek.measure.rankings import Metric
from coseek.measure.retrieval import recall_at, run_recall, searched_ids
from coseek.measure.searched import RetrievalMeasure, SearchedQuestion, of_run_file, search_questions
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
    passages: list[Json] = [{"_id": one, "text": f"heron {one}"} for one in ("a", "b", "c")]
    write_lines(folder / "corpus.jsonl", *passages)
    write_lines(folder / "queries.jsonl", {"_id": "a", "text": "heron a"}, {"_id": "c", "text": "heron c"})
    text(folder / "qrels" / "test.tsv", '"query-id"\t"corpus-id"\t"score"', '"a"\t"b"\t"1.0"', "c\tc\t1")
    import_data("beir", [folder], tmp_path / "out")
    data = Dataset(tmp_path / "out")
    first, second = data.questions("test")
    assert (first.own_passage, second.own_passage) == ("a", None)  # the judge of the second calls its own relevant
    (found,) = search_questions(Bm25.over(data.corpus), [first, second], 2)
    assert set(found[0][1].ids) == {"b", "c"} and found[1][1].ids[0] == "c"  # at full depth without the own one
    ((_, logged),) = of_run_file({"a": [("a", 2.0), ("b", 1.0)]}, [first])
    assert logged.ids == ("b",)
    search = Search("heron a", tuple(Hit(data.corpus.by_id(one), 1.0) for one in ("a", "b")))
    run = Trajectory(first, "search-r1", (), (search,), StopReason.ANSWERED)
    assert (recall_at(run, 1), run_recall(run, 1), searched_ids(run)) == (1.0, 1.0, [["b"]])


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


def test_queries_alone_are_questions_without_answers(browsecomp: Path, tmp_path: Path) -> None:
    (browsecomp / "data" / "browsecomp_plus_decrypted.jsonl").unlink()
    import_data("browsecomp-plus", [browsecomp], tmp_path / "out")
    (question,) = Dataset(tmp_path / "out").questions("test")
    assert (question.id, question.answers, question.gold_ids) == ("769", (), ("58102", "9"))
