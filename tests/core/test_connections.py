"""Fears about connections: one that is dead and used again, a proxy that is passed by, a header that is sent twice."""

import pytest
from tests.models.http_site import Said, site

from coseek.core.http import HttpClient, HttpFailure, HttpSettings

ONCE = HttpSettings(attempts=1, timeout_s=5.0)
OK = Said({"ok": True})
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment without proxies."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_a_server_elsewhere_is_asked_through_the_proxy_of_the_environment(no_proxy: pytest.MonkeyPatch) -> None:
    with site(lambda asked: OK) as proxy:
        no_proxy.setenv("http_proxy", proxy.url)
        calls = HttpClient("http://models.invalid:8000", ONCE)
        for _ in range(2):
            assert calls.request("POST", "/v1/x", {"a": 1}) == {"ok": True}
    assert [asked.path for asked in proxy.asked] == ["http://models.invalid:8000/v1/x"] * 2
    assert proxy.asked[0].headers["host"] == "models.invalid:8000"


def test_a_server_on_this_machine_or_excepted_is_not_asked_through_the_proxy(no_proxy: pytest.MonkeyPatch) -> None:
    with site(lambda asked: OK) as proxy, site(lambda asked: OK) as there:
        no_proxy.setenv("http_proxy", proxy.url)
        assert HttpClient(there.url, ONCE).request("POST", "/x", {"a": 1}) == {"ok": True}
        no_proxy.setenv("no_proxy", "models.invalid")
        with pytest.raises(HttpFailure, match="the connection failed"):
            HttpClient("http://models.invalid:8000", ONCE).request("POST", "/x", {"a": 1})
    assert not proxy.asked
    assert [asked.path for asked in there.asked] == ["/x"]


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    with site(lambda asked: Said({"ok": True}, headers={"connection": "close"})) as there:
        calls = HttpClient(there.url, ONCE)
        for _ in range(3):
            assert calls.request("POST", "/x", {"a": 1}) == {"ok": True}
    assert len(there.asked) == 3
    assert calls.stats.retries == 0


def test_a_callers_header_replaces_ours_of_the_same_name() -> None:
    with site(lambda asked: OK) as there:
        calls = HttpClient(there.url, ONCE, "a-key")
        calls.fetch("GET", "/x?q=caf%C3%A9", headers={"Accept": "application/json", "User-Agent": "mine"})
    sent = there.asked[0].headers
    wanted = {"accept": "application/json", "user-agent": "mine", "authorization": "Bearer a-key"}
    assert {name: sent[name] for name in wanted} == wanted
    assert sent["accept-encoding"] == "identity"
    assert there.asked[0].path == "/x?q=caf%C3%A9"


def test_a_server_that_cannot_show_who_it_is_hears_no_key() -> None:
    with site(lambda asked: OK) as there:
        calls = HttpClient(there.url.replace("http:", "https:"), ONCE, "a-key")
        with pytest.raises(HttpFailure, match="the connection failed"):
            calls.request("POST", "/x", {"a": 1})
    assert not there.asked
