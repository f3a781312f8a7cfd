"""Linear time: no hostile text of a passage, question, model, server or file makes a pattern or a reader slow."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from coseek.agents.protocol import FOLDER, load_protocol
from coseek.agents.scripted.extract import extract
from coseek.agents.scripted.rules import guess, with_subject
from coseek.agents.search_turns import reasoning_of
from coseek.agents.tag import QueryFormat, first_sentence, parse_flag, parse_numbers, parse_queries, parse_tool_call
from coseek.agents.tool import open_tool
from coseek.core.prompt_file import fill_template, one_line, without_role_marks
from coseek.core.text import decode
from coseek.data.answers import cover_match, f1, normalise
from coseek.data.documents.document import decoded_text, paragraphs, split
from coseek.data.documents.readers import kind_of
from coseek.data.passage import Passage
from coseek.graders.generator import ContextBudget
from coseek.graders.relevance import sure
from coseek.graders.structured_output import read_lines, read_scores
from coseek.models.judge_text import read_verdict
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.llm import neutralise_numbers, parse_ranking
from coseek.retrieval.query import PastTurn, Query
from coseek.retrieval.retrievers.simulated import parse_documents
from coseek.retrieval.views import neutralise_separator, render_view
from coseek.retrieval.web.pages import cut
from coseek.retrieval.web.providers import plain
from coseek.traces.calls import answer_in, calls_in
from coseek.traces.found_passages import found_by_query
from coseek.traces.message_forms import chat_messages

pytestmark = pytest.mark.medium

QUICK = (1_000, 10_000)
LIMIT_S = 1.0
"""Per million characters; at least a tenth of it for short texts."""

UNITS = [
    *(" ", "\n", "\t", "<", ">", "</", "< ", "<|", "<|a", "<a", "<a>", "<a<", "<search", "<search>", "</search>"),
    *("<query>", "<search><query>", "<meta charset ", "\\", "\\boxed{", "\\boxed{}", "{", "{a", "{{a}", "{documents}"),
    *("}", "[", "[1", "[1,", "[1] ", "[ ", "]", "(", " (", "()", "(\n", ")", "0", "9 ", "1,", "1.", ",", ";", "-", "*"),
    *("#", "!", "?", "!?", '!"', ".", "a.", "abc. ", "Doc 1: ", "'", '"', "&", "&#9", "&#", "_", "a", "a ", "a|b", "|"),
    *("\u0301", "a\u0301"),
    *("<answer>", "<tool_call>{", "<tool_call>{} ", "Human", "\u00e9", "\u4e2d", "\u2028", "\ue000"),
    *("[SEP]", "[ SEP ", "yes", '"question', "https://"),
]
"""Units that a hostile text repeats."""
WHOLE = [
    *(("<", " ", "x"), ("</", " ", ">"), ("<search", " ", ""), ("[", " ", "x"), ("[1]", " ", "x"), ("[1", " ", "]")),
    *(("doc", " ", "x"), ("Document 1", " ", "x"), ("(", "a", ""), ("a", " ", "(b"), ("!", '"', "x"), ("", "!", "x")),
    *(("1", ",", "a"), ("[[", "1,", "x"), ("&#", "9", ";"), ('"', "\\", '"'), ('{"query": "', "\\u", '"}')),
    *(("<|", "a", "|>"), ('{"query": [', '"a",', '"b"]}'), ("[ SEP", " ]", ""), ("", "[ ", "SEP ] ] ]")),
    ("<meta charset", " ", "x"),
]
"""Start, repeated unit and end of a hostile text."""


def hostile(size: int) -> Iterator[str]:
    for unit in UNITS:
        yield (unit * (size // len(unit) + 1))[:size]
    for first, unit, last in WHOLE:
        yield first + unit * (size // len(unit)) + last
    yield "[ " * (size // 8) + "SEP" + " ]" * (size // 8)
    yield "<a" * (size // 4) + ">" * (size // 4)


OURS = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def took_s(call: Callable[[], object], most: float = LIMIT_S) -> float:
    """Processor time of a call in seconds. If it is too long, the minimum of three calls, since caches are shared."""
    best = float("inf")
    for _ in range(3):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
        if best <= most:
            break
    return best


def check(name: str, use: Callable[[str], object]) -> None:
    """Check growing sizes, so that superlinear code fails before it takes long."""
    for size in QUICK:
        most = LIMIT_S * max(size / 1_000_000, 0.1)
        for text in hostile(size):
            took = took_s(partial(use, text), most)
            assert took <= most, f"{name}: {took:.2f} s for {len(text)} characters of {text[:24]!r}…{text[-12:]!r}"


def read_all(text: str) -> None:
    """Call everything that reads the content of a tag."""
    for reads in QueryFormat:
        parse_queries(text, reads, most=3)
    parse_tool_call(text, load_protocol("react").grammar.tools)
    parse_numbers(text)
    parse_flag(text)
    first_sentence(text)


def read_answers(text: str) -> None:
    """Call everything that reads the output of frozen models."""
    read_verdict(text)
    read_verdict(text, "[")
    read_scores(text, 3)
    read_scores(text, 3, "bare")
    read_lines(text, 3)
    sure(text)
    parse_ranking(text, 3)


def look_up(text: str) -> None:
    """Do what a lexical search and the rule-based agent do with a text."""
    words(text)
    guess("What is it ?", [Passage("a", text[:200], text)])
    guess("When was it ?", [Passage("a", "It", text)])
    guess("How many ?", [Passage("a", "It", text)])
    extract("How many a ?", [with_subject(Passage("a", "", text))])


def score(text: str) -> None:
    normalise(text)
    cover_match(text, ["Ada", "a b"])
    f1(text, ["Ada"])


def put_in_views(text: str) -> None:
    for separator in ("[SEP]", "</s>", "[ SEP ]", "a a"):
        neutralise_separator(text, separator)
    query = Query("now", text, text, (PastTurn("before", text, (text,)),))
    render_view("prior-queries+reasonings+documents", query, limit=50)
    render_view("prior-queries+reasonings+documents@paper", query, limit=50)


def read_messages(text: str) -> None:
    for role in ("user", "assistant"):
        chat_messages(
            [{"role": role, "content": text}, {"role": role, "content": f"<search>a</search>{text}"}], Counter()
        )
        calls_in({"role": role, "content": text})
    answer_in(text)
    found_by_query(text, 1)


def read_documents(text: str) -> None:
    """Do what the import of documents does with a text. Parsers run in their own process, with a time limit."""
    list(split(list(paragraphs(decoded_text(text.encode()).text)), 100, 10))
    kind_of(text, text.encode())


def read_pages(text: str) -> None:
    decode(text.encode(), "text/html")
    cut(text, 100)


BYTES = ByteTokenizer(["<search>", "</search>", "<"])
HARMLESS_WORDS = ContextBudget(1_000)
CALCULATOR = str(Path(__file__).parents[1] / "examples" / "tools" / "calculator.py")


def call_calculator(text: str) -> None:
    tool = open_tool("calculator", {"tool": CALCULATOR}, run_files=True)
    assert tool is not None and tool.parse({"expression": text}).problem


USES: dict[str, Callable[[str], object]] = {
    "reading": read_all,
    "importing documents": read_documents,
    "answers of frozen models": read_answers,
    "a user's tool": call_calculator,
    "documents of a simulated engine": lambda text: parse_documents(text, 5),
    "numbers in data": neutralise_numbers,
    "words": look_up,
    "scoring": score,
    "views": put_in_views,
    "snippets": plain,
    "pages": read_pages,
    "messages of logs": read_messages,
    "templates": lambda text: (fill_template(text, query="x"), one_line(text, 100)),
    "role marks": without_role_marks,
    "budget": lambda text: (HARMLESS_WORDS.count(text), HARMLESS_WORDS.cut(text, 100)),
    "ids of bytes": lambda text: (BYTES.encode(text), BYTES.encode_data(text)),
}


@pytest.mark.parametrize("name", OURS)
def test_no_passage_stalls_an_agent(name: str) -> None:
    grammar = load_protocol(name).grammar
    check(name, grammar.escape)
    check(name, grammar.intent)
    check(name, grammar.lost_stop)
    check(name, lambda text: reasoning_of(grammar, grammar.parse(text)))


@pytest.mark.parametrize("name", sorted(USES))
def test_no_reader_takes_longer_than_its_text_is_long(name: str) -> None:
    check(name, USES[name])


SEARCH_O1 = load_protocol("search-o1").grammar


@given(st.text("{}a", max_size=16))
def test_a_bracket_ends_where_its_depth_says(text: str) -> None:
    """The content of `\\boxed{…}`, by counting brackets from its opening."""
    written = "\\boxed{" + text
    depth, end = 1, None
    for at, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            end = at
            break
    span = SEARCH_O1.intent(written).span
    assert (span.text if span else None) == (None if end is None else text[:end])
