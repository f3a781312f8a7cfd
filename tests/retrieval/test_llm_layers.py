"""Fears about models around a retriever: a judgement that nobody could read ranked as a 0, an expansion that loses the
query, a failure that looks like an empty result."""

import random
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.scripted import Scripted

from coseek.core.errors import ModelError, RetrieverError, UnknownName
from coseek.core.prompt_file import load_prompt
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.measure.searched import search_questions
from coseek.models.text_model import CutText, texts_of
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.retrieval.llm import (
    LISTWISE_FIELDS,
    PROMPTS,
    ListwisePrompt,
    fill_listwise_prompt,
    parse_ranking,
    sliding_together,
    spans,
)
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.expanded import ExpandedRetriever, ExpandedSettings, ExpansionPrompt
from coseek.retrieval.retrievers.listwise import ListwiseReranker, ListwiseSettings
from coseek.retrieval.retrievers.pointwise import PointwisePrompt, PointwiseReranker, PointwiseSettings

SIX = Corpus(Passage(f"p{worth}", f"Passage {worth}", f"It is worth {worth} points.") for worth in range(6))
FIRST_STAGE = FixedRetriever(SIX, {"q": [passage.id for passage in SIX], "few": ["p1"]})


def pointwise(says: Callable[[str], str], prompt: str = "pointwise", fault: str = "") -> PointwiseReranker:
    settings = make_settings(PointwiseSettings, {"over": "-", "model": "-", "prompt": prompt})
    file = load_prompt(PointwisePrompt, prompt, Path(), PointwiseReranker.FIELDS, PROMPTS)
    return PointwiseReranker(FIRST_STAGE, settings, Scripted(says, fault), file)


def expanded(says: Callable[[str], str], prompt: str = "hyde", fault: str = "", **more: str) -> ExpandedRetriever:
    settings = make_settings(ExpandedSettings, {"over": "-", "model": "-", "prompt": prompt, **more})
    file = load_prompt(ExpansionPrompt, prompt, Path(), ExpandedRetriever.FIELDS, PROMPTS)
    return ExpandedRetriever(FIRST_STAGE, settings, Scripted(says, fault), file)


def worth(prompt: str) -> int:
    match = re.search(r"worth (\d) points", prompt)
    assert match
    return int(match[1])


def ids(retriever: PointwiseReranker, k: int = 6) -> list[str]:
    return [hit.passage.id for hit in retriever.search(["q"], k)[0]]


@pytest.mark.parametrize("form", ["{}", "**{}**", "Score: {}", "```\n{}\n```", "<think>10?</think>\n{}/100"])
def test_passages_are_ordered_by_the_scores_as_models_write_them(form: str) -> None:
    retriever = pointwise(lambda prompt: form.format(10 * worth(prompt)))
    assert ids(retriever) == ["p5", "p4", "p3", "p2", "p1", "p0"]
    assert retriever.stats.unreadable == 0
    assert [hit.score for hit in retriever.search(["few", "q"], 2)[1]] == [1.0, 0.5]


@pytest.mark.parametrize("odd", ["I cannot say.", "", "250", "10 or 20", "-5", "٣", CutText("9")])
def test_a_judgement_that_cannot_be_read_keeps_its_place_and_is_no_0(odd: str) -> None:
    retriever = pointwise(lambda prompt: odd if worth(prompt) in (0, 3) else str(worth(prompt)))
    assert ids(retriever) == ["p0", "p5", "p4", "p3", "p2", "p1"]
    assert (retriever.stats.outputs, retriever.stats.unreadable) == (6, 2)


def test_rank1_reasons_and_then_says_true_or_false() -> None:
    retriever = pointwise(lambda prompt: f"<think>true? false?</think> {worth(prompt) > 3}", "rank1")
    assert ids(retriever) == ["p4", "p5", "p0", "p1", "p2", "p3"]
    cut = pointwise(lambda prompt: "<think>it is tr", "rank1")
    assert ids(cut) == [f"p{number}" for number in range(6)] and cut.stats.unreadable == 6


def test_a_model_that_fails_is_a_fault_of_the_search() -> None:
    for retriever in (pointwise(str, fault="down"), expanded(str, fault="down"), listwise(str, fault="down")[0]):
        with pytest.raises(RetrieverError, match=f"the model of the retriever {retriever.name} failed: down"):
            retriever.search(["q"], 2)
        assert retriever.search([], 2) == []


class Refusing(Scripted):
    """Refuses prompts with the word `bad`, and answers the others of a batch."""

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        written = super().write(prompts, max_tokens)
        return texts_of([ModelError("400") if "bad" in p else text for p, text in zip(prompts, written, strict=True)])


def test_a_refused_prompt_of_a_model_retriever_fails_no_other_query() -> None:
    queries = ["q", "few", "bad", "none", "q"]
    model = Refusing(lambda _: "a passage")
    retriever = expanded(lambda _: "")
    retriever._model = model
    questions = [Question(str(number), text, ()) for number, text in enumerate(queries)]
    ((*results,),) = search_questions(retriever, questions, 2)
    assert [search.fault is None for _, search in results] == [query != "bad" for query in queries]


def test_a_blank_query_is_not_expanded_and_finds_nothing() -> None:
    retriever = expanded(lambda _: "q", combine="replace")
    assert [len(hits) for hits in retriever.search(["who?", " ", Query("", question="Q")], 2)] == [2, 0, 0]
    assert retriever.stats.outputs == 1


def test_hyde_searches_the_made_up_passage_behind_the_query_or_in_its_place() -> None:
    seen_queries: list[str] = []

    class Told(FixedRetriever):
        def search(self, queries, k):  # type: ignore[no-untyped-def]
            seen_queries.extend(self.seen(query) for query in queries)
            return super().search(queries, k)

    told = Told(SIX, {})
    for combine, wanted in (("append", "who? Ada was born in 1815."), ("replace", "Ada was born in 1815.")):
        retriever = expanded(lambda _: "Ada was\nborn in 1815.", combine=combine)
        retriever.over = told
        retriever.search([Query("who?", question="Q", reasoning="R")], 2)
        assert seen_queries.pop() == wanted and not seen_queries
    silent, bare = expanded(lambda _: ""), expanded(lambda _: "born")
    for query in ("who?", Query("who?")):  # both are seen as the same text
        assert silent._expand(query, "") == "who?" and bare._expand(query, "born") == Query(
            "who? born", question="who?"
        )
    rewriter = expanded(lambda _: "It asks for a person.\nSearch for: Ada Lovelace birth", "reason-rewriter")
    rewriter.over = told
    rewriter.search(["who?"], 2)
    assert seen_queries.pop() == "who? Ada Lovelace birth"


@pytest.mark.parametrize(
    ("output", "prompt"), [("I would rather not.", "reason-rewriter"), ("<think>Who might it be", "hyde")]
)
def test_an_output_without_a_text_searches_the_query_as_it_is_and_is_counted(output: str, prompt: str) -> None:
    retriever = expanded(lambda _: output, prompt)
    assert [hit.passage.id for hit in retriever.search(["q"], 2)[0]] == ["p0", "p1"]
    assert (retriever.stats.outputs, retriever.stats.unreadable) == (1, 1)


def test_the_identity_and_what_is_seen_change_with_prompt_and_setting() -> None:
    made = [expanded(str), expanded(str, "reason-rewriter"), expanded(str, combine="replace")]
    points = [pointwise(str), pointwise(str, "rank1")]
    assert len({variant.identity for variant in made} | {variant.identity for variant in points}) == 5
    assert made[0].seen("q") != made[0].seen("few")
    with pytest.raises(UnknownName, match="rank1"):
        load_prompt(PointwisePrompt, "rank2", Path(), PointwiseReranker.FIELDS, PROMPTS)


# --- a model that ranks: a passage that forges a number, an answer that loses a passage, a silent failure


PROMPT = load_prompt(ListwisePrompt, "listwise", Path(), LISTWISE_FIELDS, PROMPTS)
CORPUS = Corpus(Passage(f"p{worth:02}", f"Passage {worth}", f"It is worth {worth} points.") for worth in range(40))
IDS = [passage.id for passage in CORPUS]
CANDIDATES = FixedRetriever(CORPUS, {"q": IDS, "few": ["p03", "p07"], "one": ["p05"]})


def by_worth(prompt: str) -> str:
    """A perfect ranker: more points first."""
    shown = re.findall(r"^\[(\d+)\] .* worth (\d+) points", prompt, flags=re.MULTILINE)
    ranked = sorted(shown, key=lambda row: -int(row[1]))
    return " > ".join(f"[{number}]" for number, _ in ranked)


def listwise(says: Callable[[str], str], fault: str = "", **given: object) -> tuple[ListwiseReranker, Scripted]:
    model = Scripted(says, fault)
    tree = {"over": "-", "model": "-", "depth": 40, **given}
    return ListwiseReranker(CANDIDATES, make_settings(ListwiseSettings, tree), model, PROMPT), model


def test_passages_that_are_not_named_keep_their_order_behind_the_others() -> None:
    reading = parse_ranking("[4] > [2]", 5)
    assert reading.order == (3, 1, 0, 2, 4)
    assert (reading.missing, reading.repeated, reading.invented) == (3, 0, 0)


def test_repeated_and_invented_numbers_are_passed_over_and_counted() -> None:
    reading = parse_ranking("[2] > [2] > [9] > [0] > [1]", 2)
    assert reading.order == (1, 0)
    assert (reading.missing, reading.repeated, reading.invented) == (0, 1, 2)


@pytest.mark.parametrize("answer", ["", "2 > 1 > 3", "I cannot tell.", "[] > [x] > [-1]", "[７]", "[99999999999999]"])
def test_an_answer_that_names_nothing_keeps_the_order(answer: str) -> None:
    reading = parse_ranking(answer, 3)
    assert reading.order == (0, 1, 2)
    assert reading.unreadable


def test_thinking_aloud_is_not_the_ranking() -> None:
    assert parse_ranking("[1] is off topic, and so is [2]; but [3] helps.\n[3] > [2] > [1]", 3).order == (2, 1, 0)
    assert parse_ranking("First I wrote [1] > [2] > [3]. No: [3] > [1] > [2]", 3).order == (2, 0, 1)


@given(st.text(st.sampled_from("[]0123456789 >,\nx"), max_size=60) | st.text(max_size=40), st.integers(0, 12))
def test_any_answer_gives_every_passage_one_place(answer: str, count: int) -> None:
    reading = parse_ranking(answer, count)
    assert sorted(reading.order) == list(range(count))
    assert 0 <= reading.missing <= count


@given(
    st.permutations(range(8)), st.sampled_from([" > ", ">", ", ", " ", "\n", " >> ", " = ", "\n- ", "\n* ", "\n7. "])
)
@pytest.mark.parametrize("item", ["[{}]", "**[{}]**", "Passage [{}]", "`[{}]`"])
@pytest.mark.parametrize("comment", ["", " A title, of 1984", ": why"])
def test_a_whole_ranking_is_read_as_it_was_written(item: str, comment: str, order: list[int], joint: str) -> None:
    comment = comment if "\n" in joint else ""
    lines = [f"{item.format(index + 1)}{comment}" for index in order]
    assert parse_ranking(joint.join(["The ranking is", *lines]), 8).order == tuple(order)


def test_numbers_in_sentences_are_no_ranking_but_a_single_number_is_one() -> None:
    assert parse_ranking("The best is [2], then [1].", 3).unreadable
    assert parse_ranking("The best is [2].", 3).order == (1, 0, 2)
    assert parse_ranking("[1] is on cats.\n[2] is on dogs.\n\n[2] > [1]", 2).order == (1, 0)


@given(st.lists(st.text(st.sampled_from("[]0123456789 x\n{}"), max_size=30), min_size=3, max_size=3))
def test_a_passage_or_a_query_cannot_forge_a_number_or_a_line(texts: list[str]) -> None:
    title, text, query = texts
    shown = fill_listwise_prompt(PROMPT, query, [Passage("a", title, text), Passage("b", "", "fine")], 100)
    plain = fill_listwise_prompt(PROMPT, "", [Passage("a", "", ""), Passage("b", "", "fine")], 100)
    numbers = r"\[\s*\d+\s*\]"
    assert re.findall(numbers, shown) == re.findall(numbers, plain)
    assert shown.count("\n") == plain.count("\n")


def test_a_model_that_is_always_right_brings_the_best_to_the_front() -> None:
    retriever, model = listwise(by_worth)
    hits = retriever.search(["q"], 10)[0]
    assert [hit.passage.id for hit in hits] == list(reversed(IDS))[:10]
    assert [hit.score for hit in hits] == [1 / rank for rank in range(1, 11)]
    assert len(model.calls) == retriever.stats.outputs == 3
    assert retriever.stats.unreadable == 0


def test_queries_together_are_ranked_as_they_are_alone_in_as_few_calls() -> None:
    retriever, model = listwise(by_worth)
    together = retriever.search(["few", "q", "one", "nothing"], 5)
    assert len(model.calls) == 3
    assert together == [retriever.search([query], 5)[0] for query in ("few", "q", "one", "nothing")]
    assert [hit.passage.id for hit in together[0]] == ["p07", "p03"]


@pytest.mark.parametrize("answer", ["No idea.", CutText("[7] > [3] > [1")])
def test_an_answer_that_is_no_ranking_keeps_the_order_and_is_counted(answer: str) -> None:
    retriever, _ = listwise(lambda prompt: answer)
    assert [hit.passage.id for hit in retriever.search(["q"], 40)[0]] == IDS
    assert retriever.stats.unreadable == retriever.stats.outputs == 3


def test_the_identity_of_a_ranker_knows_prompt_model_and_settings() -> None:
    first, model = listwise(by_worth)
    kinds = {first.identity, listwise(by_worth, window=8, step=4)[0].identity}
    other = PROMPT.model_copy(update={"prompt": "{passages} {query}"})
    kinds.add(ListwiseReranker(CANDIDATES, first.settings, model, other).identity)
    kinds.add(ListwiseReranker(CANDIDATES, first.settings, Scripted(by_worth, identity="another"), PROMPT).identity)
    assert len(kinds) == 4
    assert listwise(by_worth)[0].identity in kinds


def test_a_yaml_file_with_a_prompt_of_ones_own(tmp_path: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path, "bm25", tmp_path / "bm25")
    (tmp_path / "mine.yaml").write_text("prompt: '{passages} Rank for {query}:'\npassage: '<{number}> {text} '\n")
    lines = "retriever: listwise\nover: bm25\nmodel: judge\nprompt: mine.yaml\n"
    (tmp_path / "ranked.yaml").write_text(lines)
    model = Scripted(lambda prompt: "[2] > [1]")
    retriever = open_retriever(tmp_path / "ranked.yaml", model=lambda name: model)
    plain = open_retriever(tmp_path / "bm25").search(["worth 7 points"], 2)[0]
    assert [hit.passage.id for hit in retriever.search(["worth 7 points"], 2)[0]][1] == plain[0].passage.id
    assert model.calls[-1][0].endswith("Rank for worth 7 points:")


# --- sliding windows: an item that no window ever holds, an item that is lost


def perfect(items: list[int]) -> list[int]:
    return sorted(range(len(items)), key=items.__getitem__)


def shapes() -> st.SearchStrategy[tuple[int, int]]:
    return st.integers(2, 12).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window - 1)))


@given(st.integers(0, 60), shapes())
def test_every_item_is_in_a_window_and_neighbours_overlap(count: int, shape: tuple[int, int]) -> None:
    window, step = shape
    cuts = spans(count, window, step)
    assert {item for start, end in cuts for item in range(start, end)} == (set(range(count)) if count > 1 else set())
    assert all(end - start <= window for start, end in cuts)
    assert all(next_end - start >= window - step for (start, _), (_, next_end) in pairwise(cuts))


@given(st.permutations(range(30)), st.integers(0, 30), shapes())
def test_if_every_window_is_ranked_rightly_the_best_window_less_step_items_are_in_front(
    items: list[int], count: int, shape: tuple[int, int]
) -> None:
    window, step = shape
    ranking = sliding_together([items[:count]], lambda windows: [perfect(held) for _, held in windows], window, step)[0]
    best = sorted(items[:count])
    assert ranking[: window - step] == best[: window - step]
    assert sorted(ranking) == best


@given(st.lists(st.integers(0, 40), max_size=5), shapes(), st.integers(0, 10_000))
def test_whatever_the_ranker_says_nothing_is_lost_and_lists_do_not_touch_each_other(
    counts: list[int], shape: tuple[int, int], seed: int
) -> None:
    window, step = shape
    orders = [[(number, item) for item in range(count)] for number, count in enumerate(counts)]

    def drawn(number: int, items: list[tuple[int, int]]) -> list[int]:
        return random.Random(f"{seed} {items}").sample(range(len(items)), k=len(items))

    together = sliding_together(
        orders, lambda windows: [drawn(number, items) for number, items in windows], window, step
    )
    assert [sorted(ranking) for ranking in together] == orders
    for number, order in enumerate(orders):
        alone = sliding_together([order], lambda windows: [drawn(0, items) for _, items in windows], window, step)
        assert alone[0] == together[number]
