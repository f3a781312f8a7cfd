"""Gold paths of questions: as they were written, and nothing of what others call a path."""

import json
import tempfile
from pathlib import Path

import pytest

from coseek.core.files import Json
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import PathStep, Question, gold_path

STEP: dict[str, Json] = {
    "passage": "a", "from": "Dark Hunter", "to": "Galo ( singer )", "phrase": "with … as voice", "back": False,
    "question": "Dark Hunter is with whom as voice?",
}  # fmt: skip


def test_a_path_without_what_newer_ones_hold_is_read() -> None:
    (step,) = gold_path(Question("q", "?", meta={"path": [STEP]}))
    assert step == PathStep(
        "a", "Dark Hunter", "Galo ( singer )", "Galo ( singer )", "with … as voice", False, str(STEP["question"]), ""
    )
    (newer,) = gold_path(Question("q", "?", meta={"path": [{**STEP, "written": "Galo", "rest": "Galo is what?"}]}))
    assert (newer.written, newer.rest) == ("Galo", "Galo is what?")


@pytest.mark.parametrize("path", [None, "notes/a.md", ["a", "b"], [{"passage": "a"}], [STEP, None]])
def test_what_others_call_a_path_is_none(path: Json) -> None:
    assert gold_path(Question("q", "?", meta={"path": path})) == ()


def wiki(question: str, evidences: list[list[str]], **texts: str) -> Question:
    """A question of 2WikiMultihopQA whose gold passages are `texts`."""
    row: dict[str, Json] = {
        "_id": "q", "question": question, "answer": "x",
        "context": [[title.replace("_", " "), [text]] for title, text in texts.items()],
        "supporting_facts": [[title.replace("_", " "), 0] for title in texts],
        "evidences": [[*each] for each in evidences],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "2wiki.json")
        source.write_text(json.dumps([row]), encoding="utf-8")
        import_data("2wiki", [source], Path(folder, "out"))
        return Dataset(Path(folder, "out")).questions("test")[0]


def test_evidence_triples_are_a_path_and_names_are_spelt_as_they_are_read() -> None:
    first, last = gold_path(
        wiki(
            "Where was the director of THE SUN born?",
            [["The Sun", "director", "Ada Lovel"], ["Ada Lovel", "place of birth", "Bree"]],
            **{"The_Sun_(film)": "Made by ada lovel.", "Ada_Lovel": "Born in Bree."},
        )
    )
    assert (first.source, first.phrase, first.target, first.written) == (
        "THE SUN",
        "director",
        "Ada Lovel",
        "ada lovel",
    )
    assert (last.source, last.target) == ("Ada Lovel", "Bree")
    assert (first.question, first.passage) == ("What is the director of THE SUN?", "The Sun (film)")


def test_each_of_two_entities_is_followed_to_its_end() -> None:
    made = wiki(
        "Which film has the older director, Up or Down?",
        [["Up", "director", "A"], ["Down", "director", "B"], ["A", "born", "1900"], ["B", "born", "1901"],
         ["B", "born", "1902"]],
        Up="By A.", Down="By B.", A="In 1900.", B="In 1901.",
    )  # fmt: skip
    assert [(step.source, step.target) for step in gold_path(made)] == [
        ("Up", "A"), ("A", "1900"), ("Down", "B"), ("B", "1901"),
    ]  # fmt: skip


def test_all_facts_about_one_object_stand_behind_it() -> None:
    evidences = [["Up", "director", "A"], ["Down", "director", "B"], ["A", "born", "1900"], ["A", "country", "X"]]
    made = wiki("Which, Up or Down?", evidences, Up="By A.", Down="By B.", A="In X, 1900.")
    assert [step.target for step in gold_path(made)] == ["A", "1900", "X", "B"]


def test_an_evidence_about_another_passage_leaves_no_path() -> None:
    evidences = [["Up", "director", "A"], ["A", "born", "1900"], ["C", "born", "1901"]]
    assert gold_path(wiki("Who?", evidences, Up="By A.", A="In 1900.")) == ()


def test_facts_that_name_each_other_end() -> None:
    made = wiki("Who?", [["A", "spouse", "B"], ["B", "spouse", "A"]], A="Wed B.", B="Wed A.")
    assert [step.source for step in gold_path(made)] == ["A", "B"]
