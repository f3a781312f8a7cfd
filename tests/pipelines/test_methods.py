"""The table of methods: gains by hops are of questions, whatever the number of seeds."""

from pathlib import Path

import bench.methods
import pytest
from bench.methods import gains_by_hops

from coseek.data.question import Question
from coseek.measure.score import QuestionScores, ScoredRun


def test_a_question_counts_once_however_many_seeds_and_in_each_of_both_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds share their questions: counted as independent ones they would narrow the interval."""
    after = {"seed-0": 1.0, "seed-1": 0.0}

    def scored(training: Path, name: str, folder: Path) -> ScoredRun:
        em = after[training.name] if name == "after" else 0.0
        asked = [Question(f"q{number}", "?", ("x",), hops=number % 4 + 1) for number in range(8)]
        return ScoredRun(name, {one.id: QuestionScores(one, {"em": em}, 1, 0) for one in asked}, {})

    monkeypatch.setattr(bench.methods, "scored", scored)
    monkeypatch.setattr(bench.methods, "load_recipe", Path)
    monkeypatch.setattr(bench.methods, "AgentTraining", lambda recipe, folder: folder)
    found = gains_by_hops([Path("seed-0"), Path("seed-1")], "em")
    assert [gain.difference.mean for gain in found.values()] == [0.5] * 4
    assert [gain.difference.n for gain in found.values()] == [4] * 4
