"""FlashRAG's and Search-R1's published files, in miniature: the same folders, fields and ids, other contents."""

import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from tests.data.test_imports import search_r1_rows, write_lines

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import load_settings
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.imports._sources import SplitAssignment
from coseek.data.imports.recipe import FOLDER, DataRecipe, recipe_names

SEVEN = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
FILES = {"nq": "train dev test", "triviaqa": "train dev test", "popqa": "test", "hotpotqa": "train dev",
         "2wikimultihopqa": "train dev", "musique": "train dev", "bamboogle": "test",
         "ms_marco": "train dev"}  # fmt: skip
ROWS = {"train": 200, "dev": 20, "test": 30}


def corpus_line(number: int) -> JsonObject:
    return {"id": str(number), "contents": f'"Page {number}"\nText {number}.'}


def write_sets(folder: Path, sets: dict[str, str], counts: dict[str, int]) -> None:
    """Write the files of FlashRAG's sets, with a number of rows for each split."""
    more: JsonObject = {"golden_answers": ["x"], "metadata": {"type": "bridge", "context": ["long"] * 200}}
    for name, split in ((name, split) for name, splits in sets.items() for split in splits.split()):
        numbers = range(counts[split])
        rows = ({"id": f"{split}_{n}", "question": f"{name} {split} {n}?", **more} for n in numbers)
        write_lines(folder / name / f"{split}.jsonl", *rows)


@pytest.fixture
def flashrag(tmp_path: Path) -> Path:
    folder = tmp_path / "FlashRAG_datasets"
    write_sets(folder, FILES, ROWS)
    write_lines(folder / "wiki-18.jsonl", *map(corpus_line, range(5)))
    return folder


def by_dataset(folder: Path, split: str) -> dict[str | None, int]:
    return dict(Counter(question.dataset for question in Dataset(folder).questions(split)))


@pytest.mark.medium
def test_one_command_deals_the_papers_training_and_test_sets_from_flashrag(flashrag: Path, tmp_path: Path) -> None:
    sets = ("triviaqa", "hotpotqa")
    (flashrag / "ms_marco" / "train.jsonl").write_text("broken, and of no set that is named")
    made = import_data("flashrag", [flashrag], tmp_path / "out", deal=SplitAssignment(sets, SEVEN, 0.05))
    assert (made.passages, made.questions) == (5, {"train": 380, "dev": 20, "test": 30 * 4 + 20 * 3})
    assert by_dataset(tmp_path / "out", "train") == dict.fromkeys(sets, 190)
    assert by_dataset(tmp_path / "out", "dev") == dict.fromkeys(sets, 10)
    tests = by_dataset(tmp_path / "out", "test")
    assert tests == {name: 30 if "test" in FILES[name] else 20 for name in SEVEN}
    first = Dataset(tmp_path / "out").questions("train")[0]
    assert first.id.startswith(f"{sets[0]}/train_") and first.kind == "bridge"
    assert first.meta["metadata"] == {"type": "bridge"}  # not the question's own ten passages
    files = json.loads((tmp_path / "out" / "source.json").read_text())["files"]
    assert "nq/test.jsonl" in files and "ms_marco/train.jsonl" not in files


def test_one_command_deals_search_r1s_two_files(tmp_path: Path) -> None:
    sources = [
        write_lines(tmp_path / "wiki-18.jsonl", *map(corpus_line, range(5))),
        write_lines(tmp_path / "train.jsonl", *search_r1_rows("train", ROWS["train"], "nq", "hotpotqa")),
        write_lines(tmp_path / "test.jsonl", *search_r1_rows("test", ROWS["test"], *SEVEN)),
    ]
    made = import_data("search-r1", sources, tmp_path / "out", deal=SplitAssignment(("nq", "hotpotqa"), SEVEN))
    assert made.questions == {"train": 396, "dev": 4, "test": 210}
    assert by_dataset(tmp_path / "out", "train") == {"nq": 198, "hotpotqa": 198}
    assert by_dataset(tmp_path / "out", "test") == dict.fromkeys(SEVEN, 30)


def test_a_set_that_is_not_there_or_has_no_such_questions_is_named(flashrag: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="hold no train questions of 'hotpot'; did you mean 'hotpotqa'"):
        import_data("flashrag", [flashrag], tmp_path / "out", deal=SplitAssignment(("nq", "hotpot", "hotpotqa"), ()))
    with pytest.raises(SettingError, match="hold no train questions of 'popqa'"):
        import_data("flashrag", [flashrag], tmp_path / "out", deal=SplitAssignment(("popqa",), ()))
    with pytest.raises(SettingError, match="leave --split and --shares out"):
        import_data("flashrag", [flashrag], tmp_path / "out", split="test", deal=SplitAssignment(("nq",), ()))
    with pytest.raises(SettingError, match="share from 0 to below 1"):
        SplitAssignment(("nq",), (), 1.0)
    assert not (tmp_path / "out").exists()


def test_an_id_that_stands_twice_in_a_streamed_corpus_is_refused(flashrag: Path, tmp_path: Path) -> None:
    write_lines(flashrag / "wiki-18.jsonl", *map(corpus_line, [*range(3000), 1234]))
    with pytest.raises(DataError, match="has the id '1234' twice"):
        import_data("flashrag", [flashrag], tmp_path / "out", deal=SplitAssignment(("nq",), ()))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_import_does_not_hold_its_corpus(tmp_path: Path) -> None:
    text = "word " * 400
    rows: list[Json] = [{"id": str(n), "contents": f'"Page {n}"\n{text}'} for n in range(3_000)]
    write_lines(tmp_path / "corpus.jsonl", *rows)
    write_lines(tmp_path / "q.jsonl", {"id": "q", "question": "?", "golden_answers": ["x"], "gold_ids": ["77"]})
    del rows
    tracemalloc.start()
    try:
        import_data("flashrag", [tmp_path / "corpus.jsonl", tmp_path / "q.jsonl"], tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_200_000  # bytes, of a corpus of 6,000,000
    written = CorpusFile.scan(tmp_path / "out" / "corpus.jsonl")
    assert len(written) == 3_000 and written.by_id("77").title == "Page 77"


def test_the_deal_is_typed_as_one_command(flashrag: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "import", "flashrag", str(flashrag), "--out", str(tmp_path / "out")]
    assert main([*words, "--train", "nq, hotpotqa", "--test", ",".join(SEVEN), "--dev-share", "0.1"]) == 0
    assert "5 passages, 360 train questions, 40 dev questions, 180 test questions" in capsys.readouterr().out
    assert main([*words, "--train", ""]) == 2
    assert "name the data sets of --train or --test" in capsys.readouterr().err


# --- data recipes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sets = {"nq": "train test", "hotpotqa": "train dev", "2wikimultihopqa": "train dev", "musique": "dev",
            "web_questions": "train test", "ms_marco": "train"}  # fmt: skip
    write_sets(tmp_path / "flashrag", sets, dict.fromkeys(ROWS, 100))
    for name in ("hotpotqa", "2wikimultihopqa"):
        listed: list[Json] = [{"question_id": f"other-{n}", "question_text": f"{name} dev {n}?"} for n in (3, 5)]
        write_lines(tmp_path / "processed_data" / name / "test_subsampled.jsonl", *listed)
    write_lines(tmp_path / "wiki-18.jsonl", *map(corpus_line, range(3)))
    return tmp_path


def own(folder: Path, name: str) -> Path:
    """A shipped recipe over a corpus file that is not packed."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").replace("wiki-18.jsonl.gz]", "wiki-18.jsonl]")
    path = folder / "own.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_qagents_sets_come_from_one_command_with_the_listed_questions_alone(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "import", "recipe", str(own(here, "qagent")), "--out", "out"]) == 0
    data = Dataset(here / "out")
    tested = Counter(question.dataset for question in data.questions("test"))
    assert tested == {"nq": 100, "hotpotqa": 2, "2wikimultihopqa": 2, "musique": 100, "web_questions": 100}
    assert (len(data.questions("train")), len(data.questions("dev")), len(data.corpus)) == (198, 2, 3)
    assert "hotpotqa test 2 and 500" in capsys.readouterr().out  # the paper's number is not reached, and said
    card = json.loads((here / "out" / "source.json").read_text())
    assert "nq/train.jsonl" in card["files"] and "ms_marco/train.jsonl" not in card["files"]


def test_three_benchmarks_of_other_columns_become_one_test_split(here: Path) -> None:
    write_lines(here / "flashrag/bamboogle/test.jsonl", {"id": "test_0", "question": "A?", "golden_answers": ["x"]})
    (here / "gpqa_diamond.csv").write_text(
        "Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3\nB?,1,2,3,4\n"
    )
    (here / "simple_qa_test_set.csv").write_text(
        "metadata,problem,answer\n" + "".join(f"{{}},C {n}?,y\n" for n in range(300))
    )
    import_data("recipe", [Path("engines-512")], here / "out")
    questions = Dataset(here / "out").questions("test")
    assert Counter(question.dataset for question in questions) == {"bamboogle": 1, "gpqa": 1, "simpleqa": 189}
    assert next(question for question in questions if question.dataset == "gpqa").search_text == "B?"


def test_a_missing_file_is_told_with_the_way_to_it_before_anything_is_read(here: Path) -> None:
    with pytest.raises(DataError, match=r"no wiki-18\.jsonl\.gz in the working.*hf download PeterJinGo"):
        import_data("recipe", [Path("search-r1")], here / "out")


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_can_be_read(name: str) -> None:
    assert load_settings(DataRecipe, FOLDER / f"{name}.yaml").deal.test


def test_a_limit_on_questions_holds_for_dealt_ones_too(tmp_path: Path) -> None:
    files = [
        write_lines(tmp_path / f"{split}.jsonl", *search_r1_rows(split, ROWS[split], "nq"))
        for split in ("train", "test")
    ]
    made = import_data(
        "questions", files, tmp_path / "out", deal=SplitAssignment(("nq",), ("nq",), 0), settings={"most": 20}
    )
    assert sum(made.questions.values()) == 20 and min(made.questions.values()) > 0
