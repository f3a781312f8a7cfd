"""Inspect logs, opened by Inspect's own reader. It is installed in an environment of its own: `make test-inspect`."""

import random
from pathlib import Path

import pytest
from tests.traces.chats import imported, own_runs, random_chat, search_chat, stored

from coseek.core.files import JsonObject
from coseek.data.run import Run
from coseek.measure.score import score_trajectory
from coseek.traces.exporting import export_run

log = pytest.importorskip("inspect_ai.log", reason="make test-inspect")


def test_inspect_opens_a_run_with_its_messages_calls_and_scores(tmp_path: Path) -> None:
    runs = own_runs()
    assert export_run(stored(tmp_path / "own", runs), "inspect", tmp_path / "own.eval") == len(runs)
    opened = log.read_eval_log(tmp_path / "own.eval")
    assert opened.status == "success" and opened.eval.task == "own"
    for run, sample in zip(runs, opened.samples, strict=True):
        assert (sample.id, sample.input, sample.target) == (
            run.question.id,
            run.question.question,
            [*run.question.answers],
        )
        calls = [call for message in sample.messages for call in getattr(message, "tool_calls", None) or ()]
        assert [call.arguments for call in calls] == [{"query": search.query} for search in run.searches]
        assert sample.scores["em"].value == score_trajectory(run)["em"]
        assert sample.output.completion == (run.answer or "")
    means = {score.name: score.metrics["mean"].value for score in opened.results.scores}
    assert means["em"] == pytest.approx(sum(score_trajectory(run)["em"] for run in runs) / len(runs))


def test_inspect_opens_any_conversation_and_counts_failed_runs_as_errors(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows: list[JsonObject] = [{"messages": [*random_chat(rng)]} for _ in range(60)]
    imported(tmp_path, [*rows, {"messages": [*search_chat()], "error": "timeout"}], fault="error")
    assert export_run(Run(tmp_path / "run"), "inspect", tmp_path / "run.eval") == 61
    opened = log.read_eval_log(tmp_path / "run.eval")
    (failed,) = [sample for sample in opened.samples if sample.error]
    assert failed.error.message == "model_error: timeout" and not failed.scores
    assert len(opened.samples) == 61 and opened.results.completed_samples == 60
    assert [summary.id for summary in log.read_eval_log_sample_summaries(tmp_path / "run.eval")]
