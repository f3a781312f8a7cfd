"""Benchmarks without a corpus, in the shapes that their publishers give them; all texts are made up."""

import csv
import json
from pathlib import Path

import pytest

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset, QuestionFilter
from coseek.data.imports import import_data
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question

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


def test_simpleqa_and_webquestions_are_read_by_their_own_columns(tmp_path: Path) -> None:
    simple = {"metadata": "{'topic': 'Birds', 'urls': ['https://herons.example']}", "problem": "Who fed them?"}
    write_csv(tmp_path / "simple.csv", simple | {"answer": "Mira Vale"}, simple | {"problem": "Who?", "answer": "1958"})
    import_data("questions", [tmp_path / "simple.csv"], tmp_path / "s", settings={"dataset": "simpleqa", "most": 1})
    (drawn,) = Dataset(tmp_path / "s").questions("test")
    assert drawn.answers in (("Mira Vale",), ("1958",)) and drawn.dataset == "simpleqa"
    web = {"url": "http://herons.example", "question": "where do herons nest?", "answers": ["Velora", "Orbo"]}
    (tmp_path / "web.jsonl").write_text(json.dumps(web))
    import_data("questions", [tmp_path / "web.jsonl"], tmp_path / "w", split="webq")
    assert Dataset(tmp_path / "w").questions("webq")[0].answers == ("Velora", "Orbo")


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


def asked(*names: str) -> list[Question]:
    return [Question(f"hotpotqa/dev_{number}", f"{name}?") for number, name in enumerate(names)]


def test_a_list_of_ids_or_of_ircot_s_rows_chooses_these_questions(tmp_path: Path) -> None:
    questions, path = asked("Who", "Where", "When"), tmp_path / "ids"
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
        QuestionFilter(ids=str(tmp_path / "ids")).apply(asked("Who"))
    with pytest.raises((DataError, SettingError), match="nothing"):
        QuestionFilter(ids=str(tmp_path / "nothing")).apply(asked("Who"))
