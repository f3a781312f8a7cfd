"""The live page: read again at every load, on this machine only."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
from tests.view.samples import Elements, make_run, trajectory

from coseek.core.errors import SettingError
from coseek.core.files import json_line
from coseek.view.page import LivePage, page_of
from coseek.view.run_source import open_sources


@contextmanager
def served(*folders: Path) -> Iterator[LivePage]:
    with LivePage(0, lambda: page_of(*open_sources(folders))[1]) as live:
        thread = Thread(target=live.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield live
        finally:
            live.shutdown()
            thread.join()


def get(live: LivePage, path: str = "/", host: str | None = None) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection("127.0.0.1", live.server_port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


def episodes(page: str) -> int:
    return len(cast("list[object]", Elements(page).data["bodies"]))


def test_a_reload_shows_what_a_run_under_way_has_added(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a")])
    with served(folder) as live:
        assert episodes(get(live)[1]) == 1
        with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
            file.write(json_line(trajectory("b").to_json()))
        answer, page = get(live)
        assert episodes(page) == 2
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_run_without_episodes_yet_is_said_and_served_later(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [])
    with served(folder) as live:
        answer, text = get(live)
        assert (answer.status, answer.headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
        assert "no episode has ended yet" in text


def test_a_page_of_another_site_cannot_read_the_runs_through_a_name_of_its_own(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a", "secret")])
    with served(folder) as live:
        answer, text = get(live, host=f"evil.example:{live.server_port}")
        assert answer.status == 421
        assert "data" not in text
        assert get(live, host=f"localhost:{live.server_port}")[0].status == 200


def test_only_the_page_is_served(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a")])
    with served(folder) as live:
        assert get(live, "/../run.yaml")[0].status == 404
        assert get(live, "/trajectories.jsonl")[0].status == 404


def test_a_taken_port_is_named() -> None:
    with LivePage(0, str) as live, pytest.raises(SettingError, match=f"port {live.server_port} "):
        LivePage(live.server_port, str)
