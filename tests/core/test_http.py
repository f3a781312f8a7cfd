"""Fears about calls: a key that leaks, a fault that is repeated for ever or not at all, a stall that spreads."""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.http_site import Asked, Said, site

from coseek.core.connections import CircuitBreaker, parse_base_url
from coseek.core.errors import SettingError
from coseek.core.files import Json
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key, retry_after_s

FAST = HttpSettings(first_wait_s=0.001, longest_wait_s=0.05, timeout_s=5.0, attempts=3)
OK = Said({"ok": True})
KEY = "sk-very-secret-123"


def in_order(*said: Said) -> Callable[[Asked], Said]:
    """One answer after another, the last one for ever."""
    return lambda asked: said[min(asked.number, len(said) - 1)]


def failure_of(
    answer: Callable[[Asked], Said], patience: HttpSettings = FAST, key: str | None = None
) -> tuple[str, int]:
    """What a call that fails says, and how often it was made."""
    with site(answer) as there:
        calls = HttpClient(there.url, patience, key)
        with pytest.raises(HttpFailure) as failed:
            calls.request("POST", "/x", {"a": 1})
        calls.close()
        return str(failed.value), len(there.asked)


@pytest.mark.parametrize(
    "passing",
    [Said({}, 500), Said({}, 503), Said({}, 429), Said(b"<html>"), Said(b"[1]"), Said(b'{"a": ')],
    ids=["500", "503", "429", "html", "list", "cut short"],
)
def test_what_may_pass_is_asked_again(passing: Said) -> None:
    with site(in_order(passing, passing, OK)) as there:
        calls = HttpClient(there.url, FAST)
        assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}
        assert (calls.stats.calls, calls.stats.retries, calls.stats.answered) == (3, 2, 1)
        assert [asked.body for asked in there.asked] == [{"a": 1}] * 3
        calls.close()


@pytest.mark.parametrize("status", [400, 401, 404, 422, 302, 501])
def test_what_will_not_pass_is_asked_once(status: int) -> None:
    sentence, made = failure_of(in_order(Said({"error": "no"}, status, {"location": "http://127.0.0.1:1/"})))
    assert made == 1
    assert str(status) in sentence


def test_a_call_ends_after_so_many_attempts() -> None:
    sentence, made = failure_of(in_order(Said({}, 500)))
    assert made == 3
    assert sentence.endswith("it answered 500 (3 tries)")
    sentence, _ = failure_of(in_order(Said({"error": "out of memory"}, 500)))
    assert "out of memory" in sentence


def test_the_key_is_in_the_header_and_nowhere_else() -> None:
    with site(in_order(OK)) as there:
        calls = HttpClient(there.url, FAST, KEY)
        calls.request("POST", "/x", {"a": 1})
        assert there.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(calls) + str(there.asked[0].body) + there.asked[0].path
        calls.close()


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_server_that_repeats_the_key_does_not_bring_it_into_an_error(status: int) -> None:
    sentence, _ = failure_of(in_order(Said({"error": f"wrong key {KEY}"}, status)), key=KEY)
    assert KEY not in sentence


def test_a_key_that_a_long_answer_repeats_is_not_half_told() -> None:
    sentence, _ = failure_of(in_order(Said(b"x" * 290 + KEY.encode(), 400)), key=KEY)
    assert KEY[:8] not in sentence


def test_text_that_has_no_bytes_is_sent_escaped() -> None:
    with site(in_order(OK)) as there:
        calls = HttpClient(there.url, FAST)
        calls.request("POST", "/x", {"a": "\ud800"})
        assert there.asked[0].body == {"a": "\ud800"}
        calls.close()


def test_a_stalled_call_ends_and_holds_up_no_other() -> None:
    gate = threading.Event()
    with site(lambda asked: Said({}, hold=gate) if asked.body.get("slow") else OK) as there:
        calls = HttpClient(there.url, HttpSettings(timeout_s=0.3, attempts=1))
        slow = calls.submit("POST", "/x", {"slow": True})
        assert calls.request("POST", "/x", {}) == {"ok": True}
        assert not slow.done()
        with pytest.raises(HttpFailure, match=r"no answer within 0\.3 s"):
            slow.result(5)
        gate.set()
        calls.close()


def test_no_more_calls_are_under_way_than_were_allowed() -> None:
    gate = threading.Event()
    with site(lambda asked: Said({}, hold=gate)) as there:
        calls = HttpClient(there.url, HttpSettings(concurrency=3, timeout_s=10))
        futures = [calls.submit("POST", "/x", {}) for _ in range(8)]
        while there.most_at_once < 3:
            time.sleep(0.01)
        time.sleep(0.1)
        gate.set()
        assert [future.result(5) for future in futures] == [{}] * 8
        assert there.most_at_once == 3
        calls.close()


def test_a_cancelled_call_makes_room() -> None:
    gate = threading.Event()
    with site(lambda asked: Said({}, hold=gate) if asked.number == 0 else OK) as there:
        calls = HttpClient(there.url, HttpSettings(concurrency=1, timeout_s=10))
        first = calls.submit("POST", "/x", {})
        while not there.asked:
            time.sleep(0.01)
        first.cancel()
        assert calls.request("POST", "/x", {}) == {"ok": True}
        gate.set()
        calls.close()


def test_a_server_that_asks_for_too_long_a_wait_is_not_asked_again() -> None:
    sentence, made = failure_of(in_order(Said({}, 503, {"retry-after": "3600"})))
    assert made == 1
    assert "503 and asks to wait 3600 s" in sentence


def test_an_insistent_caller_asks_again_after_the_longest_wait() -> None:
    with site(in_order(Said({}, 503, {"retry-after": "3600"}), OK)) as there:
        calls = HttpClient(there.url, HttpSettings(longest_wait_s=0.05, insistent=True))
        assert calls.request("GET", "/x") == {"ok": True}
        calls.close()


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff"])
def test_bytes_are_fetched_once_whatever_they_are(body: bytes) -> None:
    with site(in_order(Said(body), OK)) as there:
        calls = HttpClient(there.url, FAST)
        assert calls.fetch("POST", "/x", {"a": 1}, {"x-mine": "1"}) == body
        assert (len(there.asked), there.asked[0].headers["x-mine"], calls.stats.answered) == (1, "1", 1)
        calls.close()


def test_an_answer_that_is_too_long_is_not_read() -> None:
    with site(in_order(Said(b"x" * 101))) as there:
        calls = HttpClient(there.url, FAST, most_bytes=100)
        with pytest.raises(HttpFailure, match="more than 100 bytes"):
            calls.fetch("GET", "/x")
        assert len(there.asked) == 1
        calls.close()


@pytest.mark.parametrize("status", [400, 503])
def test_without_quotes_nothing_that_the_server_said_is_repeated(status: int) -> None:
    with site(in_order(Said({"error": "your key is abc"}, status))) as there:
        calls = HttpClient(there.url, FAST, name="it", quotes=False)
        with pytest.raises(HttpFailure, match=rf"^it: it answered {status}( \(3 tries\))?$"):
            calls.fetch("GET", "/x", headers={"x-key": "abc"})
        calls.close()


@pytest.mark.slow
def test_a_server_is_obeyed_in_how_long_to_wait() -> None:
    with site(in_order(Said({}, 503, {"retry-after": "1"}), OK)) as there:
        calls = HttpClient(there.url, HttpSettings(first_wait_s=0.0, longest_wait_s=2.0))
        began = time.monotonic()
        calls.request("GET", "/x")
        assert time.monotonic() - began >= 1.0
        calls.close()


def test_a_dead_server_is_left_alone() -> None:
    with site(in_order(Said({}, 500))) as there:
        calls = HttpClient(there.url, HttpSettings(attempts=1, break_after=3, cool_down_s=60))
        for _ in range(3):
            with pytest.raises(HttpFailure, match="answered 500"):
                calls.request("GET", "/x")
        with pytest.raises(HttpFailure, match="3 times in a row"):
            calls.request("GET", "/x")
        assert len(there.asked) == 3
        calls.close()


def test_a_call_after_the_end_of_calls_is_refused_and_waits_for_nobody() -> None:
    with site(in_order(OK)) as there:
        calls = HttpClient(there.url, FAST)
        calls.request("GET", "/x")
        calls.close()
        with pytest.raises(RuntimeError):
            calls.request("GET", "/x")


def test_the_breaker_opens_lets_one_probe_pass_and_closes() -> None:
    now = [0.0]
    breaker = CircuitBreaker(2, 10.0, lambda: now[0])
    breaker.failed()
    assert breaker.wait_s() == 0
    breaker.failed()
    assert breaker.wait_s() == 10
    now[0] = 10.0
    assert [breaker.wait_s(), breaker.wait_s()] == [0, 10]
    breaker.failed()
    now[0] = 15.0
    assert breaker.wait_s() == 5
    breaker.worked()
    assert breaker.wait_s() == 0
    breaker.failed()
    assert breaker.wait_s() == 0


@given(st.text(max_size=40))
def test_any_retry_after_is_a_wait_or_nothing(said: str) -> None:
    wait_s = retry_after_s(said, 1e9)
    assert wait_s is None or wait_s >= 0


def test_a_date_in_retry_after_counts_from_now() -> None:
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 20.0) == 40.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 90.0) == 0.0
    assert retry_after_s(" 7 ", 0) == 7.0
    assert [retry_after_s(said, 0) for said in ("", "soon", "-3", "²")] == [None] * 4


@pytest.mark.parametrize(
    "wrong",
    [
        "ftp://x",
        "http://",
        "http://a:b@x",
        "http://x?k=1",
        "http://x:99999",
        "x",
        "http://[1",
        "http://a b",
        "http://a\tb",
    ],
)
def test_an_address_that_is_none_is_a_sentence(wrong: str) -> None:
    with pytest.raises(SettingError):
        parse_base_url(wrong)


def test_what_people_leave_at_the_end_of_an_address_is_taken_off() -> None:
    assert parse_base_url("http://x:1/v1/", ("/v1",)) == "http://x:1"
    assert parse_base_url("http://x/team/v1", ("/v1",)) == "http://x/team"


def test_an_empty_key_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_KEY", " ")
    with pytest.raises(SettingError, match="EMPTY_KEY"):
        read_key("EMPTY_KEY")
    assert read_key(None) is None


def test_a_key_that_a_server_repeats_reaches_nothing_that_is_stored() -> None:
    key = "sk/very-secret-123/+"
    echo = b'{"text": "your key is %s, %s", "n": 1}' % (key.encode(), key.replace("/", "\\/").encode())
    with site(in_order(Said(echo))) as there:
        calls = HttpClient(there.url, FAST, key)
        answer = calls.request("POST", "/x", {})
        assert calls.fetch("GET", "/x") == echo.replace(key.encode(), b"*" * 20).replace(
            key.replace("/", "\\/").encode(), b"*" * 22
        )
        other = HttpClient(there.url, FAST, quotes=False)
        headers = {"X-API-KEY": key, "Accept": "application/json", "Authorization": f"Bearer {key}"}
        assert key.encode() not in other.fetch("GET", "/x", headers=headers)
        calls.close()
        other.close()
    assert answer["n"] == 1 and key not in str(answer) and "secret" not in str(answer)


def test_a_key_that_is_a_word_and_a_plain_header_are_left_in_answers() -> None:
    said = {"text": "EMPTY application/json"}
    with site(in_order(Said({**said}))) as there:
        calls = HttpClient(there.url, FAST, "EMPTY")
        assert calls.request("POST", "/x", {}) == said
        assert calls.fetch("GET", "/x", headers={"Accept": "application/json"}) == json.dumps(said).encode()
        calls.close()


def test_a_proxys_error_inside_a_200_keeps_its_reason_and_is_asked_again_by_its_code() -> None:
    limited = Said({"error": {"message": "Rate limit exceeded: free-models-per-day", "code": 429}, "user_id": "u"})
    with site(in_order(limited, OK)) as there:
        calls = HttpClient(there.url, FAST)
        assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}
        calls.close()
    sentence, made = failure_of(in_order(limited))
    assert made == 3 and "Rate limit exceeded: free-models-per-day" in sentence
    named: list[Json] = [
        {"error": {"code": "rate_limit_exceeded", "message": "slow"}},
        [{"error": {"type": "overloaded_error"}}],
    ]
    for said in named:
        sentence, made = failure_of(in_order(Said(json.dumps(said).encode())))
        assert made == 3 and ("slow" in sentence or "overloaded" in sentence)
    errors: list[Json] = [{"message": "no such model", "code": "400"}, {"message": "no such model"}, "no such model"]
    for error in errors:
        sentence, made = failure_of(in_order(Said({"error": error})))
        assert made == 1 and "no such model" in sentence


def test_a_compressed_answer_that_was_not_asked_for_is_read() -> None:
    body = json.dumps({"ok": True}).encode()
    for coding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("identity", body)):
        with site(in_order(Said(packed, headers={"content-encoding": coding}))) as there:
            calls = HttpClient(there.url, FAST)
            assert calls.request("POST", "/x", {}) == {"ok": True}
            calls.close()


def test_a_compressed_answer_that_breaks_off_is_no_answer() -> None:
    packed = gzip.compress(b"a page of the web")
    with site(in_order(Said(packed[:-9], headers={"content-encoding": "gzip"}))) as there:
        calls = HttpClient(there.url, FAST)
        with pytest.raises(HttpFailure, match="breaks off"):
            calls.fetch("GET", "/x")
        calls.close()


def test_a_small_answer_does_not_unpack_to_one_that_fills_the_memory() -> None:
    bomb = Said(gzip.compress(b" " * 5_000_000 + b"{}"), headers={"content-encoding": "gzip"})
    with site(in_order(bomb)) as there:
        calls = HttpClient(there.url, FAST, most_bytes=1_000_000)
        with pytest.raises(HttpFailure, match="more than 1000000 bytes"):
            calls.request("POST", "/x", {})
        calls.close()
    sentence, _ = failure_of(in_order(Said(b"{}", headers={"content-encoding": "br"})))
    assert "'br'" in sentence
