import json
from dataclasses import replace

import pytest
from tests.measure.samples import MIRA, ORBO, QUESTION, found, run

from coseek.data.grade_cache import GeneratedAnswer
from coseek.data.passage import Passage
from coseek.measure.combination_gain import CombinationGain
from coseek.measure.component_scores import component_run
from coseek.measure.score import ScoredRun

QUESTIONS = [replace(QUESTION, id=f"q{n}") for n in range(8)]


def scored(name: str, right: int, *passages: Passage) -> ScoredRun:
    """A run whose passages let the generator answer the first `right` questions."""
    runs = [run(found("x", *passages), question=question) for question in QUESTIONS]
    answers = {
        (question.id, 0): GeneratedAnswer(
            question.id, 0, "c", "Velora" if n < right else "Zun", passage_ids=tuple(p.id for p in passages)
        )
        for n, question in enumerate(QUESTIONS)
    }
    return component_run(name, runs, answers)


def gain() -> CombinationGain:
    return CombinationGain(
        "em",
        {1: scored("k = 1", 1, ORBO), 2: scored("k = 2", 2, ORBO, Passage("o", "O", "o"))},
        scored("matched", 2, ORBO, Passage("o", "O", "o")),
        scored("agent", 7, ORBO, MIRA),
        [question.id for question in QUESTIONS],
    )


def test_the_agents_lead_is_paired_with_every_point_of_the_curve() -> None:
    table = gain().table()
    assert [row[0] for row in table.rows] == ["k = 1", "k = 2", "matched", "agent"]
    assert [row[2].partition(" ")[0] for row in table.rows] == ["0.125", "0.250", "0.250", "0.875"]
    assert [row[-1].partition(" ")[0] for row in table.rows] == ["0.750", "0.625", "0.625", "–"]
    assert [row[3].partition(" ")[0] for row in table.rows] == ["1.0", "2.0", "2.0", "2.0"]


def test_the_json_says_the_gain_at_equal_passages() -> None:
    tree = json.loads(json.dumps(gain().to_json(), allow_nan=False))
    assert tree["gain_at_equal_passages"]["mean"] == pytest.approx(0.625)
    assert tree["gain_at_equal_passages"]["mcnemar"] == pytest.approx(0.0625)
    assert [point["run"] for point in tree["points"]] == ["k = 1", "k = 2", "matched", "agent"]


@pytest.mark.slow
def test_the_plot_has_the_curve_and_the_agent() -> None:
    assert "naive RAG" in gain().plot() and "agent" in gain().plot()
