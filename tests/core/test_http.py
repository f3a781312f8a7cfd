"""Fears about calls: a key that leaks, a fault that is retried for ever or never, a stalled call that delays others."""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, strategies as st
from tests.models.http_site import Asked, Said, Site, site

from coseek.core.connections import CircuitBreaker, parse_base_url
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, read_key, retry_after_s

FAST = HttpSettings(first_wait_s=0.001, longest_wait_s=0.05, timeout_s=5.0, attempts=3)
OK = Said({"ok": True})
KEY = "sk-very-secret-123"


def in_order(*replies: Said) -> Callable[[Asked], Said]:
    """Return the answers in order, and repeat the last one."""
    return lambda request: replies[min(request.number, len(replies) - 1)]


@contextmanager
def client(
    answer: Callable[[Asked], Said], patience: HttpSettings = FAST, key: str | None = None, **more: object
) -> Iterator[tuple[HttpClient, Site]]:
    """A client, and its server with these answers."""
    with site(answer) as there:
        calls = HttpClient(there.url, patience, key, **more)  # type: ignore[arg-type]
        yield calls, there
        calls.close()


def failure_of(answer: Callable[[Asked], Said], key: str | None = None) -> tuple[str, int]:
    """The message of a failed call, and its number of requests."""
    with client(answer, key=key) as (calls, there):
        with pytest.raises(HttpFailure) as failed:
            calls.request("POST", "/x", {"a": 1})
        return str(failed.value), len(there.asked)


@pytest.mark.parametrize(
    "passing",
    [Said({}, 500), Said({}, 503), Said({}, 429), Said(b"<html>"), Said(b"[1]"), Said(b'{"a": ')],
    ids=["500", "503", "429", "html", "list", "cut short"],
)
def test_what_may_pass_is_asked_again(passing: Said) -> None:
    with client(in_order(passing, passing, OK)) as (calls, there):
        assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}
        assert (calls.stats.calls, calls.stats.retries, calls.stats.answered) == (3, 2, 1)
        assert [request.body for request in there.asked] == [{"a": 1}] * 3


@pytest.mark.parametrize("status", [400, 401, 404, 422, 302, 501])
def test_what_will_not_pass_is_asked_once(status: int) -> None:
    sentence, made = failure_of(in_order(Said({"error": "no"}, status, {"location": "http://127.0.0.1:1/"})))
    assert made == 1
    assert str(status) in sentence


def test_a_call_ends_after_its_attempts() -> None:
    sentence, made = failure_of(in_order(Said({}, 500)))
    assert made == 3
    assert sentence.endswith("it answered 500 (3 tries)")
    sentence, _ = failure_of(in_order(Said({"error": "out of memory"}, 500)))
    assert "out of memory" in sentence


def test_the_key_is_in_the_header_and_nowhere_else() -> None:
    with client(in_order(OK), key=KEY) as (calls, there):
        calls.request("POST", "/x", {"a": 1})
        assert there.asked[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(calls) + str(there.asked[0].body) + there.asked[0].path


@pytest.mark.parametrize("status", [400, 401, 403, 500])
def test_a_server_that_repeats_the_key_does_not_bring_it_into_an_error(status: int) -> None:
    for answer in (Said({"error": f"wrong key {KEY}"}, status), Said(b"x" * 290 + KEY.encode(), status)):
        sentence, _ = failure_of(in_order(answer), key=KEY)
        assert KEY[:8] not in sentence, "nor half of it, where the answer is cut short"


def test_text_that_has_no_bytes_is_sent_escaped() -> None:
    with client(in_order(OK)) as (calls, there):
        calls.request("POST", "/x", {"a": "\ud800"})
        assert there.asked[0].body == {"a": "\ud800"}


@pytest.mark.medium
def test_a_stalled_call_ends_and_holds_up_no_other() -> None:
    gate = threading.Event()
    patience = HttpSettings(timeout_s=0.3, attempts=1)
    with client(lambda request: Said({}, hold=gate) if request.body.get("slow") else OK, patience) as (calls, _):
        slow = calls.submit("POST", "/x", {"slow": True})
        assert calls.request("POST", "/x", {}) == {"ok": True}
        assert not slow.done()
        with pytest.raises(HttpFailure, match=r"no answer within 0\.3 s"):
            slow.result(5)
        gate.set()


def test_no_more_calls_are_under_way_than_were_allowed() -> None:
    gate = threading.Event()
    with client(lambda request: Said({}, hold=gate), HttpSettings(concurrency=3, timeout_s=10)) as (calls, there):
        futures = [calls.submit("POST", "/x", {}) for _ in range(8)]
        while there.most_at_once < 3:
            time.sleep(0.01)
        time.sleep(0.1)
        gate.set()
        assert [future.result(5) for future in futures] == [{}] * 8
        assert there.most_at_once == 3


def test_a_cancelled_call_makes_room() -> None:
    gate = threading.Event()
    alone = HttpSettings(concurrency=1, timeout_s=10)
    with client(lambda request: Said({}, hold=gate) if request.number == 0 else OK, alone) as (calls, there):
        first = calls.submit("POST", "/x", {})
        while not there.asked:
            time.sleep(0.01)
        first.cancel()
        assert calls.request("POST", "/x", {}) == {"ok": True}
        gate.set()


def test_a_server_that_asks_for_too_long_a_wait_is_asked_again_by_an_insistent_caller_alone() -> None:
    busy = Said({}, 503, {"retry-after": "3600"})
    sentence, made = failure_of(in_order(busy))
    assert made == 1 and "503 and asks to wait 3600 s; set patience: {longest_wait_s: 3601}" in sentence
    with client(in_order(busy, OK), HttpSettings(longest_wait_s=0.05, insistent=True)) as (calls, _):
        assert calls.request("GET", "/x") == {"ok": True}


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff"])
def test_bytes_are_fetched_once_whatever_they_are(body: bytes) -> None:
    with client(in_order(Said(body), OK)) as (calls, there):
        assert calls.fetch("POST", "/x", {"a": 1}, {"x-mine": "1"}) == body
        assert (len(there.asked), there.asked[0].headers["x-mine"], calls.stats.answered) == (1, "1", 1)


def test_an_answer_that_is_too_long_is_not_read() -> None:
    with client(in_order(Said(b"x" * 101)), most_bytes=100) as (calls, there):
        with pytest.raises(HttpFailure, match="more than 100 bytes"):
            calls.fetch("GET", "/x")
        assert len(there.asked) == 1


@pytest.mark.parametrize("status", [400, 503])
def test_without_quotes_no_text_of_the_server_is_repeated(status: int) -> None:
    plain = pytest.raises(HttpFailure, match=rf"^it: it answered {status}( \(3 tries\))?$")
    with client(in_order(Said({"error": "your key is abc"}, status)), name="it", quotes=False) as (calls, _), plain:
        calls.fetch("GET", "/x", headers={"x-key": "abc"})


@pytest.mark.slow
def test_a_server_is_obeyed_in_how_long_to_wait() -> None:
    patience = HttpSettings(first_wait_s=0.0, longest_wait_s=2.0)
    with client(in_order(Said({}, 503, {"retry-after": "1"}), OK), patience) as (calls, _):
        began = time.monotonic()
        calls.request("GET", "/x")
        assert time.monotonic() - began >= 1.0


def test_a_dead_server_is_left_alone() -> None:
    with client(in_order(Said({}, 500)), HttpSettings(attempts=1, break_after=3, cool_down_s=60)) as (calls, there):
        for _ in range(3):
            with pytest.raises(HttpFailure, match="answered 500"):
                calls.request("GET", "/x")
        with pytest.raises(HttpFailure, match="3 times in a row"):
            calls.request("GET", "/x")
        assert len(there.asked) == 3


def test_a_call_after_the_end_of_calls_is_refused_and_waits_for_nobody() -> None:
    with client(in_order(OK)) as (calls, _):
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
def test_retry_after_is_seconds_or_a_date_or_nothing(header: str) -> None:
    wait_s = retry_after_s(header, 1e9)
    assert wait_s is None or wait_s >= 0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 20.0) == 40.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:00 GMT", 90.0) == 0.0
    assert retry_after_s(" 7 ", 0) == 7.0
    assert [retry_after_s(header, 0) for header in ("", "soon", "-3", "²")] == [None] * 4


def test_an_invalid_address_is_refused_and_its_usual_end_is_taken_off() -> None:
    for wrong in (
        "ftp://x",
        "http://",
        "http://a:b@x",
        "http://x?k=1",
        "http://x:99999",
        "x",
        "http://[1",
        "http://a b",
    ):
        with pytest.raises(SettingError):
            parse_base_url(wrong)
    assert parse_base_url("http://x:1/v1/", ("/v1",)) == "http://x:1"
    assert parse_base_url("http://x/team/v1", ("/v1",)) == "http://x/team"


def test_an_empty_key_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMPTY_KEY", " ")
    with pytest.raises(SettingError, match="EMPTY_KEY"):
        read_key("EMPTY_KEY")


def test_a_key_that_a_server_repeats_reaches_nothing_that_is_stored() -> None:
    key = "sk/very-secret-123/+"
    echo = b'{"text": "your key is %s, %s", "n": 1}' % (key.encode(), key.replace("/", "\\/").encode())
    with client(in_order(Said(echo)), key=key) as (calls, there):
        answer = calls.request("POST", "/x", {})
        escaped = key.replace("/", "\\/").encode()
        assert calls.fetch("GET", "/x") == echo.replace(key.encode(), b"*" * 20).replace(escaped, b"*" * 22)
        other = HttpClient(there.url, FAST, quotes=False)
        headers = {"X-API-KEY": key, "Accept": "application/json", "Authorization": f"Bearer {key}"}
        assert key.encode() not in other.fetch("GET", "/x", headers=headers)
        other.close()
    assert answer["n"] == 1 and key not in str(answer) and "secret" not in str(answer)


def test_a_key_that_is_a_word_and_a_plain_header_are_left_in_answers() -> None:
    body = {"text": "EMPTY application/json"}
    with client(in_order(Said({**body})), key="EMPTY") as (calls, _):
        assert calls.request("POST", "/x", {}) == body
        assert calls.fetch("GET", "/x", headers={"Accept": "application/json"}) == json.dumps(body).encode()


@pytest.mark.parametrize(
    ("body", "reason", "requests"),
    [
        ({"error": {"message": "Rate limit exceeded: per day", "code": 429}, "user_id": "u"}, "exceeded: per day", 3),
        ({"error": {"code": "rate_limit_exceeded", "message": "slow"}}, "slow", 3),
        ([{"error": {"type": "overloaded_error"}}], "overloaded", 3),
        ({"error": {"message": "no such model", "code": "400"}}, "no such model", 1),
        ({"error": {"message": "no such model"}}, "no such model", 1),
        ({"error": "no such model"}, "no such model", 1),
        ({"base_resp": {"status_code": 1004, "status_msg": "login fail"}, "choices": None}, "login fail", 1),
        ({"success": False, "errors": [{"code": 7009, "message": "account blocked"}], "result": None}, "blocked", 1),
        ({"error_code": 18, "error_msg": "too many requests"}, "too many requests", 1),
        ({"object": "error", "message": "overloaded", "code": 503}, "overloaded", 3),
        ({"code": 429, "msg": "quota used up", "data": None}, "quota used up", 3),
        ({"detail": "not authenticated"}, "not authenticated", 1),
    ],
)
def test_an_error_inside_a_200_keeps_its_reason_and_may_be_asked_again(body: Json, reason: str, requests: int) -> None:
    answer = Said(json.dumps(body).encode())
    sentence, made = failure_of(in_order(answer))
    assert made == requests and reason in sentence
    if requests > 1:
        with client(in_order(answer, OK)) as (calls, _):
            assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}


def test_a_message_that_all_went_well_is_no_error() -> None:
    fine: list[JsonObject] = [{"success": True, "message": "weights are new"}, {"code": 0, "msg": "done"}]
    for body in fine:
        with client(in_order(Said({**body}))) as (calls, _):
            assert calls.request("POST", "/x", {"a": 1}) == body


def test_a_compressed_answer_that_was_not_asked_for_is_read_unless_it_breaks_off() -> None:
    body = json.dumps({"ok": True}).encode()
    for coding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body)), ("identity", body)):
        with client(in_order(Said(packed, headers={"content-encoding": coding}))) as (calls, _):
            assert calls.request("POST", "/x", {}) == {"ok": True}

    broken = Said(gzip.compress(b"a page of the web")[:-9], headers={"content-encoding": "gzip"})
    with client(in_order(broken)) as (calls, _), pytest.raises(HttpFailure, match="breaks off"):
        calls.fetch("GET", "/x")


@pytest.mark.parametrize(
    ("coding", "body"),
    [("br", b"?"), ("gzip", b"no gzip"), ("gzip", gzip.compress(b"x")[:-9])],
    ids=["unknown", "no gzip", "broken off"],
)
def test_a_refusal_that_cannot_be_unpacked_counts_by_its_status(coding: str, body: bytes) -> None:
    headers = {"content-encoding": coding}
    with client(in_order(Said(body, 503, headers), OK)) as (calls, _):
        assert calls.request("POST", "/x", {}) == {"ok": True}
    sentence, times_asked = failure_of(in_order(Said(body, 401, headers)))
    assert "401" in sentence and times_asked == 1


def test_a_small_answer_does_not_unpack_to_one_that_fills_the_memory() -> None:
    bomb = Said(gzip.compress(b" " * 5_000_000 + b"{}"), headers={"content-encoding": "gzip"})
    too_long = pytest.raises(HttpFailure, match="more than 1000000 bytes")
    with client(in_order(bomb), most_bytes=1_000_000) as (calls, _), too_long:
        calls.request("POST", "/x", {})
    sentence, _ = failure_of(in_order(Said(b"{}", headers={"content-encoding": "br"})))
    assert "'br'" in sentence


# --- connections and proxies


ONCE = HttpSettings(attempts=1, timeout_s=5.0)


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_a_server_elsewhere_is_asked_through_the_proxy_of_the_environment(no_proxy: pytest.MonkeyPatch) -> None:
    with site(lambda request: OK) as proxy:
        no_proxy.setenv("http_proxy", proxy.url)
        calls = HttpClient("http://models.invalid:8000", ONCE)
        for _ in range(2):
            assert calls.request("POST", "/v1/x", {"a": 1}) == {"ok": True}
    assert [request.path for request in proxy.asked] == ["http://models.invalid:8000/v1/x"] * 2
    assert proxy.asked[0].headers["host"] == "models.invalid:8000"


def test_a_server_on_this_machine_or_excepted_is_not_asked_through_the_proxy(no_proxy: pytest.MonkeyPatch) -> None:
    with site(lambda request: OK) as proxy, site(lambda request: OK) as there:
        no_proxy.setenv("http_proxy", proxy.url)
        assert HttpClient(there.url, ONCE).request("POST", "/x", {"a": 1}) == {"ok": True}
        no_proxy.setenv("no_proxy", "models.invalid")
        with pytest.raises(HttpFailure, match="the connection failed"):
            HttpClient("http://models.invalid:8000", ONCE).request("POST", "/x", {"a": 1})
    assert not proxy.asked
    assert [request.path for request in there.asked] == ["/x"]


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with site(lambda request: Said({"ok": True}, headers={"connection": "close"})) as there:
        calls = HttpClient(there.url, ONCE)
        for _ in range(3):
            assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}
    assert len(there.asked) == 3
    assert calls.stats.retries == 0


def test_a_callers_header_replaces_ours_of_the_same_name() -> None:
    with site(lambda request: OK) as there:
        calls = HttpClient(there.url, ONCE, "a-key")
        calls.fetch("GET", "/x?q=caf%C3%A9", headers={"Accept": "application/json", "User-Agent": "mine"})
    sent = there.asked[0].headers
    wanted = {"accept": "application/json", "user-agent": "mine", "authorization": "Bearer a-key"}
    assert {name: sent[name] for name in wanted} == wanted
    assert sent["accept-encoding"] == "identity"
    assert there.asked[0].path == "/x?q=caf%C3%A9"


def test_a_server_that_cannot_show_who_it_is_hears_no_key() -> None:
    with site(lambda request: OK) as there:
        calls = HttpClient(there.url.replace("http:", "https:"), ONCE, "a-key")
        with pytest.raises(HttpFailure, match="the connection failed"):
            calls.request("POST", "/x", {"a": 1})
    assert not there.asked
