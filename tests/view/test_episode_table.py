"""The episode table: columns and bodies say what the trajectories say."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tests.view.samples import make_rollouts, make_run, token_data, trajectory, unpacked

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.retrieval.index import build_index
from coseek.view.page import CHUNK_CHARS, EpisodeTable
from coseek.view.run_source import OtherIndex, RunSource, open_sources


def table_of(folder: Path, trajectories: list[Trajectory], settings: JsonObject | None = None) -> EpisodeTable:
    table = EpisodeTable()
    table.add_run(RunSource("run", make_run(folder, trajectories, settings)))
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


def test_a_passage_stands_once_a_chunk_and_two_texts_of_one_id_are_not_mixed_up(tmp_path: Path) -> None:
    one, other = Passage("p", "t", "one"), Passage("p", "t", "other")
    searches = tuple(Search("x", (Hit(each, 1.0),), turn=1) for each in (one, one, other, one))
    table = table_of(tmp_path / "run", [replace(trajectory(), searches=searches)])
    found = cast("list[JsonObject]", bodies(table)[0]["searches"])
    hits = [cast("list[list[object]]", search["hits"])[0] for search in found]
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
    passages = [Passage(str(place), "", text) for place, text in enumerate(texts)]
    searches = (Search("x", tuple(Hit(each, 1.0) for each in passages), turn=1),)
    table = table_of(tmp_path / "run", [replace(trajectory(said="-"), searches=searches, answer="not")])
    hits = cast("list[list[object]]", cast("list[JsonObject]", bodies(table)[0]["searches"])[0]["hits"])
    assert [hit[2] for hit in hits] == [1, 0, 2, 3]


def test_a_passage_that_another_index_does_not_hold_has_no_rank_there(tmp_path: Path) -> None:
    passages = [Passage("a", "", "lake and hill"), Passage("b", "", "hill"), Passage("c", "", "lake lake")]
    other = OtherIndex("bm25", build_index(Corpus(passages[1:]), "bm25", tmp_path / "other"))
    found = Search("lake", tuple(Hit(each, 1.0) for each in passages), turn=1)
    lost = Search("hill", fault="timed out", turn=1)
    folder = make_run(tmp_path / "run", [replace(trajectory(), searches=(found, lost))])
    table = EpisodeTable()
    table.add_run(RunSource("run", folder, others=(other,)))
    assert bodies(table)[0]["ranks"] == {"bm25": [[0, 0, 1], []]}


def test_a_passage_of_an_imported_log_is_found_in_the_index_under_any_id_and_shape(tmp_path: Path) -> None:
    lake = "The lake of Orn lies between two hills and is fed by a river."
    index = OtherIndex(
        "own",
        build_index(
            Corpus([Passage("0", "Hill", "A hill by the lake."), Passage("7f", "Lake Orn", lake)]),
            "bm25",
            tmp_path / "index",
        ),
    )
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


@pytest.mark.slow
def test_chunks_begin_where_the_page_looks_for_them(tmp_path: Path) -> None:
    many = [trajectory(f"q{at}", f"{at} " + "word " * 4000) for at in range(30)]
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


def test_the_view_that_the_index_looked_up_stands_with_the_query(tmp_path: Path) -> None:
    settings: JsonObject = {
        "agent": {"name": "rules", "protocol": "search-r1", "prompt_template": "default"},
        "index": {"retriever": "bm25", "settings": {"view": "question+query"}},
    }
    table = table_of(tmp_path / "run", [trajectory(said="words")], settings)
    searches = cast("list[JsonObject]", bodies(table)[0]["searches"])
    assert [search["looked_up"] for search in searches] == ["Who words?\nwords"]


def test_the_reward_of_a_training_is_shown_by_part(tmp_path: Path) -> None:
    make_run(tmp_path / "training" / "table" / "after.dev", [trajectory("a"), trajectory("b", right=False)])
    recipe = tmp_path / "training" / "recipe.yaml"
    recipe.write_text("recipe:\n  reward: {exact_match: 1.0, searches: -0.1}\n", encoding="utf-8")
    (source,), _ = open_sources([tmp_path / "training"])
    table = EpisodeTable()
    table.add_run(source)
    assert table.columns["reward"] == [0.9, -0.1]
    assert table.columns["parts"] == [{"exact_match": 1, "searches": 1}, {"exact_match": 0, "searches": 1}]


def test_a_rollout_of_training_has_the_values_of_its_step_at_its_tokens(tmp_path: Path) -> None:
    learnt, failed = trajectory("a"), replace(trajectory("b"), stop=StopReason.MODEL_ERROR, answer=None)
    make_rollouts(tmp_path, [learnt, failed], [token_data(learnt)])
    (source,), _ = open_sources([tmp_path])
    table = EpisodeTable()
    table.add_run(source)
    assert source.name.endswith("rl/rollouts/step-000010")
    assert table.columns["reward"] == [0.75, None]
    one, other = bodies(table)
    assert one["training"] == {"group": 3, "trained": True, "updates": 1}
    assert table.columns["parts"] == [{"part I look": 0.5}, None]
    prompt, first, _, second = cast("list[JsonObject]", one["segments"])
    assert prompt["read"] == [1, 2, 3] and "ids" not in prompt
    assert (first["advantages"], first["gaps"], first["entropies"]) == ([-1500, -1500], [0, -75000], [250, 1500])
    assert (second["advantages"], second["gaps"], second["entropies"]) == ([500, None], [0, None], [0, 2500])
    assert "training" not in other
    assert all(
        part.keys() <= {"tag", "text", "tokens", "ids", "logprobs"}
        for part in cast("list[JsonObject]", other["segments"])
    )


def test_values_of_other_tokens_are_not_shown(tmp_path: Path) -> None:
    one = trajectory("a")
    make_rollouts(tmp_path, [one], [replace(token_data(one), spans=((3, 5), (6, 8)))])
    (source,), _ = open_sources([tmp_path])
    with pytest.raises(DataError, match=r"question 'a', seed 7, stand at the tokens"):
        EpisodeTable().add_run(source)
