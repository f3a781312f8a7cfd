"""Searches that failed or found nothing in the logs of other programs, and passages that only read like one."""

import json
from pathlib import Path

import pytest
from tests.traces.chats import imported, search_chat

from coseek.core.files import Json
from coseek.data.trajectory import Search

ORLEN: Json = {"id": "1", "title": "Orlen", "text": "Orlen lies on the Tave."}
TRACEBACK = "Traceback (most recent call last):\n  File 'a.py', line 1\n" + "  x()\n" * 400 + "TimeoutError"
PAGE = "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head><body>" + "<p>nginx</p>" * 200
FAULTS: list[Json] = [
    *"""Error: connection refused
ERROR 429 Too many requests
429 Client Error: Too Many Requests for url: x
HTTP/1.1 503 Service Unavailable
MCP error -32001: Request timed out
Search request timed out after 30 s
The search service is currently unavailable.
Failed to fetch results: 503
Error executing tool web_search: quota
Rate limit exceeded. Try again later.
Invalid request: 'query' is a required property
requests.exceptions.ReadTimeout: x
ValueError('bad query')
❌ **Search failed**: x
Timeout
[Errno 111] Connection refused
Client error '429 Too Many Requests' for url 'x'
Server is busy, please try again later
{'error': 'timeout', 'results': []}""".splitlines(),
    TRACEBACK,
    PAGE,
    {"error": "timeout", "results": []},
    {"success": False, "message": "quota"},
    {"status": 429, "message": "slow"},
    {"detail": "Internal Server Error"},
    {"statusCode": 500, "message": "x"},
    {"type": "error", "error": {"type": "overloaded_error"}},
    {"result": "Error: timeout"},
    {"isError": True, "content": [{"type": "text", "text": "x"}]},
    [{"error": "timeout"}],
]
NOTHING: list[Json] = [
    *"""No results found.
Found 0 results for 'Orlen'
No good Wikipedia Search Result was found
Your search - Orlen - did not match any documents.
Sorry, I could not find anything.
Exception: No results found! Try a shorter query.
(no results)
<results></results>
Total results: 0
There is no information about this in the knowledge base.
未找到相关结果
None
null
[]""".splitlines(),
    "Query: Orlen\nNo results.",
    [],
    {},
    [[]],
    [None],
    ["No results found."],
    {"results": []},
    {"total": 0},
    {"results": [], "message": "ok"},
    [{"title": "", "snippet": ""}],
    {"hits": {"total": 0, "hits": []}},
    {"error": None, "data": None},
    {"error": "No results found", "results": []},
    {"message": "No results found"},
]
PASSAGES = [
    *"""Error (baseball)
Error 404 (film)
Error analysis: the study of errors
The error was found in 1905.
Human error: causes
HTTP 404 is a standard response code.
429 BC
500 days
Failed states index
Access Denied (band)
Can't Get You Out of My Head
Unable to swim, he drowned.
Gone, Girl
The search for the passage failed in 1845 because of ice.
No Country for Old Men
No documents survive from his reign.
No results is an album.
Nothing found is a 2019 album by Ada.
None of them survived.
Police found no records of the man.
<p>Ada</p>""".splitlines(),
    "Error (baseball)\nIn baseball, an error is an act of a fielder.",
    "Timeout\nA timeout is a halt in play.",
    "Error: " + "word " * 200,
]


def searched(tmp_path: Path, result: Json) -> tuple[Search, dict[str, int]]:
    chat = search_chat()
    chat[3]["content"] = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    (run,), report = imported(tmp_path, [{"messages": [*chat]}])
    return run.searches[0], dict(report.counts)


@pytest.mark.parametrize("result", FAULTS)
def test_a_search_that_failed_is_a_fault_and_its_message_no_passage(tmp_path: Path, result: Json) -> None:
    search, counts = searched(tmp_path, result)
    assert search.fault and not search.hits and counts["failed_searches"] == 1


@pytest.mark.parametrize("result", NOTHING)
def test_a_search_that_found_nothing_has_no_hits_and_is_no_fault(tmp_path: Path, result: Json) -> None:
    search, counts = searched(tmp_path, result)
    assert search.fault is None and not search.hits and counts["searches_without_hits"] == 1


@pytest.mark.parametrize("text", PASSAGES)
def test_a_passage_about_errors_stays_a_passage(tmp_path: Path, text: str) -> None:
    assert [hit.passage.text for hit in searched(tmp_path, text)[0].hits] == [text]


def test_a_passage_with_fields_is_one_whatever_it_says(tmp_path: Path) -> None:
    rows: list[Json] = [{"id": "1", "title": "Error", "text": "Error: timeout", "status": "failed"}, ORLEN]
    results: list[Json] = [rows, rows[:1], {"error": "one shard of two failed", "results": rows}]
    for number, result in enumerate(results):
        (folder := tmp_path / str(number)).mkdir()
        search, _ = searched(folder, result)
        assert search.fault is None and search.hits[0].passage.text == "Error: timeout"


def test_one_query_of_a_call_can_fail_alone(tmp_path: Path) -> None:
    chat = json.loads(
        json.dumps(search_chat()).replace('\\"query\\": \\"author of Faust\\"', '\\"queries\\": [\\"a\\", \\"b\\"]')
    )
    chat[3]["content"] = json.dumps([{"results": [ORLEN]}, {"error": "timeout"}])
    (run,), _ = imported(tmp_path, [{"messages": chat}])
    found, failed = run.searches
    assert [hit.passage.id for hit in found.hits] == ["1"] and failed.fault and not failed.hits
