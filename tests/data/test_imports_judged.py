"""Data sets that come with judgements: BEIR folders and BrowseComp-Plus, in tiny files of our own."""

import gzip
import json
from pathlib import Path

import pytest

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Passage


def lines(path: Path, *values: Json) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def text(path: Path, *rows: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(row + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    folder = tmp_path / "scifact"
    lines(
        folder / "corpus.jsonl",
        {"_id": "4983", "title": "Ada", "text": "Born 1815.", "metadata": {}},
        {"_id": "57", "title": "", "text": "No title."},
        {"_id": "58", "text": "None at all."},
    )
    lines(
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


def test_a_packed_beir_folder_is_read_too(beir: Path, tmp_path: Path) -> None:
    plain = beir / "corpus.jsonl"
    (beir / "corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert import_data("beir", [beir], tmp_path / "out").passages == 3


def test_what_a_beir_folder_lacks_is_named(beir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(SettingError, match=r"splits of its own here \(test, train\)"):
        import_data("beir", [beir], out, split="test")
    with pytest.raises(DataError, match="give one BEIR folder"):
        import_data("beir", [beir / "corpus.jsonl"], out)
    text(beir / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore", "9\t57\t1")
    with pytest.raises(DataError, match=r"dev\.tsv judges the query '9'"):
        import_data("beir", [beir], out)
    text(beir / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore", "0\t99\t1")
    with pytest.raises(DataError, match="gold passage '99'"):
        import_data("beir", [beir], out)
    text(beir / "qrels" / "dev.tsv", "query-id\tcorpus-id\tscore", "0\t57\tvery")
    with pytest.raises(DataError, match="line 2: the grade 'very'"):
        import_data("beir", [beir], out)
    (beir / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"holds no queries\.jsonl"):
        import_data("beir", [beir], out)
    assert not out.exists()


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
    lines(folder / "data" / "browsecomp_plus_decrypted.jsonl", QUERY)
    lines(
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


def test_what_browsecomp_plus_cannot_be_is_refused(browsecomp: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no BrowseComp-Plus files"):
        import_data("browsecomp-plus", [tmp_path / "empty"], tmp_path / "out")
    with pytest.raises(DataError, match="there is no file"):
        import_data("browsecomp-plus", [tmp_path / "nowhere.jsonl"], tmp_path / "out")
    lines(browsecomp / "corpus" / "part-1.jsonl", {**DOC, "text": "another"})
    with pytest.raises(DataError, match=r"part-1\.jsonl, line 1: the page '58102' has another text"):
        import_data("browsecomp-plus", [browsecomp], tmp_path / "out")
    text(browsecomp / "topics-qrels" / "queries.tsv", "no tab")
    with pytest.raises(DataError, match=r"queries\.tsv, line 1"):
        import_data("browsecomp-plus", [browsecomp / "topics-qrels" / "queries.tsv"], tmp_path / "out")
