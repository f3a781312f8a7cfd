from pathlib import Path

import pytest

from coseek.data.dataset import Dataset
from coseek.data.imports import import_data, parse_shares
from coseek.traces.failed_searches import is_failure, is_nothing

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_name", "sources", "passages", "questions"),
    [
        ("hotpotqa", ["hotpotqa-pool500"], 4_937, 500),
        ("hotpotqa", ["hipporag-train100"], 994, 100),
        ("musique", ["hipporag-train100"], 1_890, 100),
        ("2wiki", ["2wiki-train500"], 3_112, 500),
        ("qed", ["qed"], 1_343, 1_355),
        ("squad", ["xquad/xquad.en.json.gz"], 240, 1_190),
        ("squad", ["xquad/xquad.zh.json.gz"], 240, 1_190),
    ],
)
def test_a_real_set_has_its_passages_and_questions_and_every_gold_passage(
    tmp_path: Path, format_name: str, sources: list[str], passages: int, questions: int
) -> None:
    made = import_data(format_name, [SHARED / source for source in sources], tmp_path / "out")
    assert (made.passages, made.questions) == (passages, {"test": questions})
    data = Dataset(tmp_path / "out")
    assert all(question.gold_ids and question.answers for question in data.questions("test"))
    shown = [text for passage in data.corpus for text in (passage.text, f"{passage.title}\n{passage.text}")]
    assert not [text for text in shown if is_failure(text, ()) or is_nothing(text, ())]  # in the logs of a program


@pytest.mark.slow
def test_2wiki_counts_its_own_passages_and_the_distractors(tmp_path: Path) -> None:
    sources = [SHARED / "2wiki-train500", SHARED / "hipporag-2wiki-corpus"]
    made = import_data("2wiki", sources, tmp_path / "out", shares=parse_shares("train=.7,dev=.1,test=.2"))
    assert (made.notes["own passages"], made.notes["distractors"]) == (3_112, 6_119)
    assert made.passages == 3_112 + 6_119 - made.notes["distractors that are own passages"]
    assert sum(made.questions.values()) == 500
