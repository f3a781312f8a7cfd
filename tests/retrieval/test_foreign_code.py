"""Code of other people: encoders that bring their own, and query views in files; it runs where it is named."""

import json
import re
from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import SettingError, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.index_files import write_checksums
from coseek.retrieval.query import ContextFields, PastTurn, Query
from coseek.retrieval.retriever import fields_read
from coseek.training.encoder.recipe import load_retriever_recipe

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own-bert"

class OwnModel(BertModel):
    config_class = OwnConfig

Path({mark!r}).write_text("ran")
"""


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A tiny encoder of an architecture that only its own code knows; the code leaves a mark."""
    folder = make_encoder(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own-bert", "architectures": ["OwnModel"]}
    config |= {"auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    return folder


def test_code_of_an_encoder_runs_on_request_only_and_a_card_is_no_request(encoder: Path, tmp_path: Path) -> None:
    mark, corpus = tmp_path / "mark", sentences(40)
    corpus.save(tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match=r"brings its own Python code; .* set trust_remote_code=true"):
        build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", {"encoder": str(encoder)})
    assert not mark.exists()
    asked = {"encoder": str(encoder), "trust_remote_code": True}
    found = build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", asked).search(["ba be"], 3)
    assert mark.exists() and len(found[0]) == 3

    card = json.loads((tmp_path / "index" / "index.json").read_text())
    assert "trust_remote_code" not in card["settings"]
    card["settings"]["trust_remote_code"] = True  # as a stranger's index might say
    (tmp_path / "index" / "index.json").write_text(json.dumps(card))
    write_checksums(tmp_path / "index")
    mark.unlink()
    with pytest.raises(UserError, match="trust_remote_code=true"):
        open_index(tmp_path / "index").search(["ba be"], 3)
    (tmp_path / "mine.yaml").write_text("{retriever: index, path: index, settings: {trust_remote_code: true}}")
    assert open_retriever(tmp_path / "mine.yaml").search(["ba be"], 3) == found


# --- query views in files of the user's own: the one on the page on parts


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
