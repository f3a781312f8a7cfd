"""Fears about models around a retriever: a judgement that nobody could read ranked as a 0, an expansion that loses the
query, a failure that looks like an empty result."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.scripted import Scripted

from coseek.core.errors import ModelError, RetrieverError, UnknownName
from coseek.core.prompt_file import load_prompt
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.measure.searched import search_questions
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.text_model import texts_of
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.expanded import EXPANSION_FIELDS, ExpandedRetriever, ExpandedSettings, ExpansionPrompt
from coseek.retrieval.retrievers.pointwise import (
    POINTWISE_FIELDS,
    PointwisePrompt,
    PointwiseReranker,
    PointwiseSettings,
)

CORPUS = Corpus(Passage(f"p{worth}", f"Passage {worth}", f"It is worth {worth} points.") for worth in range(6))
CANDIDATES = FixedRetriever(CORPUS, {"q": [passage.id for passage in CORPUS], "few": ["p1"]})


def pointwise(says: Callable[[str], str], prompt: str = "pointwise", fault: str = "") -> PointwiseReranker:
    settings = make_settings(PointwiseSettings, {"over": "-", "model": "-", "prompt": prompt})
    file = load_prompt(PointwisePrompt, prompt, Path(), POINTWISE_FIELDS, PROMPTS)
    return PointwiseReranker(CANDIDATES, settings, Scripted(says, fault), file)


def expanded(says: Callable[[str], str], prompt: str = "hyde", fault: str = "", **more: str) -> ExpandedRetriever:
    settings = make_settings(ExpandedSettings, {"over": "-", "model": "-", "prompt": prompt, **more})
    file = load_prompt(ExpansionPrompt, prompt, Path(), EXPANSION_FIELDS, PROMPTS)
    return ExpandedRetriever(CANDIDATES, settings, Scripted(says, fault), file)


def worth(prompt: str) -> int:
    found = re.search(r"worth (\d) points", prompt)
    assert found
    return int(found[1])


def ids(retriever: PointwiseReranker, k: int = 6) -> list[str]:
    return [hit.passage.id for hit in retriever.search(["q"], k)[0]]


@pytest.mark.parametrize("form", ["{}", "**{}**", "Score: {}", "```\n{}\n```", "<think>10?</think>\n{}/100"])
def test_passages_are_ordered_by_the_scores_as_models_write_them(form: str) -> None:
    retriever = pointwise(lambda prompt: form.format(10 * worth(prompt)))
    assert ids(retriever) == ["p5", "p4", "p3", "p2", "p1", "p0"]
    assert retriever.stats.unreadable == 0
    assert [hit.score for hit in retriever.search(["few", "q"], 2)[1]] == [1.0, 0.5]


@pytest.mark.parametrize("odd", ["I cannot say.", "", "250", "10 or 20", "-5", "٣"])
def test_a_judgement_that_cannot_be_read_keeps_its_place_and_is_no_0(odd: str) -> None:
    retriever = pointwise(lambda prompt: odd if worth(prompt) in (0, 3) else str(worth(prompt)))
    assert ids(retriever) == ["p0", "p5", "p4", "p3", "p2", "p1"]
    assert (retriever.stats.passages, retriever.stats.unreadable) == (6, 2)


def test_rank1_reasons_and_then_says_true_or_false() -> None:
    retriever = pointwise(lambda prompt: f"<think>true? false?</think> {worth(prompt) > 3}", "rank1")
    assert ids(retriever) == ["p4", "p5", "p0", "p1", "p2", "p3"]
    cut = pointwise(lambda prompt: "<think>it is tr", "rank1")
    assert ids(cut) == [f"p{number}" for number in range(6)] and cut.stats.unreadable == 6


def test_a_model_that_fails_is_a_fault_of_the_search() -> None:
    for retriever in (pointwise(str, fault="down"), expanded(str, fault="down")):
        with pytest.raises(RetrieverError, match="down"):
            retriever.search(["q"], 2)
        assert retriever.search([], 2) == []


class Refusing(Scripted):
    """Refuses the prompts that hold a word, and writes the others of a batch."""

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        written = super().write(prompts, max_tokens)
        return texts_of([ModelError("400") if "bad" in p else text for p, text in zip(prompts, written, strict=True)])


def test_a_refused_prompt_of_a_model_retriever_fails_no_other_query() -> None:
    asked = ["q", "few", "bad", "none", "q"]
    model = Refusing(lambda _: "a passage")
    retriever = expanded(lambda _: "")
    retriever._model = model
    questions = [Question(str(number), text, ()) for number, text in enumerate(asked)]
    ((*found,),) = search_questions(retriever, questions, 2)
    assert [one.fault is None for _, one in found] == [query != "bad" for query in asked]


def test_hyde_searches_the_made_up_passage_behind_the_query_or_in_its_place() -> None:
    asked: list[str] = []

    class Told(FixedRetriever):
        def search(self, queries, k):  # type: ignore[no-untyped-def]
            asked.extend(self.seen(query) for query in queries)
            return super().search(queries, k)

    told = Told(CORPUS, {})
    for combine, wanted in (("append", "who? Ada was born in 1815."), ("replace", "Ada was born in 1815.")):
        retriever = expanded(lambda _: "Ada was\nborn in 1815.", combine=combine)
        retriever.over = told
        retriever.search([Query("who?", question="Q", reasoning="R")], 2)
        assert asked.pop() == wanted and not asked
    silent, bare = expanded(lambda _: ""), expanded(lambda _: "born")
    for query in ("who?", Query("who?")):  # which are seen alike
        assert silent._expand(query, "") == "who?" and bare._expand(query, "born") == Query(
            "who? born", question="who?"
        )
    rewriter = expanded(lambda _: "It asks for a person.\nSearch for: Ada Lovelace birth", "reason-rewriter")
    rewriter.over = told
    rewriter.search(["who?"], 2)
    assert asked.pop() == "who? Ada Lovelace birth"


@pytest.mark.parametrize(
    ("output", "prompt"), [("I would rather not.", "reason-rewriter"), ("<think>Who might it be", "hyde")]
)
def test_an_output_without_a_text_searches_the_query_as_it_is_and_is_counted(output: str, prompt: str) -> None:
    retriever = expanded(lambda _: output, prompt)
    assert [hit.passage.id for hit in retriever.search(["q"], 2)[0]] == ["p0", "p1"]
    assert (retriever.stats.queries, retriever.stats.unexpanded) == (1, 1)


def test_the_identity_and_what_is_seen_change_with_prompt_and_setting() -> None:
    made = [expanded(str), expanded(str, "reason-rewriter"), expanded(str, combine="replace")]
    points = [pointwise(str), pointwise(str, "rank1")]
    assert len({one.identity for one in made} | {one.identity for one in points}) == 5
    assert made[0].seen("q") != made[0].seen("few")
    with pytest.raises(UnknownName, match="rank1"):
        load_prompt(PointwisePrompt, "rank2", Path(), POINTWISE_FIELDS, PROMPTS)


@pytest.mark.slow
def test_both_run_with_a_real_model_over_a_real_index(tmp_path: Path) -> None:
    texts = [passage.contents for passage in CORPUS] * 5
    small = LaptopSettings(hidden=32, heads=2, kv_heads=1, feed_forward=32, vocabulary=400)
    make_policy(small, texts, (), tmp_path / "m", seed=3)
    (tmp_path / "data").mkdir()
    CORPUS.save(tmp_path / "data" / "corpus.jsonl")
    build_index(tmp_path / "data", "bm25", tmp_path / "index")
    (tmp_path / "both.yaml").write_text(
        "retriever: pointwise\nover: {retriever: expanded, over: index, model: m, max_tokens: 8}\n"
        "model: m\nmax_tokens: 4\n"
    )
    retriever = open_retriever(tmp_path / "both.yaml")
    first, again = (retriever.search(["worth points", "passage"], 3) for _ in range(2))
    assert first == again and all(len(hits) == 3 for hits in first)
