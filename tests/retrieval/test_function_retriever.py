"""Code of users: functions as retrievers and views, views in files, encoders with code, which run only where named."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

import coseek
from coseek import Passage, Query, Question
from coseek.core.errors import RetrieverError, SettingError, UnknownName, UserError
from coseek.core.plugins import load_plugin
from coseek.data.passage import Corpus
from coseek.retrieval.factory import CONTRACT, FunctionRetriever, as_retriever, open_retriever, retriever_name
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.index_files import write_checksums
from coseek.retrieval.query import ContextFields, PastTurn
from coseek.retrieval.retriever import FixedRetriever, fields_read
from coseek.retrieval.views import find_view, render_view, view_name
from coseek.training.encoder.recipe import load_retriever_recipe


def shelf(query: str, k: int) -> Sequence[Passage | str]:
    """One passage and two texts."""
    if query == "fail":
        raise ConnectionError("nobody is there")
    return [Passage("a", "A", f"about {query}"), "a text", "another text"]


def question_first(query: Query) -> str:
    return f"{query.question} : {query.text}"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shelf")
    data = coseek.make_world(folder / "world", size="tiny", train=2, dev=0, test=2)
    coseek.build_index(data.folder, "bm25", folder / "index")
    return folder / "index"


def test_a_function_is_searched_and_its_exception_is_a_fault() -> None:
    opened = open_retriever(retriever_name(shelf))
    (hits,) = opened.search("x", 2)
    assert [(hit.passage.text, hit.score) for hit in hits] == [("about x", 2.0), ("a text", 1.0)]
    assert opened.name == "shelf" and opened.corpus is None and opened.identity == FunctionRetriever(shelf).identity
    with pytest.raises(RetrieverError, match="shelf: ConnectionError: nobody is there"):
        opened.search(["fail"], 1)
    (row,) = coseek.rollout("rules", "Who is there?", shelf)
    assert row.hits and not row.fault
    with pytest.raises(SettingError, match="returned 7; let it return passages, hits or texts"):
        FunctionRetriever(lambda query, k: [7]).search("x", 1)  # type: ignore[list-item]
    with pytest.raises(SettingError, match=r"returned \{'documents': .*; let it return passages"):
        FunctionRetriever(lambda query, k: {"documents": ["a"]}).search("x", 1)  # type: ignore[arg-type, return-value]
    (hits,) = FunctionRetriever(lambda query, k: f"about {query}").search("x", 3)
    assert [hit.passage.text for hit in hits] == ["about x"]
    with pytest.raises(SettingError, match="must take"):
        FunctionRetriever(lambda query: [])  # type: ignore[arg-type, misc]


FILE = """
from coseek import Corpus, Hit, Passage
from coseek.core.settings import Settings as SETTINGS
class Mine:
    name, identity, corpus = "mine", "1", Corpus([Passage("a", "", ""), Passage("b", "", "")])
    def seen(self, query): return "q"
    def search(self, queries, k):
        a, b = self.corpus
        return {}
def open(settings, opening): return Mine()
"""
IMPOSSIBLE = {
    "nothing": ("None", "returned None; return a list of hits for each query"),
    "one list too few": ("[[Hit(a, 1.0)]] * (len(queries) - 1)", "returned \\[\\]; return a list"),
    "hits for no query": ("[Hit(a, 1.0)] * len(queries)", "return a list of hits for each query"),
    "a text": ("[['a']] * len(queries)", "hit 1 of the retriever is 'a'; return Hit"),
    "an id that is no text": ("[[Hit(Passage(1, '', ''), 1.0)]] * len(queries)", "return Hit"),
    "no score": ("[[Hit(a, None)]] * len(queries)", "return Hit"),
    "a score that is no number": ("[[Hit(a, float('nan'))]] * len(queries)", "score nan"),
    "rising scores": ("[[Hit(a, 1.0), Hit(b, 2.0)]] * len(queries)", "return hits by falling score"),
    "a passage twice": ("[[Hit(a, 1.0), Hit(a, 0.5)]] * len(queries)", "the passage 'a' twice"),
    "more than was asked for": (
        "[[Hit(a, 1.0), Hit(b, 0.5)] * k] * len(queries)",
        "but at most 2 were requested",
    ),
    "a passage of another corpus": ("[[Hit(Passage('c', '', ''), 1.0)]] * len(queries)", "'c', which is not in its"),
    "an exception": ("[1 / 0]", "ZeroDivisionError: division by zero( .line 9.; mend it)?$"),
}


@pytest.mark.parametrize("fear", IMPOSSIBLE)
def test_what_no_ranking_can_be_is_a_fault_of_the_search_and_never_evidence(fear: str, tmp_path: Path) -> None:
    returned, sentence = IMPOSSIBLE[fear]
    (tmp_path / "mine.py").write_text(FILE.replace("{}", returned), encoding="utf-8")
    given = load_plugin("retriever", str(tmp_path / "mine.py"), CONTRACT).Mine()  # of a program, not of a file
    for mine in (open_retriever({"retriever": str(tmp_path / "mine.py")}), as_retriever(given)):
        with pytest.raises(RetrieverError, match=sentence):
            mine.search(["x"], 2)
    (row,) = coseek.rollout("rules", "Who is there?", given)
    assert row.fault is not None and not row.hits
    scores = coseek.measure_retrievers([Question("q", "Who?", ("a",))], given)
    with pytest.raises(KeyError, match="answer_hit@5 has no value; there is none, since every search"):
        scores.of("mine").metrics["answer_hit@5"]
    del type(given).name
    with pytest.raises(SettingError, match="the retriever Mine has no 'name'"):
        coseek.ask("Who is there?", given)


def test_an_object_with_a_search_is_opened_by_name(index: Path) -> None:
    corpus = coseek.open_index(index).corpus
    assert corpus is not None
    mine = FixedRetriever(corpus, {"x": [corpus[0].id]})
    assert retriever_name(mine) == "python:FixedRetriever" and open_retriever("python:FixedRetriever") is mine
    with pytest.raises(SettingError, match="run that program again"):
        open_retriever("python:nobody")


def test_a_function_is_a_view_of_an_encoder_and_before_any_index(index: Path) -> None:
    name = view_name(question_first)
    query = Query("where", question="Who?")
    assert name == "python:question_first" and render_view(name, query) == "Who? : where"
    assert render_view(name, query, limit=2, count=lambda text: len(text.split())) == "Who? :"
    assert find_view(name).fields.question
    viewed = open_retriever({"retriever": "viewed", "over": str(index), "view": name})
    plain = open_retriever(index)
    assert viewed.seen(query) == "Who? : where" and viewed.identity != plain.identity
    assert viewed.search([query], 3) == plain.search(["Who? : where"], 3)
    named = open_retriever({"retriever": "viewed", "over": str(index), "view": "question+query"})
    assert named.seen(query) == "Who?\nwhere"
    with pytest.raises(SettingError, match="run that program again"):
        find_view("python:nobody")
    with pytest.raises(UnknownName, match=r"did you mean 'question\+query'"):
        find_view("question+qery")


# --- encoders that bring their own code


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
    """A tiny encoder whose architecture is in its own code; running that code creates a file."""
    folder = make_encoder(tmp_path / "own")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own-bert", "architectures": ["OwnModel"]}
    config |= {"auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModel": "own_code.OwnModel"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own_code.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    return folder


@pytest.mark.medium
def test_code_of_an_encoder_runs_on_request_only_and_a_card_is_no_request(encoder: Path, tmp_path: Path) -> None:
    mark, corpus = tmp_path / "mark", sentences(40)
    corpus.save(tmp_path / "corpus.jsonl")
    with pytest.raises(UserError, match=r"brings its own Python code; .* set trust_remote_code=true"):
        build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", {"encoder": str(encoder)})
    assert not mark.exists()
    settings = {"encoder": str(encoder), "trust_remote_code": True}
    hit_lists = build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", settings).search(["ba be"], 3)
    assert mark.exists() and len(hit_lists[0]) == 3

    card = json.loads((tmp_path / "index" / "index.json").read_text())
    assert "trust_remote_code" not in card["settings"]
    card["settings"]["trust_remote_code"] = True  # like an index from a stranger
    (tmp_path / "index" / "index.json").write_text(json.dumps(card))
    write_checksums(tmp_path / "index")
    mark.unlink()
    with pytest.raises(UserError, match="trust_remote_code=true"):
        open_index(tmp_path / "index").search(["ba be"], 3)
    (tmp_path / "mine.yaml").write_text("{retriever: index, path: index, settings: {trust_remote_code: true}}")
    assert open_retriever(tmp_path / "mine.yaml").search(["ba be"], 3) == hit_lists


# --- query views in the user's files: the example in write-a-part.md


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
        stored["settings"]["view"] = view  # like an index from a stranger
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
