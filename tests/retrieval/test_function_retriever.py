"""A function of (query, k) is a retriever, and a function of a query is a view."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import coseek
from coseek import Passage, Query, Question
from coseek.core.errors import RetrieverError, SettingError, UnknownName
from coseek.core.plugins import load_plugin
from coseek.retrieval.factory import CONTRACT, FunctionRetriever, as_retriever, open_retriever, retriever_name
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.views import find_view, render_view, view_name


def shelf(query: str, k: int) -> Sequence[Passage | str]:
    """Two of one kind, one of the other."""
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
    "rising scores": ("[[Hit(a, 1.0), Hit(b, 2.0)]] * len(queries)", "with falling scores"),
    "a passage twice": ("[[Hit(a, 1.0), Hit(a, 0.5)]] * len(queries)", "the passage 'a' twice"),
    "more than was asked for": ("[[Hit(a, 1.0), Hit(b, 0.5)] * k] * len(queries)", "hits, of 2 at most"),
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
