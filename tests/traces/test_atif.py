"""ATIF documents, against the published models."""

import json
import random
from dataclasses import replace
from pathlib import Path

import atif
import pytest
from tests.traces.chats import imported, own_runs, random_chat, stored

from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.run import Run
from coseek.data.trajectory import Author, Trajectory
from coseek.pipelines.audit import audit_run
from coseek.traces.atif import atif_document
from coseek.traces.exporting import export_run
from coseek.traces.importing import import_traces
from coseek.traces.records import TraceSettings


def _settings(**paths: str) -> TraceSettings:
    return make_settings(TraceSettings, paths)


def read(folder: Path) -> list[atif.Trajectory]:
    """The documents of a folder, as the published models read them."""
    return [atif.Trajectory.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def agent_ids(run: Trajectory) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    return [(part.ids, part.logprobs) for part in run.segments if part.author is Author.AGENT]


def test_exact_runs_hold_what_was_read_and_sampled_token_by_token(tmp_path: Path) -> None:
    runs = own_runs()
    assert export_run(stored(tmp_path / "own", runs), "atif", tmp_path / "out") == len(runs)
    for run, document in zip(runs, read(tmp_path / "out"), strict=True):
        assert document.schema_version == "ATIF-v1.7"
        metrics = [step.metrics for step in document.steps if step.source == "agent"]
        found = [(tuple(one.completion_token_ids or ()), tuple(one.logprobs or ())) for one in metrics if one]
        assert found == agent_ids(run)
        last = metrics[-1]
        assert last is not None and [*(last.prompt_token_ids or ()), *(last.completion_token_ids or ())] == [*run.ids]
        calls = [call for step in document.steps for call in step.tool_calls or ()]
        assert [call.arguments for call in calls] == [{"query": search.query} for search in run.searches]


def test_ids_survive_the_way_back_and_the_run_stays_inexact(tmp_path: Path) -> None:
    runs = own_runs()
    export_run(stored(tmp_path / "own", runs), "atif", tmp_path / "out")
    import_traces([tmp_path / "out"], tmp_path / "again")
    assert audit_run(tmp_path / "again").violations == ()
    for before, after in zip(runs, Run(tmp_path / "again").trajectories(), strict=True):
        assert (after.question, after.searches, after.answer) == (before.question, before.searches, before.answer)
        assert agent_ids(after) == agent_ids(before) and not after.exact
        assert after.ids == before.ids


def test_ids_that_nobody_sampled_are_not_written_as_sampled() -> None:
    run = replace(own_runs()[0], exact=False)  # as of a server that returns text
    steps = atif.Trajectory.model_validate(atif_document(run)).steps
    assert all(step.metrics is None for step in steps)


def test_any_conversation_is_a_valid_document_and_loses_no_search(tmp_path: Path) -> None:
    rng = random.Random(7)
    runs, _ = imported(tmp_path, ({"messages": [*random_chat(rng)]} for _ in range(100)))
    export_run(Run(tmp_path / "run"), "atif", tmp_path / "out")
    assert len(read(tmp_path / "out")) == 100
    report = import_traces([tmp_path / "out"], tmp_path / "again")
    assert report.imported == 100 and audit_run(tmp_path / "again").violations == ()
    again = list(Run(tmp_path / "again").trajectories())
    assert [run.question for run in again] == [run.question for run in runs]


FOREIGN: JsonObject = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "other", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "Who wrote Faust?"},
        {
            "step_id": 2,
            "source": "agent",
            "message": "",
            "reasoning_content": "I look <answer>it</answer> up.",
            "tool_calls": [{"tool_call_id": "a", "function_name": "search", "arguments": {"query": "Faust"}}],
            "observation": {"results": [{"source_call_id": "a", "content": "A play by Goethe."}]},
            "metrics": {"completion_token_ids": [5, 6], "logprobs": [-0.5, -1.5], "prompt_token_ids": [1, 2]},
        },
        {"step_id": 3, "source": "agent", "message": "Goethe", "metrics": {"completion_token_ids": [7, -1]}},
    ],
    "extra": {"run": {"exact": True}},
}


def test_a_document_of_another_system_is_scored_by_a_path_to_its_gold_answer(tmp_path: Path) -> None:
    atif.Trajectory.model_validate(FOREIGN)
    (tmp_path / "one.json").write_text(json.dumps({**FOREIGN, "extra": {"gold": "Goethe", "run": {"exact": True}}}))
    import_traces([tmp_path / "one.json"], tmp_path / "run", _settings(answers="extra.gold"))
    (run,) = Run(tmp_path / "run").trajectories()
    assert run.answer == "Goethe" and run.question.answers == ("Goethe",) and not run.exact
    assert [search.query for search in run.searches] == ["Faust"]
    assert agent_ids(run) == [((5, 6), (-0.5, -1.5)), ((), ())]  # -1 is no id
    assert run.segments[0].ids == (1, 2) and "‹answer›it‹/answer›" in run.segments[1].text
    assert audit_run(tmp_path / "run").violations == ()


def test_what_a_system_event_says_is_no_result_of_a_search(tmp_path: Path) -> None:
    document = json.loads(json.dumps(FOREIGN))
    found = document["steps"][1]["observation"]["results"]
    found.insert(0, {"source_call_id": None, "content": "Container restarted."})
    atif.Trajectory.model_validate(document)
    (tmp_path / "one.json").write_text(json.dumps(document))
    import_traces([tmp_path / "one.json"], tmp_path / "run")
    (run,) = Run(tmp_path / "run").trajectories()
    assert [hit.passage.text for hit in run.searches[0].hits] == ["A play by Goethe."]
    assert "Container restarted." in [segment.text for segment in run.segments]


@pytest.mark.parametrize("steps", [None, [], [{"source": "robot"}], ["x"]])
def test_a_broken_document_is_left_out_with_its_reason(tmp_path: Path, steps: object) -> None:
    (tmp_path / "bad.json").write_text(json.dumps({**FOREIGN, "steps": steps}))
    (tmp_path / "half.json").write_text('{"schema_version": "ATIF-v1.7"')
    (tmp_path / "good.jsonl").write_text(json.dumps(FOREIGN) + "\n")
    report = import_traces([tmp_path], tmp_path.with_name(f"{tmp_path.name}-run"))
    assert report.imported == 1 and [one.where for one in report.left_out] == ["bad.json", "half.json"]
