"""Run sources: which runs, curves, grades and labels a folder has."""

import json
from pathlib import Path
from typing import cast

import pytest
from tests.view.samples import make_labels, make_run, trajectory

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.view.page import labels_for
from coseek.view.run_source import open_sources, reward_of


def test_a_run_under_way_is_shown_up_to_its_last_whole_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a"), trajectory("b")])
    path = folder / "trajectories.jsonl"
    path.write_text(path.read_text("utf-8") + json_line(trajectory("c").to_json())[:200], encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew', encoding="utf-8")
    (source,), (curves,) = open_sources([folder])
    assert [one.question.id for one in source.trajectories()] == ["a", "b"]
    assert curves.columns == {"step": [1], "reward": [0.5]}


def test_a_step_that_did_not_log_a_number_has_a_gap(tmp_path: Path) -> None:
    (tmp_path / "rl").mkdir()
    rows = [{"step": 1, "loss": 2.0, "note": "x"}, {"step": 2, "eval/em": 0.5}]
    (tmp_path / "rl" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    runs, (curves,) = open_sources([tmp_path])
    assert not runs
    assert curves.columns == {"step": [1, 2], "loss": [2.0, None], "eval/em": [None, 0.5]}


def test_two_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / place / "run", [trajectory()]) for place in ("a", "b")]
    runs, _ = open_sources([*folders, make_run(tmp_path / "c", [])])
    assert [run.name for run in runs] == [*map(str, folders), "c"]


def test_a_folder_that_holds_nothing_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run"):
        open_sources([tmp_path])


def test_opening_a_folder_of_somebody_else_runs_no_code_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    spec = f"recipe:\n  reward: {{'{tmp_path / 'part.py'}': 1.0}}\n"
    (tmp_path / "recipe.yaml").write_text(spec, encoding="utf-8")
    assert reward_of(tmp_path) is None


def test_grades_beside_a_run_are_found_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a")])
    answers = GradeCache.beside(folder, GeneratedAnswer, "generator", {})
    with answers.appending() as file:
        answers.append(file, GeneratedAnswer("a", 7, "digest", "Ada", "It is Ada."))
    verdicts = GradeCache.beside(folder, Verdict, "judge", {})
    with verdicts.appending() as file:
        verdicts.append(file, Verdict("a", "Ada", True, "yes"))
    (source,), _ = open_sources([folder])
    by_row, by_question = source.grades()
    assert by_row["a", 7][0]["answer"] == "Ada"
    assert by_question["a"][0]["right"] is True


def test_labels_are_shown_at_the_search_that_they_are_of(tmp_path: Path) -> None:
    one = trajectory("a", "words")
    folder = make_run(tmp_path / "run", [one])
    make_labels(tmp_path / "labels", one)
    (source,), _ = open_sources([folder], tmp_path / "labels")
    (label,) = labels_for(one, source.labels["a", 7])
    assert [row["side"] for row in cast("list[JsonObject]", label["candidates"])] == ["positive", "negative"]
    assert label["branches"] == [
        {"id": "p0", "ended": "Ada", "right": True},
        {"id": "good", "ended": "token_limit", "right": False},
        {"id": "bad", "ended": "timed out"},
    ]
    assert source.labels["b", 7][0]["dropped"] == "no-positive"
    assert labels_for(trajectory("a", "other words"), source.labels["a", 7]) == []


def test_tokens_of_a_training_that_was_moved_have_their_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from coseek.models.tokenizer import HfTokenizer, train_tokenizer

    tokenizer = HfTokenizer(train_tokenizer(["a tale of tokens"], (), 300))
    tokenizer.save(tmp_path / "training" / "policy" / "start")
    where = {"name": "trained", "tokenizer": "elsewhere/training/policy/start"}
    agent: JsonObject = {**where, "protocol": "search-r1", "prompt_template": "laptop"}
    make_run(tmp_path / "training" / "rl" / "rollouts" / "step-1", [trajectory("a")], {"agent": agent})
    make_run(tmp_path / "alone", [trajectory("a")], {"agent": agent})
    (moved, alone), _ = open_sources([tmp_path / "training", tmp_path / "alone"])
    decode = moved.decode()
    assert decode is not None and decode(tokenizer.encode("tokens")) == "tokens"
    assert alone.decode() is None


def test_reinforcement_learning_is_drawn_from_the_policy_that_it_began_with(tmp_path: Path) -> None:
    warm = [{"step": 5, "eval/reward": 0.2}, {"step": 10, "loss": 1.0, "eval/reward": 0.4}]
    for folder, rows in (
        ("warm-start/round-1", warm),
        ("rl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "eval/reward": 0.8}]),
    ):
        (tmp_path / folder).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    curves = {one.stage: one.columns for one in open_sources([tmp_path])[1]}
    assert curves["rl"] == {"step": [0, 1, 2], "loss": [None, 2.0, 1.0], "eval/reward": [0.4, None, 0.8]}
    assert curves["warm-start/round-1"]["step"] == [5, 10]
