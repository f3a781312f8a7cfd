"""The page: what it holds, and that nothing in it is markup, script or a request but what we wrote."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
from tests.view.samples import HOSTILE, Elements, make_labels, make_run, trajectory

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, json_line
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.view.page import SCRIPTS, LivePage, html_of, labels_for, page_of, part
from coseek.view.run_source import open_sources, reward_of


def page_text(*folders: Path) -> str:
    return page_of(*open_sources(folders))[1]


def test_no_text_of_a_run_becomes_an_element_or_closes_the_data_block(tmp_path: Path) -> None:
    assert len(set(HOSTILE)) == 200
    folder = make_run(tmp_path / "<b>&run'", [trajectory(f"q{at} {text}", text) for at, text in enumerate(HOSTILE)])
    (folder / "metrics.jsonl").write_text('{"step": 1, "</script><b>": 0.5}\n', encoding="utf-8")
    page, plain = Elements(page_text(folder)), Elements(html_of("x", {}))
    assert page.tags == plain.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in plain.attributes]
    assert page.contents[::2] == plain.contents[::2], "style and script are ours to the letter"
    index = page.data["index"]
    assert isinstance(index, dict)
    questions = index["questions"]
    assert isinstance(questions, list)
    assert [row[1] for row in questions if isinstance(row, list)] == [f"Who {text}?" for text in HOSTILE]
    bodies = page.data["bodies"]
    assert isinstance(bodies, list)
    assert len(bodies) == 200
    for body, text in zip(bodies, HOSTILE, strict=True):
        assert isinstance(body, dict)
        assert isinstance(body["segments"], list)
        assert body["segments"][1] == {
            "tag": "search",
            "text": f"<search>{text}</search>",
            "tokens": 2,
            "ids": [65, 66],
            "logprobs": [-250, -2000],
        }


def test_the_page_names_no_address_and_its_policy_forbids_every_request() -> None:
    page = Elements(html_of("x", {}))
    own = part("page.html") + part("page.css") + "".join(map(part, SCRIPTS))
    # The name space of SVG is a name, and nothing is asked there.
    assert not re.findall(r"(?:https?:|wss?:)?//\w[\w.]*\.\w", own.replace("http://www.w3.org/2000/svg", ""))
    assert not re.findall(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", own)
    assert "default-src 'none'" in page.policy
    assert "unsafe" not in page.policy
    assert not re.search(r"(?:connect|frame|font|media|object|worker)-src", page.policy), "default-src holds for these"


def test_the_script_makes_no_markup_of_text() -> None:
    script = "".join(map(part, SCRIPTS))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser", script
    )
    assert "</" not in script.replace("</think>", ""), "nothing closes the script element"


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a"), trajectory("b", right=False)])
    assert page_text(folder) == page_text(folder)


# --- the command


def test_the_page_lies_in_the_run_unless_it_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_run(tmp_path / "run", [trajectory()])
    assert main(["view", str(folder)]) == 0
    assert f"{folder / 'view.html'}: 1 episodes" in capsys.readouterr().out
    named = tmp_path / "new" / "page.html"
    assert main(["view", str(folder), "--out", str(named)]) == 0
    assert Elements(named.read_text("utf-8")).data["runs"] == ["run"]
    assert named.read_bytes() == (folder / "view.html").read_bytes()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--out", "run/trajectories.jsonl"], "ends in .html"),
        (["--serve", "--out", "x.html"], "leave out --out"),
        (["--labels", "run"], "holds no labels"),
        (["run"], "named twice"),
        (["empty"], "is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run(Path("run"), [trajectory()])
    Path("empty").mkdir()
    before = (folder / "trajectories.jsonl").read_bytes()
    assert main(["view", "run", *options]) == 2
    assert said in capsys.readouterr().err
    assert (folder / "trajectories.jsonl").read_bytes() == before
    assert not list(tmp_path.rglob("*.html"))


# --- the live page


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


# --- what a folder has


def test_a_run_under_way_is_shown_up_to_its_last_whole_line(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a"), trajectory("b")])
    path = folder / "trajectories.jsonl"
    path.write_text(path.read_text("utf-8") + json_line(trajectory("c").to_json())[:200], encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "rew', encoding="utf-8")
    (source,), (curves,) = open_sources([folder])
    assert [one.question.id for one in source.trajectories()] == ["a", "b"]
    assert curves.columns == {"step": [1], "reward": [0.5]}


def test_a_step_that_did_not_log_a_number_has_a_gap(tmp_path: Path) -> None:
    (tmp_path / "rl").mkdir()
    rows = [{"step": 1, "loss": 2.0, "note": "x"}, {"step": 2, "eval/em": 0.5}]
    (tmp_path / "rl" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    runs, (curves,) = open_sources([tmp_path])
    assert not runs
    assert curves.columns == {"step": [1, 2], "loss": [2.0, None], "eval/em": [None, 0.5]}


def test_two_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / place / "run", [trajectory()]) for place in ("a", "b")]
    runs, _ = open_sources([*folders, make_run(tmp_path / "c", [])])
    assert [run.name for run in runs] == [*map(str, folders), "c"]


def test_a_folder_that_holds_nothing_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a run"):
        open_sources([tmp_path])


def test_opening_a_folder_of_somebody_else_runs_no_code_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    spec = f"recipe:\n  reward: {{'{tmp_path / 'part.py'}': 1.0}}\n"
    (tmp_path / "recipe.yaml").write_text(spec, encoding="utf-8")
    assert reward_of(tmp_path) is None


def test_grades_beside_a_run_are_found_again(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a")])
    answers = GradeCache.beside(folder, GeneratedAnswer, "generator", {})
    with answers.appending() as file:
        answers.append(file, GeneratedAnswer("a", 7, "digest", "Ada", "It is Ada."))
    verdicts = GradeCache.beside(folder, Verdict, "judge", {})
    with verdicts.appending() as file:
        verdicts.append(file, Verdict("a", "Ada", True, "yes"))
    (source,), _ = open_sources([folder])
    by_row, by_question = source.grades()
    assert by_row["a", 7][0]["answer"] == "Ada"
    assert by_question["a"][0]["right"] is True


def test_labels_are_shown_at_the_search_that_they_are_of(tmp_path: Path) -> None:
    one = trajectory("a", "words")
    folder = make_run(tmp_path / "run", [one])
    make_labels(tmp_path / "labels", one)
    (source,), _ = open_sources([folder], tmp_path / "labels")
    (label,) = labels_for(one, source.labels["a", 7])
    assert [row["side"] for row in cast("list[JsonObject]", label["candidates"])] == ["positive", "negative"]
    assert label["branches"] == [
        {"id": "p0", "ended": "Ada", "right": True},
        {"id": "good", "ended": "token_limit", "right": False},
        {"id": "bad", "ended": "timed out"},
    ]
    assert source.labels["b", 7][0]["dropped"] == "no-positive"
    assert labels_for(trajectory("a", "other words"), source.labels["a", 7]) == []


def test_tokens_of_a_training_that_was_moved_have_their_texts(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from coseek.models.tokenizer import HfTokenizer, train_tokenizer

    tokenizer = HfTokenizer(train_tokenizer(["a tale of tokens"], (), 300))
    tokenizer.save(tmp_path / "training" / "policy" / "start")
    where = {"name": "trained", "tokenizer": "elsewhere/training/policy/start"}
    agent: JsonObject = {**where, "protocol": "search-r1", "prompt_template": "laptop"}
    make_run(tmp_path / "training" / "rl" / "rollouts" / "step-1", [trajectory("a")], {"agent": agent})
    make_run(tmp_path / "alone", [trajectory("a")], {"agent": agent})
    (moved, alone), _ = open_sources([tmp_path / "training", tmp_path / "alone"])
    decode = moved.decode()
    assert decode is not None and decode(tokenizer.encode("tokens")) == "tokens"
    assert alone.decode() is None


def test_reinforcement_learning_is_drawn_from_the_policy_that_it_began_with(tmp_path: Path) -> None:
    warm = [{"step": 5, "eval/reward": 0.2}, {"step": 10, "loss": 1.0, "eval/reward": 0.4}]
    for folder, rows in (
        ("warm-start/round-1", warm),
        ("rl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0, "eval/reward": 0.8}]),
    ):
        (tmp_path / folder).mkdir(parents=True)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    curves = {one.stage: one.columns for one in open_sources([tmp_path])[1]}
    assert curves["rl"] == {"step": [0, 1, 2], "loss": [None, 2.0, 1.0], "eval/reward": [0.4, None, 0.8]}
    assert curves["warm-start/round-1"]["step"] == [5, 10]
