"""Gold paths of questions: as they were written, and nothing of what others call a path."""

import pytest

from coseek.core.files import Json
from coseek.data.gold_path import PathStep, gold_path
from coseek.data.question import Question

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
