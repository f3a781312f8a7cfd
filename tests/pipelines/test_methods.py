"""The table of methods: gains by hops are of questions, whatever the number of seeds."""

from pathlib import Path

import pytest
from bench.methods import DOCS, HOPS, Runs, beside_first, gain_of, main

from coseek.data.question import Question
from coseek.measure.score import QuestionScores


def runs(after: float) -> Runs:
    """Eight questions, two of each number of hops, on both sets."""
    asked = [Question(f"q{number}", "?", ("x",), hops=number % 4 + 1) for number in range(8)]
    return {
        run: {f"{name}/{one.id}": QuestionScores(one, {"em": em}, 1, 0) for one in asked for name in ("test", "unseen")}
        for run, em in (("before", 0.0), ("after", after))
    }


def test_a_question_counts_once_however_many_seeds_and_in_each_of_both_sets() -> None:
    """Seeds share their questions: counted as independent ones they would narrow the interval."""
    found = [gain_of([runs(1.0), runs(0.0)], "em", [hops]) for hops in HOPS]
    assert [(gain.difference.mean, gain.difference.n) for gain in found] == [(0.5, 4)] * 4
    assert gain_of([runs(1.0), runs(0.0)], "em").difference.n == 16


def test_what_shares_a_warm_policy_is_compared_over_the_seeds_that_both_have() -> None:
    ended = {
        "search-r1-grpo-laptop": {0: runs(0.0), 1: runs(1.0)},
        "search-r1-ppo-laptop": {0: runs(1.0), 2: runs(0.0)},
    }
    table = beside_first({**ended, "s3-ppo-laptop": {0: runs(1.0)}}).markdown()
    assert table.count("laptop |") == 2 and "| search-r1-ppo-laptop | search-r1-grpo-laptop | 1.000 [" in table


def test_show_runs_nothing_and_writes_no_table_of_some_methods_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.methods.run_seed", lambda *_: pytest.fail("a recipe was run"))
    written = DOCS.read_bytes()
    assert main(["--show", "--seeds", "0", "1", "--out", str(tmp_path / "none")]) == 0
    assert "| recipe | seed |" in capsys.readouterr().out and DOCS.read_bytes() == written


def test_methods_that_share_a_warm_policy_run_behind_the_one_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[tuple[str, list[str]]] = []
    monkeypatch.setattr("bench.methods.run_seed", lambda name, seed, out, settings: runs.append((name, settings)))
    main(["rl.steps=2", "--only", "s3-ppo-laptop", "zerosearch-laptop", "--seeds", "3", "--out", str(tmp_path)])
    assert [name for name, _ in runs] == ["search-r1-grpo-laptop", "zerosearch-laptop", "s3-laptop", "s3-ppo-laptop"]
    for (first, alone), (_, settings) in (runs[:2], runs[2:]):
        assert alone == ["rl.steps=2"]
        assert settings[1].startswith(f"policy={{folder: {tmp_path}/{first}/seed-3/policy/warm,")
