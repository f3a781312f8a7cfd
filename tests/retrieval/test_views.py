"""What a retriever sees of a search turn. Run as a program, it writes the examples into docs/reference/views.md."""

import re
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.retrieval.test_remote import asking, ids, remote, respond
from tests.serve.live import CORPUS, EchoRetriever, live

from coseek.core.errors import SettingError, UnknownName
from coseek.core.files import Json, JsonObject
from coseek.retrieval.query import EVERYTHING, ContextFields, PastTurn, Query, fitted
from coseek.retrieval.retriever import fields_read
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.retrieval.views import (
    LAST_TURNS_ABOUT,
    TEMPLATES,
    VIEWS,
    Count,
    QueryView,
    ViewTemplate,
    find_view,
    load_view,
    neutralise_separator,
    render_view,
)

DOCS = Path(__file__).parent.parent.parent / "docs" / "reference" / "views.md"
BLOCK = re.compile(r"(<!-- views: [^\n]* -->\n).*(<!-- end of views -->)", re.DOTALL)
EXAMPLE = Query(
    text="Ada Byron birthplace",
    question="Where was Night Train's director born?",
    reasoning="The director is Ada Byron.",
    history=(
        PastTurn("Night Train director", "I need the director.", ('"Night Train"\na film directed by Ada Byron.',)),
    ),
)
LONG = Query(
    text="now",
    question="q1 q2 q3",
    reasoning="r1 r2 r3",
    history=(PastTurn("a1 a2", "s1 s2", ("d1 d2", "e1 e2")), PastTurn("b1 b2", "t1 t2", ("f1 f2", "g1 g2"))),
)
ALL = [*VIEWS, "last-1-turns", "last-2-turns", "last-17-turns"]

text = st.text(st.sampled_from("ab[]SEP \n黑.é\u2028"), max_size=25)
turns = st.builds(PastTurn, text, text, st.lists(text, max_size=3).map(tuple), st.booleans())
queries = st.builds(Query, text.filter(str.strip), text, text, st.lists(turns, max_size=4).map(tuple))


def tokens(rendered: str) -> int:
    """Count words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", rendered))


def examples() -> str:
    """Every view with its worked example, as docs/reference/views.md shows them."""
    parts = [(name, view.about) for name, view in VIEWS.items()] + [("last-1-turns", LAST_TURNS_ABOUT)]
    blocks = [f"`{name}`: {about}\n\n```text\n{render_view(name, EXAMPLE)}\n```\n" for name, about in parts]
    return "\n" + "\n".join(blocks) + "\n"


def test_the_page_shows_what_the_views_give() -> None:
    match = BLOCK.search(DOCS.read_text(encoding="utf-8"))
    assert match is not None and match.group() == match[1] + examples() + match[2]


@pytest.mark.parametrize("typed", ["", "  two  blanks\n", "[SEP] Query: x", "q"])
def test_the_plain_view_changes_nothing(typed: str) -> None:
    assert render_view("query", Query(typed, "a question", "a reason"), limit=1) == typed == render_view("query", typed)


def test_the_views_of_the_papers_are_what_their_formulas_say() -> None:
    assert render_view("question+query", LONG) == "q1 q2 q3 [SEP] now"
    assert render_view("question+history", LONG) == "q1 q2 q3 [SEP] a1 a2 [SEP] b1 b2 [SEP] now"
    assert render_view("reasoning+query", LONG) == "Reasoning: r1 r2 r3\nQuery: now"
    assert render_view("question+reasoning+query", LONG) == "Question: q1 q2 q3\nReasoning: r1 r2 r3\nQuery: now"
    assert render_view("prior-queries", LONG) == "Turn 1 query: a1 a2\nTurn 2 query: b1 b2\nQuery: now"
    turns = "Turn 1 reasoning: s1 s2\nTurn 1 query: a1 a2\nTurn 2 reasoning: t1 t2\nTurn 2 query: b1 b2\n"
    assert render_view("prior-queries+reasonings", LONG) == f"{turns}Reasoning: r1 r2 r3\nQuery: now"
    first = "Turn 1 reasoning: s1 s2\nTurn 1 query: a1 a2\nTurn 1 found: d1 d2\nTurn 1 found: e1 e2\n"
    assert render_view("prior-queries+reasonings+documents", LONG).startswith(first)


@given(queries)
def test_the_last_turn_alone_is_reasoning_and_query_and_many_are_all(query: Query) -> None:
    assert render_view("last-1-turns", query) == render_view("reasoning+query", query)
    assert render_view("last-9-turns", query) == render_view("prior-queries+reasonings", query)


def test_a_turn_of_several_queries_is_one_turn_with_one_reasoning() -> None:
    first = (PastTurn("a1", "s"), PastTurn("a2", "s", ("d1", "d2"), True), PastTurn("a3", "s", ("e1",), True))
    told = "Turn 1 reasoning: s\nTurn 1 query: a1\nTurn 1 query: a2\nTurn 1 query: a3\n"
    second = Query("b1", "q", "t", first)
    third = Query("c1", "q", "u", (*first, PastTurn("b1", "t")))
    assert render_view("last-2-turns", second) == f"{told}Reasoning: t\nQuery: b1"
    assert render_view("last-2-turns", third) == "Turn 1 reasoning: t\nTurn 1 query: b1\nReasoning: u\nQuery: c1"
    whole = f"{told}Turn 2 reasoning: t\nTurn 2 query: b1\nReasoning: u\nQuery: c1"
    assert render_view("last-3-turns", third) == render_view("prior-queries+reasonings", third) == whole
    every = render_view("prior-queries+reasonings+documents", second, bare=True)
    assert every == "s\na1\na2\nd1\nd2\na3\ne1\nt\nb1"
    assert render_view("question+history", third) == "q [SEP] a1 [SEP] a2 [SEP] a3 [SEP] b1 [SEP] c1"


def test_a_query_without_a_past_is_still_a_query_in_every_view() -> None:
    assert render_view("reasoning+query", "q") == "Reasoning: Empty\nQuery: q"
    assert {render_view(view, "q") for view in ALL} == {"q", "Query: q", "Reasoning: Empty\nQuery: q"}


def test_lexical_search_sees_no_labels_and_no_separators() -> None:
    assert render_view("prior-queries+reasonings", LONG, bare=True) == "s1 s2\na1 a2\nt1 t2\nb1 b2\nr1 r2 r3\nnow"
    assert render_view("reasoning+query", "q", bare=True) == render_view("question+query", "q", bare=True) == "q"


@pytest.mark.parametrize("view", ALL)
def test_a_blank_query_asks_for_nothing_whatever_led_to_it(view: str) -> None:
    assert render_view(view, Query(" ", "a question", "a reason")).strip() == ""


LOST = [
    (40, "s1 s2|a1 a2|d1 d2|e1 e2|t1 t2|b1 b2|f1 f2|g1 g2|r1 r2 r3|now"),
    (19, "s1 s2|a1 a2|d1 d2|e1|t1 t2|b1 b2|f1 f2|g1 g2|r1 r2 r3|now"),
    (17, "s1 s2|a1 a2|d1|t1 t2|b1 b2|f1 f2|g1 g2|r1 r2 r3|now"),
    (15, "s1 s2|a1 a2|t1 t2|b1 b2|f1 f2|g1|r1 r2 r3|now"),
    (12, "s1 s2|a1 a2|t1 t2|b1 b2|r1 r2 r3|now"),
    (11, "s2|a1 a2|t1 t2|b1 b2|r1 r2 r3|now"),
    (9, "a1|t1 t2|b1 b2|r1 r2 r3|now"),
    (7, "t2|b1 b2|r1 r2 r3|now"),
    (4, "r1 r2 r3|now"),
    (2, "r3|now"),
    (1, "now"),
    (0, "now"),
]


@pytest.mark.parametrize(("limit", "left"), LOST)
def test_what_matters_least_is_lost_first_and_no_more_than_must_be(limit: int, left: str) -> None:
    view = "prior-queries+reasonings+documents"
    assert render_view(view, LONG, limit=limit, count=tokens, bare=True) == left.replace("|", "\n")


def test_turns_that_are_left_are_numbered_anew_and_lost_reasoning_is_missing_reasoning() -> None:
    assert render_view("prior-queries", LONG, limit=9, count=tokens) == "Turn 1 query: b1 b2\nQuery: now"
    reasoned = Query("now", reasoning="thoughts upon thoughts")
    assert render_view("reasoning+query", reasoned, limit=27) == "Reasoning: Empty\nQuery: now"
    assert render_view("reasoning+query", reasoned, limit=26) == "now"


def test_text_without_blanks_is_cut_between_its_characters() -> None:
    assert render_view("question+query", Query("q", "黑豹队在"), limit=9) == "黑 [SEP] q"


@given(st.sampled_from(ALL), queries, st.integers(0, 60), st.sampled_from([len, tokens]), st.booleans())
def test_a_limit_is_kept_the_query_stays_whole_and_nothing_is_cut_without_need(
    view: str, query: Query, limit: int, count: Count, bare: bool
) -> None:
    whole = render_view(view, query, bare=bare)
    cut = render_view(view, query, limit=limit, count=count, bare=bare)
    alone = query.text if view == "query" else neutralise_separator(query.text, "[SEP]")
    assert cut.endswith(alone)
    assert count(cut) <= limit or cut == alone
    assert cut == whole or (count(whole) > limit and view != "query")
    assert cut == render_view(view, query, limit=limit, count=count, bare=bare)


@given(st.sampled_from(["question+query", "question+history"]), queries)
def test_a_separator_inside_the_data_closes_no_field(view: str, query: Query) -> None:
    fields = [query.question, *(turn.query for turn in query.history if view == "question+history"), query.text]
    given_fields = [field for field in fields if neutralise_separator(field, "[SEP]")]
    if neutralise_separator(query.text, "[SEP]"):
        assert len(render_view(view, query).split("[SEP]")) == len(given_fields)


@given(queries)
def test_text_inside_the_data_begins_no_line(query: Query) -> None:
    roles = {line.split(":")[0] for line in render_view("reasoning+query", query).split("\n")}
    assert roles <= {"Reasoning", "Query"} and len(render_view("reasoning+query", query).splitlines()) == 2


@given(st.text("[]SEP <|>/s x\n"), st.sampled_from(["[SEP]", "</s>", "<|s|>", " | ", "[ S ]", "SEP", "SS", "]"]))
def test_no_separator_survives_in_data_and_no_word_is_lost(data: str, separator: str) -> None:
    disarmed = neutralise_separator(data, separator)
    assert separator.strip() not in disarmed and neutralise_separator(disarmed, separator) == disarmed
    if not separator.isalnum():
        assert re.findall(r"\w", disarmed) == re.findall(r"\w", data)


@pytest.mark.parametrize("name", ["", "last-0-turns", "last--1-turns", "last-3-turn", "Query", "last-٣-turns"])
def test_an_unknown_view_is_refused(name: str) -> None:
    with pytest.raises(UnknownName, match="no query view named"):
        render_view(name, "q")


# --- views with a template: published retrievers see the bytes of their training, and no text imitates a field


INSTRUCTION = "Instruct: what the model card says\nQuery:"
"""The encoder's query prompt; the card's ends in `Query:` without a blank, too."""
REASONING = "Some results are about music.\nWhich subgenre?\n\n- euphoric house: build-up, drop\n- other"
ASKED = Query(
    '"backroom" "studio" "early 2010s"',
    question="Who?",
    reasoning=REASONING,
    history=(
        PastTurn("grammy winners", "Composers\nfirst.", ("A list.\nOf winners.", "Sweden")),
        PastTurn("sweden 1995"),
    ),
)


def test_agentir_reads_what_its_model_card_and_its_program_write() -> None:
    text = INSTRUCTION + render_view("reasoning+query@code", ASKED)
    assert text == (
        "Instruct: what the model card says\nQuery:Reasoning: Some results are about music.\nWhich subgenre?\n\n"
        '- euphoric house: build-up, drop\n- other\n\nQuery: "backroom" "studio" "early 2010s"'
    )
    assert render_view("reasoning+query@code", "q") == "Reasoning: Empty\n\nQuery: q"
    assert render_view("reasoning+query@code", Query("q\n", reasoning="r")) == "Reasoning: r\n\nQuery: q\n"


def test_the_figures_of_the_agentir_paper_are_written_byte_for_byte() -> None:
    assert render_view("reasoning+query@paper", ASKED) == f"Reasoning: {REASONING}\nQuery: {ASKED.text}"
    assert render_view("prior-queries@paper", ASKED) == (
        f"Browsing History:\nTurn 1: grammy winners\nTurn 2: sweden 1995\nCurrent Query: {ASKED.text}"
    )
    assert render_view("prior-queries+reasonings@paper", ASKED) == (
        "Browsing History:\nTurn 1: Composers\nfirst. grammy winners\nTurn 2: Empty sweden 1995\n"
        f"Current Query: {ASKED.text}"
    )
    assert render_view("prior-queries+reasonings+documents@paper", ASKED) == (
        "Browsing History:\nTurn 1: A search for Composers\nfirst. grammy winners found 2 results:\n"
        "A list.\nOf winners.\n\nSweden\nTurn 2: A search for Empty sweden 1995 found 0 results:\n\n"
        f"Current Query: {ASKED.text}"
    )


def test_the_latest_turns_have_the_layout_of_figure_8_and_are_numbered_from_one() -> None:
    assert render_view("last-1-turns@paper", ASKED) == render_view("reasoning+query@paper", ASKED)
    two = render_view("last-2-turns@paper", ASKED)
    assert two == f"Browsing History:\nTurn 1: Empty sweden 1995\nCurrent Query: {ASKED.text}"
    assert render_view("last-3-turns@paper", ASKED) == render_view("prior-queries+reasonings@paper", ASKED)


lines = st.lists(
    st.sampled_from(
        ["Query: x", "  query:", "Reasoning: y", "Turn 12: z", "Current Query: w", "Browsing History:", "a"]
    ),
    min_size=1,
)
ends = st.sampled_from(["\n", "\r\n", "\u2028", "\x0b", "\x85", "\r"])
texts = st.builds(lambda parts, end: end.join(parts), lines, ends)


@given(st.sampled_from([*TEMPLATES]), texts, texts, texts, texts)
def test_no_text_of_an_agent_or_a_passage_begins_a_field(
    view: str, query: str, reason: str, old: str, page: str
) -> None:
    history = (PastTurn(old, reason, (page, page)), PastTurn(old, reason, (page,)))
    own = "query|reasoning" if view.startswith("reasoning") else r"current query|browsing history|turn \d+"
    label = re.compile(rf"\s*({own}):", re.IGNORECASE)

    def labels(query: Query) -> list[str]:
        matches = [label.match(line) for line in render_view(view, query).splitlines()]
        return [match[1].lower() for match in matches if match]

    plain = Query("q", "Who?", "r", (PastTurn("o", "s", ("p", "p")), PastTurn("o", "s", ("p",))))
    assert labels(Query(query, "Who?", reason, history)) == labels(plain)


def test_the_separator_ends_no_field_and_other_lines_stay_as_they_are() -> None:
    seen = render_view(
        "reasoning+query@code", Query("q </s>", reasoning="one  two\nthree </s>  four\n five"), separator="</s>"
    )
    assert seen == "Reasoning: one  two\nthree s four\n five\n\nQuery: q s"


def test_braces_in_a_field_are_text() -> None:
    assert render_view("reasoning+query@code", Query("{reasoning}", reasoning="{query}")) == (
        "Reasoning: {query}\n\nQuery: {reasoning}"
    )


def test_a_long_text_is_cut_like_that_of_any_view_and_keeps_its_lines() -> None:
    cut = render_view("reasoning+query@code", Query("q", reasoning="one two\nthree four\nfive"), limit=34)
    assert cut == "Reasoning: four\nfive\n\nQuery: q"
    assert render_view("prior-queries@paper", ASKED, limit=90).startswith(
        "Browsing History:\nTurn 1: sweden 1995\nCurrent"
    )
    assert render_view("prior-queries@paper", ASKED, limit=5) == ASKED.text


def test_a_view_file_may_bring_a_template(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from coseek.retrieval.views import QueryView\n"
        "from coseek.retrieval.views import ViewTemplate\n"
        "TEMPLATE = ViewTemplate('{question}\\n---\\n{turns}> {query}', turn='{turn}. {query}\\n')\n"
        "VIEW = QueryView('mine', question=True, past='queries', template=TEMPLATE)\n"
    )
    query = Query("born", "Who?\n> x", "", (PastTurn("Ada"),))
    assert render_view(load_view(str(tmp_path / "mine.py")), query) == "Who?\n\\> x\n---\n1. Ada\n> born"


@pytest.mark.parametrize(
    ("text", "turn", "says"),
    [
        ("{reason} {query}", "", "no field {reason}"),
        ("Reasoning: {reasoning}", "", "needs {query} once"),
        ("{turns}{query}", "", "needs a template"),
        ("{query}", "{turn}", "needs a template"),
        ("{turns}{query}", "{question}", "no field {question}"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused_when_it_is_made(text: str, turn: str, says: str) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        QueryView("mine", template=ViewTemplate(text, turn))


# --- context fields: what a view does not read need not be sent


@given(queries, st.sampled_from(ALL), st.sampled_from(ALL), st.sampled_from([None, 3, 8, 20]))
def test_a_view_reads_nothing_of_what_was_left_out(query: Query, view: str, other: str, limit: int | None) -> None:
    alone = find_view(view).fields
    both = alone | find_view(other).fields
    whole = render_view(view, query, limit=limit, count=tokens)
    for fields in (alone, both, both | alone, EVERYTHING, ContextFields.from_json(both.to_json())):
        assert render_view(view, fields.of(query), limit=limit, count=tokens) == whole
    assert EVERYTHING.of(query) == query


@given(queries, st.integers(0, 80), st.sampled_from(ALL))
def test_what_is_dropped_to_fit_is_what_a_view_drops_first(query: Query, most: int, view: str) -> None:
    short = fitted(query, most)
    now = len(query.question) + len(query.reasoning)
    assert short.context_chars <= max(most, now)
    assert short == query or query.context_chars > most
    cut = partial(render_view, view, limit=tokens(render_view(view, short)), count=tokens)
    assert cut(query) == cut(short)


def test_retrievers_of_several_parts_read_what_any_part_reads() -> None:
    past = Bm25.over(CORPUS, Bm25Settings(view="last-2-turns"))
    by_question = Bm25.over(CORPUS, Bm25Settings(view="question+query"))
    hybrid = Hybrid([past, by_question], HybridSettings(parts=["a", "b"]))
    assert fields_read(hybrid) == ContextFields(question=True, reasoning=True, past="reasonings", turns=2)
    assert fields_read(NoisyRetriever(by_question, NoisySettings(over="a"))) == ContextFields(question=True)
    assert fields_read(EchoRetriever()) == EVERYTHING, "a retriever that does not say is sent everything"
    with live({"hybrid": hybrid, "echo": EchoRetriever()}) as url, remote(url) as client:
        assert client.reads == fields_read(hybrid)
        with remote(url, index="echo") as other:
            assert other.reads == EVERYTHING


CARD: Json = {"identity": "x", "limits": {"max_queries": 4, "max_hits": 9, "max_body_bytes": 900, "odd": "7"}}


def serving(path: str, body: JsonObject) -> Json:
    return CARD if path == "/info" else respond(path, body)


@pytest.mark.parametrize(
    ("texts", "k", "sizes"),
    [
        (["a"] * 10, 1, [4, 4, 2]),
        (["a"] * 5, 3, [3, 2]),
        (["a" * 300] * 4, 1, [1] * 4),
        (["a", "a" * 2_000], 1, [1, 1]),
    ],
)
def test_a_batch_above_the_servers_limits_becomes_several_requests(texts: list[str], k: int, sizes: list[int]) -> None:
    with asking(serving) as (client, server):
        server.has_card = True
        queries = [f"{number}{text}" for number, text in enumerate(texts)]
        assert ids(client, queries, k) == [[query] for query in queries]
        batches = [body["queries"] for path, body, _ in server.asked if path != "/info"]
    assert sorted((len(batch) for batch in batches if isinstance(batch, list)), reverse=True) == sizes


if __name__ == "__main__":
    page = DOCS.read_text(encoding="utf-8")
    DOCS.write_text(BLOCK.sub(lambda match: match[1] + examples() + match[2], page), encoding="utf-8")
