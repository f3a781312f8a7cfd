"""Fears about the web: a key that is stored, a page that reaches into this machine, costs that nobody sees."""

import gzip
import ipaddress
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.models import http_site
from tests.models.http_site import Asked, Said

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json
from coseek.core.settings import dump_settings
from coseek.core.text import decode
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.web import Web
from coseek.retrieval.web.pages import (
    FetchedPage,
    Fetcher,
    Page,
    PageFault,
    PageLimits,
    cut,
    is_public,
    read,
    read_page,
)
from coseek.retrieval.web.providers import WebResult, distinct, plain

# --- a small web: saved pages, canned answers of the providers, and servers that behave badly
SECRET = "sk-SECRET-4711"
SENT_AS = {
    "serper": ("x-api-key", SECRET),
    "google": ("x-goog-api-key", SECRET),
    "brave": ("x-subscription-token", SECRET),
    "tavily": ("authorization", f"Bearer {SECRET}"),
}
"""Provider → the header that carries the key."""
PAGES = Path(__file__).parent / "pages"


@dataclass
class Site:
    """A running server."""

    url: str
    answers: dict[str, Callable[[int], Said]]
    """Path without its query → what is answered to the n-th request for it, n from 0."""
    seen: list[Asked]

    def answer(self, request: Asked) -> Said:
        path = request.path.partition("?")[0]
        reply = self.answers[path](self.count(path)) if path in self.answers else Said(status=404)
        self.seen.append(request)
        return reply

    def says(self, path: str, *answers: Said) -> None:
        """Answer with these in order; repeat the last."""
        self.answers[path] = lambda number: answers[min(number, len(answers) - 1)]

    def answer_of(self, name: str) -> str:
        """Serve the stored answer of a provider, whose results are the pages here; returns its URL."""
        text = (PAGES / f"answer.{name}.json").read_text(encoding="utf-8").replace("BASE", self.url)
        self.says("/api", Said(text.encode(), headers={"Content-Type": "application/json"}))
        return f"{self.url}/api"

    def count(self, path: str) -> int:
        return sum(request.path.partition("?")[0] == path for request in self.seen)


def html(body: bytes, content_type: str = "text/html", **headers: str) -> Said:
    return Said(body, headers={"Content-Type": content_type, **headers})


def _saved() -> dict[str, Said]:
    read = {path.name: path.read_bytes() for path in PAGES.iterdir()}
    return {
        "/lighthouse.html": html(gzip.compress(read["lighthouse.html"]), **{"Content-Encoding": "gzip"}),
        "/bridge.html": html(read["bridge.windows-1252.html"], "text/html; charset=windows-1252"),
        "/garden.html": html(read["garden.shift-jis.html"]),
        "/shell.html": html(read["shell.html"]),
        "/notes.txt": html(b"Plain notes\x00 on tides.\n", "text/plain"),
        "/photo": html(b"\x89PNG", "image/png"),
        "/long": html(b"<p>" + b"word " * 1_000_000),
        "/bomb": html(gzip.compress(b"0" * 50_000_000), **{"Content-Encoding": "gzip"}),
        "/broken-gzip": html(b"no gzip", **{"Content-Encoding": "gzip"}),
        "/brotli": html(b"x", **{"Content-Encoding": "br"}),
        "/loop": Said(status=302, headers={"Location": "/loop"}),
        "/moved": Said(status=301, headers={"Location": "/lighthouse.html#lamp"}),
        "/to-file": Said(status=302, headers={"Location": "file:///etc/hostname"}),
        "/to-user": Said(status=302, headers={"Location": "http://me:secret@127.0.0.1/"}),
        "/to-nonsense": Said(status=302, headers={"Location": "http://[:::1/"}),
        "/gone": Said(status=404),
        "/slow": Said(b"<p>tick</p>" * 50, headers={"Content-Type": "text/html"}, dribble_s=0.05),
    }


@contextmanager
def running() -> Iterator[Site]:
    """Run a local server inside the block."""
    web = Site("", {}, [])
    for path, reply in _saved().items():
        web.says(path, reply)
    with http_site.site(web.answer) as there:
        web.url = there.url
        yield web


# --- searches

HERE = PageLimits(allow_private=True)


@pytest.fixture(scope="module")
def shared_site() -> Iterator[Site]:
    with running() as site:
        yield site


@pytest.fixture
def site(shared_site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    for name in ("SERPER_API_KEY", "GOOGLE_API_KEY", "BRAVE_API_KEY", "TAVILY_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    shared_site.seen.clear()
    return shared_site


def web(site: Site, provider: str = "serper", **given: object) -> Web:
    tree = {
        "retriever": "web",
        "provider": provider,
        "url": site.answer_of(provider),
        "limits": {"allow_private": True},
        "retries": {"attempts": 2, "first_wait_s": 0.0},
        **({"parameters": {"cx": "mine"}} if provider == "google" else {}),
        **given,
    }
    opened = open_retriever(tree)
    assert isinstance(opened, Web)
    return opened


@pytest.mark.parametrize("provider", sorted(SENT_AS))
def test_results_become_passages_in_the_order_of_the_provider(site: Site, provider: str) -> None:
    hits = web(site, provider).search(["who built it"], 3)[0]
    assert [hit.passage.id for hit in hits] == [
        f"{site.url}/{page}.html" for page in ("lighthouse", "bridge", "garden")
    ]
    assert hits[0].passage.title == "The lighthouse of Vessel Point"
    assert hits[0].passage.text == "Brandt built the tower of pale granite …"
    assert [hit.score for hit in hits] == [1.0, 1 / 2, 1 / 3]
    assert len(web(site, provider).search(["who built it"], 2)[0]) == 2


def test_each_provider_is_asked_in_its_own_way(site: Site) -> None:
    for provider, (header, value) in SENT_AS.items():
        web(site, provider).search(["grün & blau"], 7)
        assert site.seen[-1].headers[header] == value, provider
    serper, google, brave, tavily = site.seen
    assert serper.body == {"q": "grün & blau", "num": 7}
    parameters = {"cx": ["mine"], "q": ["grün & blau"], "num": ["7"]}
    assert parse_qs(urlsplit(google.path).query) == parameters
    parameters = {"text_decorations": ["false"], "q": ["grün & blau"], "count": ["7"]}
    assert parse_qs(urlsplit(brave.path).query) == parameters
    assert tavily.body == {"query": "grün & blau", "max_results": 7}


def test_a_view_is_sent_without_labels_and_separators(site: Site) -> None:
    for view in ("question+query", "question+reasoning+query"):
        web(site, view=view).search([Query("built when", "Who built it?", "a tower")], 1)
    assert [request.body["q"] for request in site.seen] == [
        "Who built it? built when",
        "Who built it? a tower built when",
    ]


def test_parameters_are_added_and_no_provider_is_asked_for_more_than_it_gives(site: Site) -> None:
    web(site, "google", parameters={"cx": "mine", "gl": "de"}).search(["q"], 50)
    sent = parse_qs(urlsplit(site.seen[-1].path).query)
    assert (sent["gl"], sent["num"]) == (["de"], ["10"])


@pytest.mark.slow
def test_the_key_is_written_nowhere(
    site: Site, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    texts: list[str] = []
    for provider in SENT_AS:
        retriever = web(site, provider, fetch="pages")
        hits = retriever.search(["tower"], 3)
        texts += [repr(hits), repr(vars(retriever)), repr(retriever.stats), retriever.identity, retriever.seen("tower")]
        texts.append(json.dumps(dump_settings(retriever.settings)))
        for status in (401, 302, 500):
            # Some services repeat the key in their error.
            site.says("/api", Said(f"bad key {SECRET}".encode(), status, {"Location": "/"}))
            with pytest.raises(RetrieverError) as raised:
                retriever.search(["tower"], 3)
            error: BaseException | None = raised.value
            while error is not None:
                texts.append(repr(error))
                error = error.__cause__
    texts += [caplog.text, *capsys.readouterr()]
    assert SECRET not in "".join(texts)
    assert not any(SECRET in request.path for request in site.seen)
    assert any(SECRET in str(request.headers) for request in site.seen)


def test_pages_and_redirects_never_get_the_key(site: Site) -> None:
    retriever = web(site, fetch="pages")
    retriever.search(["tower"], 3)
    site.says("/api", Said(status=302, headers={"Location": "/elsewhere"}))
    with pytest.raises(RetrieverError, match="redirects are not followed"):
        retriever.search(["tower"], 3)
    assert [request.path for request in site.seen if SECRET in str(request.headers)] == ["/api", "/api"]


def test_a_missing_key_is_refused_when_the_retriever_is_opened(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY")
    with pytest.raises(SettingError, match="SERPER_API_KEY holds no key"):
        web(site)
    monkeypatch.setenv("MY_KEY", SECRET)
    assert web(site, key_env="MY_KEY").search(["q"], 1)[0]


def test_a_query_is_paid_for_once_a_batch_and_an_empty_one_never(site: Site) -> None:
    retriever = web(site, price_usd=0.001)
    hit_lists = retriever.search(["a", " ", "a", "b", ""], 2)
    assert hit_lists[0] == hit_lists[2] != []
    assert hit_lists[1] == hit_lists[4] == []
    assert site.count("/api") == retriever.stats.service.answered == retriever.stats.queries == 2
    assert retriever.stats.cost_usd == pytest.approx(0.002)
    site.says("/api", Said(b"{}"))
    assert retriever.search(["q"], 3) == [[]]


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b'{"organic": [1]}', b'{"organic": [{"title": "x"}]}', b"\xff"])
def test_an_answer_in_another_form_is_a_fault(site: Site, body: bytes) -> None:
    retriever = web(site)
    site.says("/api", Said(body))
    with pytest.raises(RetrieverError, match="serper answered"):
        retriever.search(["q"], 3)


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("serper", {"message": "Not enough credits", "statusCode": 400}),
        ("serper", {"organic": [], "error": "quota"}),
        ("tavily", {"detail": {"error": "over the plan's limit"}}),
        ("brave", {"type": "ErrorResponse", "error": {"status": 422}, "web": {"type": "search", "results": []}}),
    ],
)
def test_a_providers_error_with_status_200_is_no_empty_search(site: Site, provider: str, body: Json) -> None:
    retriever = web(site, provider)
    site.says("/api", Said(json.dumps(body).encode()))
    with pytest.raises(RetrieverError, match=f"^{provider}: it answered"):
        retriever.search(["q"], 3)


def test_a_providers_answer_without_results_is_an_empty_search(site: Site) -> None:
    retriever = web(site)
    site.says("/api", Said(b'{"searchParameters": {"q": "q"}, "organic": [], "credits": 1}'), Said(b'{"credits": 1}'))
    assert retriever.search(["q"], 3) == [[]] == retriever.search(["r"], 3)


def test_a_failed_query_costs_no_other_its_call_again(site: Site) -> None:
    a, b = (Said(json.dumps({"organic": [{"link": f"http://x/{name}", "title": name}]}).encode()) for name in "ab")
    site.says("/three", a, Said(status=400), b, Said(status=400))
    retriever = web(site, url=f"{site.url}/three", at_once=1)
    for queries in (["a", "bad", "b"], ["bad"]):  # it fails again before the others are asked for
        with pytest.raises(RetrieverError, match="400"):
            retriever.search(queries, 2)
    assert [retriever.search([query], 2)[0][0].passage.title for query in "ab"] == ["a", "b"]
    assert site.count("/three") == 4 and retriever.stats.queries == 2


def test_a_service_whose_credit_is_used_up_says_so(site: Site) -> None:
    retriever = web(site)
    site.says("/api", Said(b"your key abc", status=402))
    with pytest.raises(RetrieverError, match=r"^serper: it answered 402; its credit is used up$"):
        retriever.search(["q"], 1)


# Pages


def test_pages_are_read_and_their_best_passage_is_served(site: Site) -> None:
    retriever = web(site, fetch="pages", passage_words=60, parameters={})
    hit_lists = retriever.search(["when was the petroleum burner put in", "when was the petroleum burner put in"], 3)
    assert hit_lists[0] == hit_lists[1]
    first = hit_lists[0][0].passage
    assert first.id == f"{site.url}/lighthouse.html#3"
    assert "petroleum burner in 1902" in first.text
    assert len(first.text.split()) <= 60
    assert [hit.passage.id.partition("#")[0] for hit in hit_lists[0]] == [
        f"{site.url}/{page}.html" for page in ("lighthouse", "bridge", "garden")
    ]
    assert retriever.stats.pages == site.count("/lighthouse.html") + 2 == 3


def test_a_page_that_cannot_be_had_gives_its_snippet_and_is_counted(site: Site) -> None:
    retriever = web(site, fetch="pages")
    pages = {"/gone": "status 404", "/shell.html": "no text", "/photo": "not a text", "file:///etc/hostname": ""}
    rows = [
        {"link": path if ":" in path else site.url + path, "title": f"Title of {path}", "snippet": "short"}
        for path in pages
    ]
    site.says("/api", Said(json.dumps({"organic": rows}).encode()))
    hits = retriever.search(["q"], 5)[0]
    assert [hit.passage.text for hit in hits] == ["short"] * 3
    assert [hit.passage.id for hit in hits] == [site.url + path for path in list(pages)[:3]]
    assert retriever.stats.page_faults == {reason: 1 for reason in pages.values() if reason}


def test_pages_on_this_machine_are_not_read_unless_one_says_so(site: Site) -> None:
    retriever = web(site, fetch="pages", limits={})
    assert retriever.search(["tower"], 1)[0][0].passage.text == "Brandt built the tower of pale granite …"
    assert retriever.stats.page_faults == {"address refused": 1}
    assert site.count("/lighthouse.html") == 0


@pytest.mark.medium
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/gone", "status 404"),
        ("/photo", "not a text"),
        ("/long", "too long"),
        ("/bomb", "too long"),
        ("/broken-gzip", "broken compression"),
        ("/brotli", "unknown compression"),
        ("/loop", "too many redirects"),
        ("/to-file", "address refused"),
        ("/to-user", "address refused"),
        ("/to-nonsense", "not reached"),
        ("/shell.html", "no text"),
    ],
)
def test_a_page_that_is_not_one_has_a_reason(site: Site, path: str, reason: str) -> None:
    got = read(Fetcher(HERE), site.url + path)
    assert isinstance(got, PageFault)
    assert str(got) == reason


@pytest.mark.medium
def test_a_server_that_dribbles_is_too_slow(site: Site) -> None:
    got = read(Fetcher(PageLimits(allow_private=True, timeout_s=0.3)), f"{site.url}/slow")
    assert str(got) == "too slow"


def test_redirects_are_followed_within_limits(site: Site) -> None:
    assert Fetcher(HERE).fetch(f"{site.url}/moved").url == f"{site.url}/lighthouse.html#lamp"
    with pytest.raises(PageFault, match="too many redirects"):
        Fetcher(PageLimits(allow_private=True, redirects=0)).fetch(f"{site.url}/moved")


def test_the_host_of_a_page_is_asked_for_by_its_name(site: Site) -> None:
    port = urlsplit(site.url).port
    Fetcher(HERE).fetch(f"http://localhost:{port}/lighthouse.html")
    assert site.seen[-1].headers["host"] == f"localhost:{port}"


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "ftp://example.org/", "http://localhost/", "http://127.0.0.1/", "http://127.1/"]
    + ["http://2130706433/", "http://0.0.0.0/", "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://10.0.0.1/"]
    + ["http://169.254.169.254/latest/meta-data/", "http://me@192.168.0.1/", "http://[fe80::1%25lo]/"]
    + ["http:///nowhere", "http://exa mple/", "http://[zz]/", "javascript:alert(1)", "//127.0.0.1/"]
    + ["http://127.0.0.1:99999/", "http://nobody.invalid/"],
)
def test_an_address_inside_or_none_at_all_is_refused(url: str) -> None:
    got = read(Fetcher(PageLimits(timeout_s=5)), url)
    assert str(got) == "address refused"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"]
    + ["255.255.255.255", "240.0.0.1", "198.18.0.1", "::", "::1", "fe80::1", "fc00::1", "ff02::1", "fec0::1"]
    + ["::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:db8::1"],
)
def test_addresses_that_are_not_of_the_open_internet(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


def test_addresses_of_the_open_internet() -> None:
    for address in ("93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert is_public(ipaddress.ip_address(address))


def test_an_article_is_read_without_what_stands_around_it() -> None:
    body = (PAGES / "lighthouse.html").read_bytes()
    page = read_page(FetchedPage("u", body, "text/html"))
    assert page.title == "The lighthouse of Vessel Point"
    assert page.text.startswith("The lighthouse of Vessel Point stands on a low cliff")
    assert "petroleum | 18" in page.text
    for around in ("SCRIPT TEXT", "cookies", "Basket", "Where to eat", "Privacy", "tracker"):
        assert around not in page.text


def test_pages_in_odd_encodings_are_read(site: Site) -> None:
    assert "câbles après l’effondrement" in _text(read(Fetcher(HERE), f"{site.url}/bridge.html"))
    assert "森下かおる" in _text(read(Fetcher(HERE), f"{site.url}/garden.html"))
    assert _text(read(Fetcher(HERE), f"{site.url}/notes.txt")) == "Plain notes on tides."


def _text(page: Page | PageFault) -> str:
    assert isinstance(page, Page), page
    return page.text


@pytest.mark.parametrize(
    ("body", "declared"),
    [
        ("é".encode("utf-16"), "text/html"),
        (b"\xef\xbb\xbf\xc3\xa9", "text/html; charset=latin-1"),
        (b"\xe9", "text/html; charset=latin-1"),
        (b"\xc3\xa9", "text/html; charset=nonsense"),
        (b"\xc3\xa9", "text/html; charset=zip"),
        (b"\xc3\xa9", ";;;"),
    ],
)
def test_bytes_are_read_as_what_they_say_they_are(body: bytes, declared: str) -> None:
    assert decode(body, declared) == "é"


SCRAPS = ["<p>", "</p>", "<div>", "<table><td>", "<script>", "<!--", "-->", "<title>", "<html>", "&#xD800;", "&amp"]


@settings(max_examples=at_most(60))
@given(st.lists(st.sampled_from([*SCRAPS, "\x00", "A sentence that is long enough to be one. "]), max_size=60))
def test_any_heap_of_tags_is_a_page_or_none(scraps: list[str]) -> None:
    with suppress(PageFault):
        assert read_page(FetchedPage("u", "".join(scraps).encode(), "text/html")).text.strip()


@given(st.text(st.sampled_from("ab 桜の\n"), max_size=200), st.integers(1, 9))
def test_cutting_keeps_every_character_but_blanks_and_their_order(text: str, words: int) -> None:
    assert "".join("".join(cut(text, words)).split()) == "".join(text.split())


def test_text_without_blanks_is_cut_too() -> None:
    assert cut("one two three", 2) == ["one two", "three"]
    assert [len(piece) for piece in cut("桜" * 50, 10)] == [20, 20, 10]
    assert [len(piece) for piece in cut("x" * 250, 1)] == [100, 100, 50]


def test_results_are_distinct_pages_of_the_web() -> None:
    urls = ["https://a.b/c#x", "ftp://a.b/c", "https://a.b/c", "javascript:x", "http://d.e/", "https://a b/"]
    urls.append("https://\ud800/")
    assert [page.url for page in distinct([WebResult(url, "", "") for url in urls])] == ["https://a.b/c", "http://d.e/"]


def test_titles_and_snippets_become_plain_text() -> None:
    assert plain("<b>Ada</b> &amp; <i>Bob</i>\n 1 < 2") == "Ada & Bob 1 < 2"
    plain("half a letter: \ud800").encode()
    assert plain(None) == plain(7) == ""


def test_what_the_hits_depend_on_is_in_the_identity(site: Site) -> None:
    kinds = [web(site), web(site, fetch="pages"), web(site, parameters={"gl": "de"}), web(site, "brave")]
    assert len({kind.identity for kind in kinds}) == 4
    assert web(site, price_usd=1.0, at_once=1).identity == kinds[0].identity
    assert web(site).corpus is None
