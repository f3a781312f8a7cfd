"""Query views in Python files of the user's own: the one on the page on parts."""

import json
import re
from pathlib import Path

import pytest

from coseek.core.errors import SettingError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.index_files import write_checksums
from coseek.retrieval.query import ContextFields, PastTurn, Query
from coseek.retrieval.retriever import fields_read
from coseek.training.encoder.recipe import load_retriever_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "write-a-part.md").read_text(encoding="utf-8")
(SOURCE,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "\nVIEW = " in code]
ASKED = Query("born", "Who?", "why", (PastTurn("a", documents=("old",)), PastTurn("b", documents=("Ada", "Bob"))))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Corpus([Passage("a", "Ada", "Ada was born in 1815."), Passage("b", "Bob", "Bob was born.")]).save(
        tmp_path / "corpus.jsonl"
    )
    (tmp_path / "latest_find.py").write_text(SOURCE, encoding="utf-8")
    build_index(tmp_path, "bm25", tmp_path / "index", {"view": str(tmp_path / "latest_find.py")})
    (tmp_path / "mine.yaml").write_text("{retriever: index, path: index, settings: {view: latest_find.py}}")
    return tmp_path


def test_a_view_of_ones_own_is_searched_with_and_said_to_clients(home: Path) -> None:
    opened = open_retriever(home / "mine.yaml")
    assert opened.seen(ASKED) == "Ada\nborn"
    assert opened.search([ASKED], 1)[0][0].passage.id == "a"
    assert fields_read(opened) == ContextFields(past="documents", turns=2)
    assert opened.seen(fields_read(opened).of(ASKED)) == "Ada\nborn"


def test_a_view_file_runs_only_where_it_is_named_and_with_the_content_it_was_named_with(home: Path) -> None:
    stored = json.loads((home / "index" / "index.json").read_text())
    assert re.fullmatch(r"latest_find\.py#[0-9a-f]{16}", stored["settings"]["view"])
    changed = SOURCE.replace("[-1:]", "[:1]") + f"open({str(home / 'mark')!r}, 'w').close()\n"
    (home / "latest_find.py").write_text(changed, encoding="utf-8")
    for view in ("latest_find.py#0123456789abcdef", str(home / "latest_find.py")):
        stored["settings"]["view"] = view  # as a stranger's index might say
        (home / "index" / "index.json").write_text(json.dumps(stored))
        write_checksums(home / "index")
        with pytest.raises(SettingError, match="runs only where you name it"):
            open_index(home / "index")
    assert not (home / "mark").exists()
    with pytest.raises(SettingError, match=r"'view' is fixed|runs only where you name it"):
        open_retriever(home / "mine.yaml")


def test_an_encoder_is_trained_with_a_view_of_ones_own(home: Path) -> None:
    view = load_retriever_recipe("two-cores", [f"view={home / 'latest_find.py'}"], labels=["labels"]).view
    assert view is not None and view.startswith("latest_find.py#")
    (home / "other.py").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(SettingError, match="has no 'VIEW', so it is no query view"):
        load_retriever_recipe("two-cores", [f"view={home / 'other.py'}"], labels=["labels"])
