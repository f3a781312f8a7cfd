"""Searches that failed or found nothing in the logs of other programs, and passages that only read like one."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.traces.chats import imported, search_chat

from coseek.core.files import Json
from coseek.data.trajectory import Search

ORLEN: Json = {"id": "1", "title": "Orlen", "text": "Orlen lies on the Tave."}
TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\n" + "  x()\n" * 400 + "TimeoutError"
PAGE = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>" + "<p>nginx</p>" * 200
RESULTS: dict[str, list[Json]] = json.loads(Path(__file__).with_name("tool_results.json").read_text(encoding="utf-8"))
"""What tools of other programs returned: of searches that failed, that found nothing, and passages."""


def searched(tmp_path: Path, results: Sequence[Json]) -> tuple[list[Search], Mapping[str, int]]:
    """The search of a conversation with each of these results, and the counts of their import."""
    chats = [search_chat() for _ in results]
    for chat, result in zip(chats, results, strict=True):
        chat[3]["content"] = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    runs, report = imported(tmp_path, [{"messages": [*chat]} for chat in chats])
    return [run.searches[0] for run in runs], report.counts


def test_a_search_that_failed_is_a_fault_and_its_message_no_passage(tmp_path: Path) -> None:
    results = [*RESULTS["faults"], TRACEBACK, PAGE]
    searches, counts = searched(tmp_path, results)
    missed = [result for result, search in zip(results, searches, strict=True) if not search.fault or search.hits]
    assert not missed and counts["failed_searches"] == len(results)


def test_a_search_that_found_nothing_has_no_hits_and_is_no_fault(tmp_path: Path) -> None:
    searches, counts = searched(tmp_path, RESULTS["nothing"])
    pairs = zip(RESULTS["nothing"], searches, strict=True)
    missed = [result for result, search in pairs if search.fault is not None or search.hits]
    assert not missed and counts["searches_without_hits"] == len(searches)


def test_a_passage_about_errors_stays_a_passage(tmp_path: Path) -> None:
    texts = [*RESULTS["passages"], "Error: " + "word " * 200]
    found = [[hit.passage.text for hit in search.hits] for search in searched(tmp_path, texts)[0]]
    assert found == [[text] for text in texts]


def test_a_passage_with_fields_is_one_whatever_it_says(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": "1", "title": "Error", "text": "Error: timeout", "status": "failed"}, ORLEN]
    for search in searched(tmp_path, [rows, rows[:1], {"error": "one shard of two failed", "results": rows}])[0]:
        assert search.fault is None and search.hits[0].passage.text == "Error: timeout"


def test_one_query_of_a_call_can_fail_alone(tmp_path: Path) -> None:
    chat = json.loads(
        json.dumps(search_chat()).replace('\\"query\\": \\"author of Faust\\"', '\\"queries\\": [\\"a\\", \\"b\\"]')
    )
    chat[3]["content"] = json.dumps([{"results": [ORLEN]}, {"error": "timeout"}])
    (run,), _ = imported(tmp_path, [{"messages": chat}])
    answered, failed = run.searches
    assert [hit.passage.id for hit in answered.hits] == ["1"] and failed.fault and not failed.hits


def test_a_call_and_an_error_in_inspects_words_are_read(tmp_path: Path) -> None:
    chat = search_chat()
    chat[2]["tool_calls"] = [{"id": "a", "function": "web_search", "arguments": {"query": "author of Faust"}}]
    chat[3] |= {"content": "", "error": {"type": "timeout", "message": "took too long"}}
    (run,), report = imported(tmp_path, [{"messages": [*chat]}])
    assert (run.searches[0].query, report.counts["failed_searches"]) == ("author of Faust", 1)


def test_a_path_of_faults_imports_a_log_in_which_nothing_failed(tmp_path: Path) -> None:
    (run,), _ = imported(tmp_path, [{"messages": [*search_chat()], "error": None}], fault="error")
    assert run.fault is None
