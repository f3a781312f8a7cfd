"""The page: its content, and that it has no other markup, scripts or requests than ours."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
from tests.html_page import HtmlPage
from tests.view.samples import HOSTILE, data_of, make_labels, make_rollouts, make_run, token_data, trajectory, unpacked

from coseek.cli.main import main
from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject, json_line
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.retrieval.index import build_index
from coseek.view.page import CHUNK_CHARS, SCRIPTS, EpisodeTable, LivePage, html_of, labels_for, page_of, part
from coseek.view.run_source import OtherIndex, RunSource, open_sources, reward_of


def page_text(*folders: Path) -> str:
    return page_of(*open_sources(folders))[1]


def test_no_text_of_a_run_becomes_an_element_or_closes_the_data_block(tmp_path: Path) -> None:
    assert len(set(HOSTILE)) == 200
    folder = make_run(tmp_path / "<b>&run'", [trajectory(f"q{at} {text}", text) for at, text in enumerate(HOSTILE)])
    (folder / "metrics.jsonl").write_text('{"step": 1, "</script><b>": 0.5}\n', encoding="utf-8")
    page, plain = HtmlPage(page_text(folder)), HtmlPage(html_of("x", {}))
    assert page.tags == plain.tags
    assert [name for name, _ in page.attributes] == [name for name, _ in plain.attributes]
    assert page.contents[::2] == plain.contents[::2], "style and script are ours to the letter"
    data = data_of(page)
    questions = cast("dict[str, list[list[str]]]", data["index"])["questions"]
    assert [row[1] for row in questions] == [f"Who {text}?" for text in HOSTILE]
    bodies = cast("list[dict[str, list[JsonObject]]]", data["bodies"])
    for body, text in zip(bodies, HOSTILE, strict=True):
        segment = {"tag": "search", "text": f"<search>{text}</search>", "tokens": 2}
        assert body["segments"][1] == {**segment, "ids": [65, 66], "logprobs": [-250, -2000]}


def test_the_page_names_no_address_and_its_policy_forbids_every_request() -> None:
    page = HtmlPage(html_of("x", {}))
    own = part("page.html") + part("page.css") + "".join(map(part, SCRIPTS))
    # The name space of SVG is a name, and nothing is asked there.
    assert not re.findall(r"(?:https?:|wss?:)?//\w[\w.]*\.\w", own.replace("http://www.w3.org/2000/svg", ""))
    assert not re.findall(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon", own)
    (policy,) = (value for value in page.values_of("content") if "default-src 'none'" in value)
    assert "unsafe" not in policy
    assert not re.search(r"(?:connect|frame|font|media|object|worker)-src", policy), "default-src holds for these"


def test_the_script_makes_no_markup_of_text() -> None:
    script = "".join(map(part, SCRIPTS))
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc|DOMParser", script
    )
    assert "</" not in script.replace("</think>", ""), "nothing closes the script element"


# --- the command


def test_the_page_is_written_into_the_run_unless_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "run", [trajectory()])
    assert main(["view", str(folder)]) == 0
    assert f"{folder / 'view.html'}: 1 episodes" in capsys.readouterr().out
    named = tmp_path / "new" / "page.html"
    assert main(["view", str(folder), "--out", str(named)]) == 0
    assert data_of(HtmlPage(named.read_text("utf-8")))["runs"] == ["run"]
    assert named.read_bytes() == (folder / "view.html").read_bytes()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--out", "run/trajectories.jsonl"], "ends in .html"),
        (["--serve", "--out", "x.html"], "leave out --out"),
        (["--labels", "run"], "holds no labels"),
        (["run"], "named twice"),
        (["empty"], "is not a run"),
    ],
)
def test_a_mistake_is_one_sentence_and_no_file_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = make_run(Path("run"), [trajectory()])
    Path("empty").mkdir()
    before = (folder / "trajectories.jsonl").read_bytes()
    assert main(["view", "run", *options]) == 2
    assert error in capsys.readouterr().err
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
    return len(cast("list[object]", data_of(HtmlPage(page))["bodies"]))


def test_a_reload_shows_what_a_run_under_way_has_added(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [trajectory("a")])
    with served(folder) as live:
        assert episodes(get(live)[1]) == 1
        with (folder / "trajectories.jsonl").open("a", encoding="utf-8") as file:
            file.write(json_line(trajectory("b").to_json()))
        answer, page = get(live)
        assert episodes(page) == 2
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_run_without_episodes_yet_is_reported_and_served_later(tmp_path: Path) -> None:
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
    assert [trajectory.question.id for trajectory in source.trajectories()] == ["a", "b"]
    assert curves.columns == {"step": [1], "reward": [0.5]}


def test_two_folders_of_one_name_stay_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name / "run", [trajectory()]) for name in ("a", "b")]
    runs, _ = open_sources([*folders, make_run(tmp_path / "c", [])])
    assert [run.name for run in runs] == [*map(str, folders), "c"]


def test_opening_a_folder_of_somebody_else_runs_no_code_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    spec = f"recipe:\n  reward: {{'{tmp_path / 'part.py'}': 1.0}}\n"
    (tmp_path / "recipe.yaml").write_text(spec, encoding="utf-8")
    assert reward_of(tmp_path) is None


def test_labels_are_shown_at_the_search_that_they_are_of(tmp_path: Path) -> None:
    episode = trajectory("a", "words")
    folder = make_run(tmp_path / "run", [episode])
    make_labels(tmp_path / "labels", episode)
    (source,), _ = open_sources([folder], tmp_path / "labels")
    (label,) = labels_for(episode, source.labels["a", 7])
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
    curves = {curve.stage: curve.columns for curve in open_sources([tmp_path])[1]}
    assert curves["rl"] == {"step": [0, 1, 2], "loss": [None, 2.0, 1.0], "eval/reward": [0.4, None, 0.8]}
    assert curves["warm-start/round-1"]["step"] == [5, 10]


# --- the episode table: columns and bodies say what the trajectories say


def table_of(folder: Path, trajectories: list[Trajectory], settings: JsonObject | None = None) -> EpisodeTable:
    return table_from(make_run(folder, trajectories, settings))


def table_from(folder: Path) -> EpisodeTable:
    """The table of the single run in a folder."""
    (source,), _ = open_sources([folder])
    table = EpisodeTable()
    table.add_run(source)
    return table


def bodies(table: EpisodeTable) -> list[JsonObject]:
    return [body for chunk in table.chunks for body in cast("list[JsonObject]", unpacked(chunk))]


def test_a_fault_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    ended = replace(trajectory("c"), stop=StopReason.RETRIEVER_ERROR, stop_detail="timed out", answer=None)
    lost = replace(trajectory("d"), searches=(Search("x", fault="timed out", turn=1),))
    table = table_of(tmp_path / "run", [trajectory("a"), trajectory("b", right=False), ended, lost])
    assert table.columns["right"] == [1, 0, None, None]
    assert table.columns["fault"] == [0, 0, 1, 1]
    assert bodies(table)[2]["stop_detail"] == "timed out"


def test_a_passage_is_stored_once_per_chunk_and_two_texts_of_one_id_are_not_mixed_up(tmp_path: Path) -> None:
    first, other = Passage("p", "t", "one"), Passage("p", "t", "other")
    searches = tuple(Search("x", (Hit(each, 1.0),), turn=1) for each in (first, first, other, first))
    table = table_of(tmp_path / "run", [replace(trajectory(), searches=searches)])
    stored = cast("list[JsonObject]", bodies(table)[0]["searches"])
    hits = [cast("list[list[object]]", search["hits"])[0] for search in stored]
    assert [hit[3:] for hit in hits] == [["t", "one"], [], ["t", "other"], ["t", "one"]]


def test_a_passage_of_a_document_brings_its_file_and_page(tmp_path: Path) -> None:
    known = Passage("p", "t", "one", meta={"path": "notes/manual.pdf", "page": 3})
    address = Passage("https://example.org/a", "t", "two")  # its id says it already
    searches = (Search("x", (Hit(known, 1.0), Hit(address, 1.0)), turn=1),)
    table = table_of(tmp_path / "run", [replace(trajectory(), searches=searches)])
    hits = cast("list[list[object]]", cast("list[JsonObject]", bodies(table)[0]["searches"])[0]["hits"])
    assert [hit[3:] for hit in hits] == [["t", "one", "notes/manual.pdf#page=3"], ["t", "two"]]


def test_hits_say_whether_they_hold_a_gold_answer_or_the_given_one(tmp_path: Path) -> None:
    texts = ("It was Ada.", "Adamant", "not - at all", "Ada, not -")
    passages = [Passage(str(index), "", text) for index, text in enumerate(texts)]
    searches = (Search("x", tuple(Hit(each, 1.0) for each in passages), turn=1),)
    table = table_of(tmp_path / "run", [replace(trajectory(text="-"), searches=searches, answer="not")])
    hits = cast("list[list[object]]", cast("list[JsonObject]", bodies(table)[0]["searches"])[0]["hits"])
    assert [hit[2] for hit in hits] == [1, 0, 2, 3]


def test_a_passage_that_another_index_does_not_hold_has_no_rank_there(tmp_path: Path) -> None:
    passages = [Passage("a", "", "lake and hill"), Passage("b", "", "hill"), Passage("c", "", "lake lake")]
    other = OtherIndex("bm25", build_index(Corpus(passages[1:]), "bm25", tmp_path / "other"))
    search = Search("lake", tuple(Hit(each, 1.0) for each in passages), turn=1)
    lost = Search("hill", fault="timed out", turn=1)
    folder = make_run(tmp_path / "run", [replace(trajectory(), searches=(search, lost))])
    table = EpisodeTable()
    table.add_run(RunSource("run", folder, others=(other,)))
    assert bodies(table)[0]["ranks"] == {"bm25": [[0, 0, 1], []]}


def test_a_passage_of_an_imported_log_is_found_in_the_index_under_any_id_and_shape(tmp_path: Path) -> None:
    lake = "The lake of Orn lies between two hills and is fed by a river."
    corpus = Corpus([Passage("0", "Hill", "A hill by the lake."), Passage("7f", "Lake Orn", lake)])
    index = OtherIndex("own", build_index(corpus, "bm25", tmp_path / "index"))
    logged = {
        Passage("1", "Lake Orn", lake): 2,
        Passage("1", "", f'(Title: "Lake Orn") {lake}'): 2,
        Passage("x", "", "Lake Orn\n\nThe lake of Orn lies between two hi"): 2,
        Passage("0", "Sea", "An ocean far away, with ships."): 0,  # a rank in the log, not the index's id
        Passage("0", "", ""): 1,
        Passage("nobody", "", ""): None,
    }
    search = Search("hill", tuple(Hit(each, 1.0) for each in logged), turn=1)
    assert index.ranks([search], ["hill by the lake"]) == [list(logged.values())]


def test_chunks_begin_where_the_page_looks_for_them(tmp_path: Path) -> None:
    many = [trajectory(f"q{at}", f"{at} " + "word " * 4000) for at in range(8)]
    table = table_of(tmp_path / "run", many)
    assert len(table.chunks) > 2
    ends = [*table.starts[1:], len(table)]
    for start, end, chunk in zip(table.starts, ends, table.chunks, strict=True):
        inside = cast("list[JsonObject]", unpacked(chunk))
        assert len(inside) == end - start
        assert f" {start} word" in " " + str(cast("list[JsonObject]", inside[0]["segments"])[1]["text"])[8:]
        assert sum(len(str(body)) for body in inside[:-1]) < 2 * CHUNK_CHARS


def test_seeds_beyond_a_double_and_tokens_keep_their_values(tmp_path: Path) -> None:
    table = table_of(tmp_path / "run", [replace(trajectory(), seed=2**63 - 1)])
    assert table.columns["seed"] == ["9223372036854775807"]
    assert table.pieces == [{"65": "A", "66": "B"}]


def test_the_text_that_the_index_looked_up_is_shown_with_the_query(tmp_path: Path) -> None:
    settings: JsonObject = {
        "agent": {"name": "rules", "protocol": "search-r1", "prompt_template": "default"},
        "index": {"retriever": "bm25", "settings": {"view": "question+query"}},
    }
    table = table_of(tmp_path / "run", [trajectory(text="words")], settings)
    searches = cast("list[JsonObject]", bodies(table)[0]["searches"])
    assert [search["looked_up"] for search in searches] == ["Who words?\nwords"]


def test_the_reward_of_a_training_is_shown_by_part(tmp_path: Path) -> None:
    make_run(tmp_path / "training" / "table" / "after.dev", [trajectory("a"), trajectory("b", right=False)])
    recipe = tmp_path / "training" / "recipe.yaml"
    recipe.write_text("recipe:\n  reward: {exact_match: 1.0, searches: -0.1}\n", encoding="utf-8")
    table = table_from(tmp_path / "training")
    assert table.columns["reward"] == [0.9, -0.1]
    assert table.columns["parts"] == [{"exact_match": 1, "searches": 1}, {"exact_match": 0, "searches": 1}]


@pytest.mark.parametrize(
    "recipe",
    [
        "{reward: {preset: s3}}",
        "{reward: {exact_match: 1.0}, stages: {first: {reward: {preset: qagent-1}}}}",
        "{reward: {gold_recall: 1.0}}",
    ],
)
def test_a_reward_that_the_page_cannot_compute_is_left_out_and_the_page_is_made(tmp_path: Path, recipe: str) -> None:
    bare = replace(trajectory("a"), question=Question("a", "Who?", ("Ada",)))
    make_run(tmp_path / "table" / "after.dev", [bare])
    (tmp_path / "recipe.yaml").write_text(f"recipe: {recipe}\n", encoding="utf-8")
    assert table_from(tmp_path).columns["reward"] == [None]


def test_a_verdict_on_a_generators_answer_is_shown(tmp_path: Path) -> None:
    folder = make_run(tmp_path, [replace(trajectory("a"), answer=None, stop=StopReason.COMPLETE)])
    answers, verdicts = (GradeCache.beside(folder, kind, "x", {}) for kind in (GeneratedAnswer, Verdict))
    with answers.appending() as file:
        answers.append(file, GeneratedAnswer("a", 7, "digest", "Ada", "It is Ada."))
    with verdicts.appending() as file:
        verdicts.append(file, Verdict("a", "Ada", True, "yes"))
        verdicts.append(file, Verdict("a", "of another run", True, "yes"))
    grades = cast("list[JsonObject]", bodies(table_from(folder))[0]["grades"])
    assert [(grade.get("answer"), grade.get("response")) for grade in grades] == [("Ada", None), (None, "Ada")]


def test_a_rollout_of_training_has_the_values_of_its_step_at_its_tokens(tmp_path: Path) -> None:
    learnt, failed = trajectory("a"), replace(trajectory("b"), stop=StopReason.MODEL_ERROR, answer=None)
    make_rollouts(tmp_path, [learnt, failed], [token_data(learnt)])
    table = table_from(tmp_path)
    assert table.columns["reward"] == [0.75, None]
    body, other = bodies(table)
    assert body["training"] == {"group": 3, "trained": True, "updates": 1}
    assert table.columns["parts"] == [{"part I look": 0.5}, None]
    prompt, first, _, second = cast("list[JsonObject]", body["segments"])
    assert prompt["read"] == [1, 2, 3] and "ids" not in prompt
    assert (first["advantages"], first["gaps"], first["entropies"]) == ([-1500, -1500], [0, -75000], [250, 1500])
    assert (second["advantages"], second["gaps"], second["entropies"]) == ([500, None], [0, None], [0, 2500])
    assert "training" not in other
    fields = {"tag", "text", "tokens", "ids", "logprobs"}
    assert all(segment.keys() <= fields for segment in cast("list[JsonObject]", other["segments"]))


def test_values_of_other_tokens_are_not_shown(tmp_path: Path) -> None:
    episode = trajectory("a")
    make_rollouts(tmp_path, [episode], [replace(token_data(episode), spans=((3, 5), (6, 8)))])
    with pytest.raises(DataError, match=r"question 'a', seed 7, stand at the tokens"):
        table_from(tmp_path)
