"""Fears about example questions: that the page opens with none, or with some that this index knows nothing of."""

from pathlib import Path

from coseek.core.text import as_written
from coseek.data.dataset import Dataset
from coseek.lab.world.world import WorldSettings, make_world
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.serve.agent_service import examples_for


def test_examples_are_questions_of_the_data_folder_as_people_write_them(tmp_path: Path) -> None:
    make_world(WorldSettings(size="tiny", train=0, dev=0, test=30)).save(tmp_path / "world")
    build_index(tmp_path / "world", "bm25", tmp_path / "index")
    shown = examples_for(str(tmp_path / "index"), None)
    asked = [one.question for one in Dataset(tmp_path / "world").questions("test")]
    assert len(set(shown)) == 3
    assert set(shown) <= {as_written(one).strip() for one in asked} and not any(" ?" in text for text in shown)


def test_an_index_without_questions_is_asked_about_its_own_passages(tmp_path: Path) -> None:
    make_world(WorldSettings(size="tiny", train=0, dev=0, test=5)).save(tmp_path / "world")
    build_index(tmp_path / "world", "bm25", tmp_path / "index")
    (tmp_path / "world" / "questions.test.jsonl").unlink()
    index = open_retriever(str(tmp_path / "index"))
    assert index.corpus is not None
    shown = examples_for(str(tmp_path / "index"), index.corpus)
    assert len(shown) == 3 and all(text.startswith("What is said about ") for text in shown)
    assert examples_for("http://elsewhere:1", None) == []
