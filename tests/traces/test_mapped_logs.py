"""Logs of any form by paths, and passages in the results of any search tool."""

import json
from pathlib import Path

import pytest
from tests.traces.chats import imported, search_chat, write_log

from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.data.run import Run
from coseek.data.trajectory import StopReason
from coseek.measure.score import score_trajectory
from coseek.pipelines.audit import audit_run
from coseek.traces.found_passages import hits_by_query
from coseek.traces.importing import import_traces, trace_settings

ROW: JsonObject = {
    "uid": "q1",
    "input": {"q": "Who wrote Faust?"},
    "gold": ["Goethe"],
    "trace": [
        {"thought": "</tool_call> I search.", "action": {"query": "Faust"}, "obs": [{"pid": 3, "body": "By Goethe."}]},
        {"thought": "Two at once.", "action": {"query": ["Faust", "Goethe"]}, "obs": [["one"], ["two"]]},
        {"thought": "Lost.", "action": {"query": "late"}},
    ],
    "out": "Goethe",
}
MAP = """
id: uid
question: input.q
answers: gold
steps: trace
reasoning: thought
query: action.query
results: obs
answer: out
"""


def test_a_log_of_any_form_is_read_by_paths_in_a_file_or_typed(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [ROW])
    (tmp_path / "map.yaml").write_text(MAP)
    import_traces([log], tmp_path / "a", trace_settings({"map": str(tmp_path / "map.yaml")}))
    (run,) = Run(tmp_path / "a").trajectories()
    assert (run.question.id, run.question.question, run.question.answers) == ("q1", "Who wrote Faust?", ("Goethe",))
    assert run.answer == "Goethe" and run.stop is StopReason.ANSWERED and not run.exact
    found = [(search.turn, search.query, [hit.passage.text for hit in search.hits]) for search in run.searches]
    assert found == [(1, "Faust", ["By Goethe."]), (2, "Faust", ["one"]), (2, "Goethe", ["two"])]
    assert audit_run(tmp_path / "a").violations == ()
    typed = dict(line.split(": ") for line in MAP.strip().splitlines())
    import_traces([log], tmp_path / "b", trace_settings(typed))
    assert list(Run(tmp_path / "b").trajectories()) == [run]


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", [ROW])
    (tmp_path / "map.yaml").write_text(MAP.replace("gold", "golden"))
    with pytest.raises(SettingError, match=r"no record has anything at answers=golden; check the path"):
        import_traces([log], tmp_path / "run", trace_settings({"map": str(tmp_path / "map.yaml")}))
    (tmp_path / "map.yaml").write_text("qestion: q")
    with pytest.raises(SettingError, match="question"):
        trace_settings({"map": str(tmp_path / "map.yaml")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("result", "found"),
    [
        ("plain text", [("", "plain text")]),
        ("", []),
        (None, []),
        ([{"title": "A", "snippet": "b", "link": "http://x"}], [("A", "b")]),
        ('{"results": [{"name": "A", "content": "b"}]}', [("A", "b")]),
        ([{"document": {"id": 1, "title": "A", "contents": "b"}, "score": 2}], [("A", "b")]),
        (["one", "two", "one", " "], [("", "one"), ("", "two")]),
        ("[1] Faust: a play", [("", "[1] Faust: a play")]),
        ({"odd": 1}, [("", '{"odd": 1}')]),
    ],
)
def test_passages_are_found_in_results_of_any_form(result: Json, found: list[tuple[str, str]]) -> None:
    (hits,) = hits_by_query(result, 1)
    assert [(hit.passage.title, hit.passage.text) for hit in hits] == found


def test_scores_are_kept_only_where_they_rank() -> None:
    rows: list[Json] = [{"id": str(n), "text": "t", "score": score} for n, score in enumerate((3, 2.5))]
    assert [hit.score for hit in hits_by_query(rows, 1)[0]] == [3, 2.5]
    assert [hit.score for hit in hits_by_query(rows[::-1], 1)[0]] == [1, 0.5]
    assert [hit.score for hit in hits_by_query(json.dumps(["a", "b"]), 1)[0]] == [1, 0.5]


def test_different_passages_that_a_log_gives_one_id_stay_apart_in_a_run(tmp_path: Path) -> None:
    first, last = "A play.", "It is by Goethe."
    found: list[list[Json]] = [[{"id": 1, "text": first}], [{"id": 1, "text": last}, {"id": 2, "text": first}]]
    steps: list[Json] = [{"query": f"q{number}", "results": rows} for number, rows in enumerate([*found, found[0]])]
    row: JsonObject = {"question": "Who wrote Faust?", "answers": ["Goethe"], "gold_ids": ["1"], "steps": steps}
    (run,), _ = imported(tmp_path, [row], steps="steps")
    ids = [[hit.passage.id for hit in search.hits] for search in run.searches]
    assert ids[0] == ids[2] == ["1"] and ids[1][0].startswith("1#") and ids[1][1] == "2"
    assert run.evidence == ("1", *ids[1])
    scores = score_trajectory(run)
    assert (scores["passages"], scores["answer_hit"], scores["recall"]) == (3, 1, 1)
    assert [passage.text for passage in served_context(run)] == [first, last]
    assert audit_run(tmp_path / "run").violations == ()


def test_two_chunks_of_one_page_are_two_passages_of_its_address() -> None:
    page = "https://x.org/faust"
    rows: list[Json] = [{"url": page, "content": "one"}, {"id": page, "content": "two"}, {"url": page, "text": "one"}]
    (hits,) = hits_by_query(rows, 1)
    assert [hit.passage.text for hit in hits] == ["one", "two"] and len({hit.passage.id for hit in hits}) == 2
    assert [hit.passage.url for hit in hits] == [page, page]


def test_an_id_of_coseeks_own_hits_goes_to_no_passage_of_another_tool(tmp_path: Path) -> None:
    chat = search_chat()
    own: list[Json] = [{"id": "faust", "title": "", "text": "Ours.", "score": 1.0}]
    call: JsonObject = {"id": "b", "function": {"name": "search", "arguments": {"query": "Faust"}}}
    more: list[JsonObject] = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "b", "content": "Ours.", "hits": own},
    ]
    (run,), _ = imported(tmp_path, [{"messages": [*chat[:4], *more, chat[4]]}])
    ((theirs, egmont), (ours,)) = ([hit.passage.id for hit in search.hits] for search in run.searches)
    assert (ours, egmont) == ("faust", "egmont") and theirs.startswith("faust#")
