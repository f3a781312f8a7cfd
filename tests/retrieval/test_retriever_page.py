"""The page on retrievers: every file that it shows can be opened, and every retriever is on it."""

import re
from pathlib import Path

import pytest
import yaml
from tests.retrieval.test_rerank import make_cross_encoder
from tests.scripted import Scripted

from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.data.registry import names
from coseek.retrieval.index import PACKAGE, build_index
from coseek.retrieval.opening import open_retriever

PAGE = Path(__file__).parents[2] / "docs" / "retrievers.md"
FILES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the files on the page stand on. A quick index takes the place of the dense one."""
    folder = tmp_path_factory.mktemp("page")
    Corpus([Passage("a", "Ada", "Ada was born in 1815."), Passage("b", "Bob", "Bob knew Ada.")]).save(
        folder / "corpus.jsonl"
    )
    build_index(folder, "bm25", folder / "indexes" / "bm25")
    build_index(folder, "random", folder / "indexes" / "dense")
    make_cross_encoder(folder / "models" / "reranker")
    save_questions(folder / "questions.train.jsonl", [Question("1", "Who knew Ada?", ("Bob",))])
    return folder


@pytest.mark.parametrize("lines", FILES, ids=[str(yaml.safe_load(lines)["retriever"]) for lines in FILES])
def test_every_file_on_the_page_can_be_opened(lines: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "BRAVE_API_KEY"):
        monkeypatch.setenv(name, "none")
    (home / "mine.yaml").write_text(lines, encoding="utf-8")
    model = Scripted(lambda prompt: "[2] > [1]")
    opened = open_retriever(home / "mine.yaml", model=lambda name: model)
    assert opened.name == yaml.safe_load(lines)["retriever"]
    assert opened.seen("Ada") != opened.seen("Bob")
    if opened.corpus is not None:
        assert len(opened.search(["born"], 1)[0]) == 1


def test_every_retriever_and_engine_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    missing = [name for name in names(PACKAGE) + names("coseek.retrieval.web.engines") if f"`{name}`" not in text]
    assert not missing
