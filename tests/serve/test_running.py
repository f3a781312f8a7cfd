import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.serve.live import CORPUS, WEB, EchoRetriever, live, until

from coseek.cli.commands.serve import TOGETHER_CPU, named, opened
from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.retrieval.index import build_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.dense import Dense
from coseek.serve.search_service import SearchService, check_name, make_app, serve, without_secrets
from coseek.serve.service import Server, bound, is_loopback, token_of
from coseek.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def process(*command: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A Python process with a service, and its URL; killed when the test ends."""
    running = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        assert "http://" in line, running.stderr.read() if running.stderr else ""
        yield running, line[line.index("http://") :].strip()
    finally:
        running.kill()
        running.communicate(timeout=10)


def ask(url: str, query: str = "x", **more: object) -> httpx.Response:
    body = {"queries": [query], "topk": 1, "return_scores": True, **more}
    return WEB.post(f"{url}/retrieve", json=body)


def waiting(url: str) -> int:
    count = WEB.get(f"{url}/health").json()["waiting"]
    assert isinstance(count, int)
    return count


@pytest.mark.slow
def test_after_sigterm_every_accepted_request_is_answered(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    command = ("-m", "tests.serve.live", str(gate))
    with process(*command) as (running, url), ThreadPoolExecutor(32) as pool:
        replies = [pool.submit(ask, url)]
        while not gate.with_name("open.begun").exists():  # the first batch, which is held up
            time.sleep(0.01)
        replies += [pool.submit(ask, url) for _ in range(31)]
        while waiting(url) < 31:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        gate.touch()
        assert [reply.result().status_code for reply in replies] == [200] * 32
        assert running.wait(10) == 0
        assert running.stderr is not None
        lines = [json.loads(line) for line in running.stderr.read().splitlines()]
    served = [line for line in lines if line["path"] == "/retrieve"]
    assert [line["status"] for line in served] == [200] * 32
    assert max(line["batch"] for line in served) == 4
    assert sum(line["queue_ms"] for line in served) > 0


@pytest.mark.slow
def test_the_command_serves_several_indexes_under_their_names(tmp_path: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "words")
    build_index(tmp_path / "corpus.jsonl", "random", tmp_path / "noise")
    command = ("-m", "coseek.cli.main", "serve", "retriever", str(tmp_path / "words"), f"dice={tmp_path / 'noise'}")
    with process(*command, "--port", "0", "--quiet") as (running, url):
        assert ask(url, "radium").json()["result"][0][0]["document"]["id"] == "curie"
        assert WEB.get(f"{url}/dice/info").json()["name"] == "random"
        running.send_signal(signal.SIGINT)
        assert running.wait(10) == 0


@pytest.mark.medium
def test_a_mistake_of_the_user_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path / "corpus.jsonl", "bm25", tmp_path / "words")
    index = str(tmp_path / "words")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        wrong = {
            f"port {port} of 127.0.0.1 cannot be used": [index, "--port", port],
            "0.0.0.0 can be reached from other machines": [index, "--host", "0.0.0.0"],
            "no address 'nowhere.invalid'": [index, "--host", "nowhere.invalid", "--token-env", "COSEEK_TEST_TOKEN"],
            "COSEEK_NO_TOKEN is empty": [index, "--token-env", "COSEEK_NO_TOKEN"],
            "there is no index": [f"{index}-gone", "--port", "0"],
            "write NAME=": [index, index],
            "a path of the service itself": [f"health={index}"],
            "setting 'port'": [index, "--port", "70000"],
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COSEEK_TEST_TOKEN", "t")
            for sentence, arguments in wrong.items():
                assert main(["serve", "retriever", *arguments]) == 2, sentence
                lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("opening")]
                assert len(lines) == 1
                assert sentence in lines[0]


def test_names_come_from_folders_files_and_hosts(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    sources = ["x/wiki-bm25", "e5=http://h/?a=b", "http://far:1/", str(tmp_path / "two.yaml"), str(tmp_path / "a=b")]
    sources.append("{retriever: viewed, over: idx/bm25, view: query}")
    assert list(named(sources)) == ["wiki-bm25", "e5", "far", "two", "a=b", "viewed"]
    for name in ("a=b", "", "a/b", "..", "-x", "info"):
        with pytest.raises(SettingError):
            check_name(name)


@pytest.mark.medium
def test_a_loopback_service_refuses_the_name_of_another_host() -> None:
    """A page of evil.example that points its name at 127.0.0.1 would otherwise read the answers."""
    with live({"echo": EchoRetriever()}) as url:
        port = url.rpartition(":")[2]
        for host in ("evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}", "127.0.0.1.evil.example",
                     "10.0.0.1", "[::1", "x"):  # fmt: skip
            for path in ("/retrieve", "/health"):
                refused = WEB.post(url + path, json={"queries": ["x"]}, headers={"host": host})
                assert refused.status_code == 421 and "--token-env" in refused.json()["error"]
        for host in (f"127.0.0.1:{port}", f"LOCALHOST:{port}", "[::1]:80", "localhost", "127.0.0.2"):
            assert WEB.post(f"{url}/retrieve", json={"queries": ["x"]}, headers={"host": host}).status_code == 200
    with live({"echo": EchoRetriever()}, token="s3cret") as url:
        headers = {"host": "search.example", "authorization": "Bearer s3cret"}
        assert WEB.post(f"{url}/retrieve", json={"queries": ["x"]}, headers=headers).status_code == 200


def test_a_token_of_the_environment_is_asked_for_everywhere_but_at_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSEEK_TEST_TOKEN", " s3cret\n")
    settings = ServeSettings(host="0.0.0.0", token_env="COSEEK_TEST_TOKEN")
    assert token_of(settings) == "s3cret" and "s3cret" not in repr(settings) and token_of(ServeSettings()) is None
    with live({"echo": EchoRetriever()}, token="s3cret") as url:
        for given in ("", "Bearer wrong", "s3cret", "Bearer"):
            for method, path in (("POST", "/retrieve"), ("GET", "/info")):
                reply = WEB.request(method, url + path, json={"queries": ["x"]}, headers={"authorization": given})
                assert reply.status_code == 401 and "token" in reply.json()["error"] and "s3cret" not in reply.text
        assert WEB.get(f"{url}/info").status_code == 401 and WEB.get(f"{url}/health").status_code == 200
        assert WEB.get(f"{url}/info", headers={"authorization": "Bearer s3cret"}).status_code == 200


def test_only_this_machines_own_addresses_are_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.org")))


def test_health_says_what_is_still_being_opened() -> None:
    may_open, ready = threading.Event(), threading.Event()

    def opener() -> Retriever:
        assert may_open.wait(20)
        return EchoRetriever()

    service = SearchService({"big": opener}, ServeSettings(port=0, log=False))
    service.when_open = ready.set
    listening = bound("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = Server(make_app(service), service.settings)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        reply = WEB.get(f"{url}/health")
        assert (reply.status_code, reply.json()["why"]) == (503, "big is being opened")
        refused = ask(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        may_open.set()
        assert ready.wait(10)
        assert ask(url).status_code == 200
    finally:
        server.should_exit = True
        thread.join(10)


def test_an_index_that_cannot_be_opened_ends_the_service_with_its_error() -> None:
    def opener() -> Retriever:
        raise DataError("there is no index here")

    with pytest.raises(DataError, match="no index here"):
        serve({"gone": opener}, ServeSettings(port=0, log=False), print)


def connected(url: str) -> socket.socket:
    return socket.create_connection((urlsplit(url).hostname or "", urlsplit(url).port or 0), timeout=10)


def test_settings_are_shown_without_secrets() -> None:
    given: JsonObject = {"url": "https://me:pw@host:1/path?key=abc", "api_key": "abc", "query_tokens": 32}
    shown = without_secrets({**given, "parts": [{"token": "abc", "k1": 1.2}]})
    assert shown == {"url": "https://host:1/path", "query_tokens": 32, "parts": [{"k1": 1.2}]}


def test_scores_that_are_no_numbers_are_a_fault_and_not_broken_json() -> None:
    class Odd(EchoRetriever):
        def search(self, queries, k):  # type: ignore[no-untyped-def]
            return [[type(hit)(hit.passage, float("nan")) for hit in hits] for hits in super().search(queries, k)]

    with live({"odd": Odd()}) as url:
        reply = ask(url)
    assert reply.status_code == 502
    assert "not a number" in reply.json()["error"]


@pytest.mark.slow
def test_a_dense_index_is_served_with_several_queries_encoded_together(tmp_path: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index")
    retriever = opened(str(tmp_path / "index"))
    assert isinstance(retriever, Dense)
    assert retriever.settings.queries_together == TOGETHER_CPU
    parted = opened(str(tmp_path / "index"), ["cpu", "cpu"])
    assert parted.search(["radium", "the sea"], 4) == retriever.search(["radium", "the sea"], 4)
    assert parted.identity == retriever.identity
    with live({"dense": retriever}) as url:
        assert ask(url, "who studied radioactivity").json()["result"][0][0]["document"]["id"] == "curie"


# --- limits: a request or an answer without one, a search that is made for nobody


HEAD = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"


def ended(connection: socket.socket) -> bytes:
    """All bytes until the other side closes."""
    got = b""
    with suppress(ConnectionError):  # closed before everything was read
        while chunk := connection.recv(65_536):
            got += chunk
    return got


def test_connections_beyond_the_limit_are_refused() -> None:
    with live({"echo": EchoRetriever()}, max_connections=3) as url, ExitStack() as stack:
        held = [stack.enter_context(connected(url)) for _ in range(3)]
        until(lambda: ask(url).status_code == 503)
        held[0].close()
        until(lambda: ask(url).status_code == 200)


@pytest.mark.medium
def test_a_body_that_is_too_long_or_too_late_is_refused() -> None:
    with live({"echo": EchoRetriever()}, max_body_bytes=1_000, body_s=0.2) as url:
        assert WEB.post(f"{url}/retrieve", content=b" " * 1_001).status_code == 413
        with connected(url) as endless:
            endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                for _ in range(20):
                    endless.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
            assert ended(endless).startswith(b"HTTP/1.1 413 ")
        with connected(url) as late:
            late.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
            assert ended(late).startswith(b"HTTP/1.1 408 ")
        assert ask(url).status_code == 200
