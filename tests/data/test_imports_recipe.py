"""Data recipes: the papers' sets from published files, in miniature."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.data.test_imports_published import corpus_line, write_lines

from coseek.cli.main import main
from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.core.settings import load_settings
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.imports.recipe import FOLDER, DataRecipe, recipe_names


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sets = {"nq": "train test", "hotpotqa": "train dev", "2wikimultihopqa": "train dev", "musique": "dev",
            "web_questions": "train test", "ms_marco": "train"}  # fmt: skip
    for name, splits in sets.items():
        for split in splits.split():
            rows: list[Json] = [
                {"id": f"{split}_{n}", "question": f"{name} {split} {n}?", "golden_answers": ["x"]} for n in range(100)
            ]
            write_lines(tmp_path / "flashrag" / name / f"{split}.jsonl", *rows)
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
    tested = Counter(one.dataset for one in data.questions("test"))
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
    assert Counter(one.dataset for one in questions) == {"bamboogle": 1, "gpqa": 1, "simpleqa": 189}
    assert next(one for one in questions if one.dataset == "gpqa").search_text == "B?"


def test_a_missing_file_is_told_with_the_way_to_it_before_anything_is_read(here: Path) -> None:
    with pytest.raises(DataError, match=r"no wiki-18\.jsonl\.gz in the working.*hf download PeterJinGo"):
        import_data("recipe", [Path("search-r1")], here / "out")


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_can_be_read(name: str) -> None:
    assert load_settings(DataRecipe, FOLDER / f"{name}.yaml").deal.test
