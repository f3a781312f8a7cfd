"""Co-training over seeds: a question counts once, whatever the number of seeds."""

import re
from pathlib import Path
from typing import cast

import pytest
from bench.rounds import METRICS, Course, main, tables_of

from coseek.data.question import Question
from coseek.measure.score import QuestionScores
from coseek.pipelines.together.pairs import Pair


class Seed:
    """Agent N over retriever N answers the first N + `more` of four questions."""

    class pairs:
        beside = "bm25"

    def __init__(self, more: int) -> None:
        self.more = more

    def questions(self, pair: Pair) -> dict[str, QuestionScores]:
        right = pair.agent + self.more + (0 if pair.retriever is None else pair.retriever)
        found = {}
        for number in range(4):
            metrics = dict.fromkeys(METRICS, float(number < right))
            found[f"q{number}"] = QuestionScores(Question(f"q{number}", "?", ("x",), hops=1), metrics, 1, 0)
        return found


def test_rounds_are_means_over_seeds_and_a_step_is_paired_question_by_question() -> None:
    along, grid, steps = tables_of([cast(Course, Seed(0)), cast(Course, Seed(1))], [0, 1], 1)
    assert "| 1 | 0.500, 0.750 | 0.625 |" in along and "| 0 | 0.000, 0.250 | 0.125 |" in along
    assert "| agent 1 | 0.375 | 0.375 | 0.625 |" in grid
    assert "| agent 1, retriever 0 − agent 0, retriever 0 | 0.250 [" in steps and "| +0.250, +0.250 |" in steps


def test_no_co_training_of_so_many_rounds_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "seed-0").mkdir()
    (tmp_path / "seed-0" / "table.json").write_text('{"rounds": 2}')
    with pytest.raises(SystemExit, match=re.escape(f"{tmp_path} has no co-training of 3 rounds; leave --show out")):
        main(["--show", "--out", str(tmp_path)])
