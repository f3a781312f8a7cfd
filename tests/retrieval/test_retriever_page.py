"""The page on retrievers: every file that it shows can be opened, and every retriever is on it."""

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.retrieval.test_rerank import make_cross_encoder
from tests.scripted import Scripted

from coseek.core.errors import UserError
from coseek.core.plugins import plugin_names
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.retrieval.factory import open_retriever, plugin_files
from coseek.retrieval.index import PACKAGE, build_index
from coseek.retrieval.index_files import write_checksums
from coseek.retrieval.web.providers import PROVIDERS

OWN = "newest.py"
DOCS = Path(__file__).parents[2] / "docs"
HOW_TO = (DOCS / "how-to" / "write-a-part.md").read_text(encoding="utf-8")
(SOURCE,) = [
    code
    for code in re.findall(r"```python\n(.*?)```", HOW_TO, flags=re.DOTALL)
    if "def open(settings, opening)" in code
]
PAGE = (DOCS / "reference" / "retrievers.md").read_text(encoding="utf-8")
FILES = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data that the page's files need, with a fast index in place of the dense one."""
    folder = tmp_path_factory.mktemp("page")
    corpus = Corpus([Passage("a", "Ada", "Ada was born in 1815."), Passage("b", "Bob", "Bob knew Ada.")])
    corpus.save(folder / "corpus.jsonl")
    build_index(folder, "bm25", folder / "indexes" / "bm25")
    build_index(folder, "random", folder / "indexes" / "dense")
    make_cross_encoder(folder / "models" / "reranker")
    (folder / OWN).write_text(SOURCE, encoding="utf-8")
    save_questions(folder / "questions.train.jsonl", [Question("1", "Who knew Ada?", ("Bob",))])
    (folder / "data" / "pool").mkdir(parents=True)
    corpus.save(folder / "data" / "pool" / "corpus.jsonl")
    save_questions(
        folder / "data" / "pool" / "questions.test.jsonl", [Question("1", "Who knew Ada?", ("Bob",), ("b",))]
    )
    return folder


@pytest.mark.parametrize("lines", FILES, ids=[str(yaml.safe_load(lines)["retriever"]) for lines in FILES])
def test_every_file_on_the_page_can_be_opened(lines: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "BRAVE_API_KEY"):
        monkeypatch.setenv(name, "none")
    (home / "mine.yaml").write_text(lines, encoding="utf-8")
    model = Scripted(lambda prompt: "[2] > [1]")
    opened = open_retriever(home / "mine.yaml", model=lambda name: model)
    assert opened.name == Path(yaml.safe_load(lines)["retriever"]).stem
    assert opened.seen("Ada") != opened.seen("Bob")
    if opened.corpus is not None:
        assert len(opened.search(["born"], 1)[0]) == 1


def test_the_retriever_of_ones_own_on_the_page_finds_what_it_promises(home: Path) -> None:
    (home / "mine.yaml").write_text(f"retriever: {OWN}\nover: years\n", encoding="utf-8")
    passages = [Passage(str(year), "Ada", f"Ada in {year}.") for year in (1815, 1852, 1835)]
    Corpus(passages).save(home / "years.jsonl")
    build_index(home / "years.jsonl", "bm25", home / "years")
    opened = open_retriever(home / "mine.yaml")
    assert [hit.passage.id for hit in opened.search(["Ada"], 2)[0]] == ["1852", "1835"]
    assert plugin_files(home / "mine.yaml") == [str(home / OWN)]
    (home / "above.yaml").write_text("retriever: hybrid\nparts: [mine.yaml, indexes/bm25]\n", encoding="utf-8")
    assert plugin_files("above.yaml", home) == [str(home / OWN)]
    assert plugin_files(home / "years") == []


def test_an_index_that_somebody_gave_away_runs_no_python(home: Path) -> None:
    """Cards of indexes are data."""
    build_index(home, "random", home / "given")
    card, trap = home / "given" / "index.json", home / "given" / "evil.py"
    trap.write_text(f"open({str(home / 'was-run')!r}, 'w').close()\n", encoding="utf-8")
    card.write_text(card.read_text(encoding="utf-8").replace('"random"', json.dumps(str(trap))), encoding="utf-8")
    write_checksums(home / "given")
    with pytest.raises(UserError):
        open_retriever(home / "given")
    assert not (home / "was-run").exists()


def test_every_retriever_and_engine_is_on_the_page() -> None:
    text = PAGE
    missing = [name for name in [*plugin_names(PACKAGE), *PROVIDERS] if f"`{name}`" not in text]
    assert not missing


def test_python_in_braces_is_found_in_any_depth_and_other_braces_are_texts(home: Path) -> None:
    inner = f"{{retriever: {OWN}, over: years}}"
    assert plugin_files(inner, home) == [str(home / OWN)]
    assert plugin_files({"retriever": "noisy", "over": f"{{retriever: cached, over: '{inner}'}}"}, home) == [
        str(home / OWN)
    ]
    assert plugin_files({"retriever": "expanded", "prompt": "{question} and {query}", "over": "{"}, home) == []
