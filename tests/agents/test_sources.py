"""Sources of a run: its servings, as s3's extractor reads them, its citations, and its reply in words."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.agents.playing import ADA, BOB, EVE, QUESTION, WIDE, Shelf, observations, play

from coseek.agents.limits import Limits
from coseek.agents.sources import (
    OUTSIDE,
    cited_answer,
    reply_in_words,
    reply_of,
    served_context,
    sources_of,
    used_sentences,
)
from coseek.cli.commands.ask import show_sources
from coseek.cli.terminal import stdout_console
from coseek.core.errors import SettingError
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason, Trajectory

# d8 and d9 repeat the title and text of d1 and d2.
PASSAGES = [Passage(f"d{number}", f"T{number % 8}", f"text {number % 8}") for number in range(1, 13)]
LIMITS = WIDE.model_copy(update={"passages_per_search": 5, "max_turns": 4})
BLOCK = re.compile(r"<information>(.*?)</information>|<important_info>(.*?)</important_info>", re.DOTALL)
DOCUMENT = re.compile(r"\nDoc (\d+) \(title: (.*?)\)\n(.*?)\n(?=\nDoc|$)", re.DOTALL)


def shelf(rng: random.Random) -> Shelf:
    idents = [passage.id for passage in PASSAGES]
    results = {query: rng.sample(idents, rng.randint(0, 5)) for query in ("q1", "q2", "q3", "q4")}
    return Shelf(Corpus(PASSAGES), {**results, QUESTION.question: rng.sample(idents, 4)})


def turn(rng: random.Random, number: int) -> str:
    lists = ["", "[]", "[1]", "[2, 1]", "[1, 2, 3, 4, 5]", "[Doc 2, Doc 9]", "none", "[3]"]
    tags = "".join(f"<important_info>{rng.choice(lists)}</important_info>" for _ in range(rng.choice((0, 1, 1, 1, 2))))
    if number > rng.randint(1, 5):
        return f"{tags}<search_complete>True</search_complete>"
    return f'{tags}<search_complete>False</search_complete><query>{{"query": "q{rng.randint(1, 4)}"}}</query>'


def extracted(text: str, select: bool = True, begin: int = 0, end: int | None = None) -> list[tuple[str, str]]:
    """Titles and texts in the order of the blocks (004, A.5). The first list after a block is the block's; one without
    numbers serves nothing, a block without a list serves everything. The published program puts all blocks without a
    list last, and lets a second list select from an older block without one; neither is in the paper."""
    blocks: list[tuple[str, str | None]] = []
    for match in BLOCK.finditer(text):
        if match[1] is not None:
            blocks.append((match[1], None))
        elif blocks[-1][1] is None:
            blocks[-1] = (blocks[-1][0], match[2])
    served: list[tuple[str, str]] = []
    for content, listed in blocks[begin:end]:
        numbers = None if listed is None or not select else set(re.findall(r"\d+", listed))
        for number, title, body in DOCUMENT.findall(content):
            if (numbers is None or number in numbers) and (title, body) not in served:
                served.append((title, body))
    return served


def served(run: Trajectory, serving: str) -> list[tuple[str, str]]:
    return [(passage.title, passage.text) for passage in served_context(run, serving)]


@pytest.mark.medium
def test_runs_serve_again_what_an_extractor_of_their_text_finds() -> None:
    sizes = set()
    for seed in range(300):
        rng = random.Random(seed)
        run = play("s3-code", *(turn(rng, number) for number in range(1, 6)), limits=LIMITS, retriever=shelf(rng))
        expected = {
            "selected": extracted(run.text),
            "all": extracted(run.text, select=False),
            "no-opening": extracted(run.text, begin=1),
            "no-opening-all": extracted(run.text, select=False, begin=1),
            "rounds:1": extracted(run.text, end=1),
            "rounds:2": extracted(run.text, end=2),
        }
        assert {serving: served(run, serving) for serving in expected} == expected, seed
        sizes.add(tuple(map(len, expected.values())))
    assert len(sizes) > 50


def test_rounds_count_the_turns_of_an_agent_with_several_queries_each() -> None:
    texts = (
        "<plan>a</plan><search><query>Ada</query><query>Eve</query></search>",
        "<reflection>b</reflection><search><query>Bob</query></search>",
        "<reflection>c</reflection><answer>1815</answer>",
    )
    run = play("qagent", *texts, limits=WIDE.model_copy(update={"passages_per_search": 1}))
    given = {name: [passage.id for passage in served_context(run, name)] for name in ("rounds:1", "rounds:2", "all")}
    assert given == {"rounds:1": ["p1", "p3"], "rounds:2": ["p1", "p3", "p2"], "all": ["p1", "p3", "p2"]}
    assert served_context(run, "no-opening") == served_context(run)  # it does not open with a search


@pytest.mark.parametrize("serving", ["", "every", "rounds:", "rounds:0", "rounds:N", "no-opening-selected"])
def test_an_unknown_serving_is_refused(serving: str) -> None:
    with pytest.raises(SettingError, match="cannot be served"):
        served_context(play("s3", "<search_complete>True</search_complete>"), serving)


# --- citations


TWO = WIDE.model_copy(update={"passages_per_search": 2})


def test_citations_are_resolved_over_all_searches_and_those_of_nothing_are_dropped_and_counted() -> None:
    answer = "Eve knows a cat [3], called Bob [4, 2][9]. Ada is older [0][1]; the pool is [12] deep."
    run = play("cited", "<search>Eve</search>", f"<answer>{answer}</answer>", limits=TWO)
    assert observations(run)[0].count("[1] ") == 1
    assert "[3] Eve" in observations(run)[1] and "[1]" not in observations(run)[1]
    cited = cited_answer(run)
    assert cited is not None
    assert cited.text == reply_of(run) == "Eve knows a cat [1], called Bob [2]. Ada is older [3]; the pool is deep."
    assert cited.passages == (EVE, BOB, ADA) == tuple(sources_of(run))
    assert cited.dropped == 4, "4, 9, 0 and 12"


def test_a_protocol_that_extends_cited_cites_and_a_year_in_brackets_is_text(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: cited\n", encoding="utf-8")
    run = play(str(tmp_path / "mine.yaml"), "<answer>In [1815] [2].</answer>", limits=TWO)
    assert run.protocol == "mine" and reply_of(run) == "In [1815] [1]." and sources_of(run) == [BOB]


@pytest.mark.parametrize("name", ["rag", "search-r1"])
def test_brackets_in_answers_of_other_protocols_are_text(name: str) -> None:
    think = "<think>a</think>" if name == "search-r1" else ""
    run = play(name, f"{think}<answer>f[1]</answer>", limits=TWO)
    assert cited_answer(run) is None and reply_of(run) == "f[1]"


def test_a_citation_is_shown_with_file_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = replace(ADA, meta={"path": "notes/ada.pdf", "page": 3})
    run = play("cited", "<answer>In 1815 [1][7].</answer>", limits=TWO, retriever=Shelf(Corpus([page, BOB, EVE])))
    show_sources(run, stdout_console())
    shown = capsys.readouterr().out
    assert "[1] Ada: notes/ada.pdf#page=3" in shown and "left out: 1" in shown


# --- replies to people


LOOP = "<think> painter Seminary" + " painter Seminary" * 40
SEARCH = "<think>a</think><search>Ada</search>"


def test_a_turn_that_goes_round_in_circles_is_answered_with_a_sentence() -> None:
    looped, answered = play("search-r1", LOOP), play("search-r1", f"<think>a</think><answer>{'no way ' * 30}</answer>")
    assert {reply_in_words(looped), reply_in_words(answered)} == {OUTSIDE}
    assert looped.segments[-1].text.count("painter") == 41  # the record is whole


@pytest.mark.parametrize(
    ("turns", "limits", "stop"),
    [
        ((SEARCH, SEARCH), WIDE.model_copy(update={"max_turns": 1}), StopReason.TURN_LIMIT),
        (("hm " * 3,), WIDE, StopReason.INVALID),
        ((SEARCH,), WIDE.model_copy(update={"max_tokens": 400}), StopReason.TOKEN_LIMIT),
    ],
)
def test_every_end_without_an_answer_has_a_sentence(turns: tuple[str, ...], limits: Limits, stop: StopReason) -> None:
    run = play("search-r1", *turns, limits=limits)
    assert run.stop is stop
    sentence = reply_in_words(run)
    assert sentence.startswith("I have no answer: ") and "_" not in sentence


def test_an_answer_is_shown_as_people_write_it() -> None:
    run = play("search-r1", "<think>a</think><answer> Golden Gate ( film ) </answer>")
    assert (run.answer, reply_in_words(run)) == ("Golden Gate ( film )", "Golden Gate (film)")


def test_sources_are_what_was_used_and_each_has_its_sentence() -> None:
    mayor = Passage("c", "Julenta", "Julenta is old. Its mayor is Daro Lind. It rains.")
    person = Passage("p", "Daro Lind", "Daro Lind was born in Orlen. He sings.")
    others = [Passage(f"o{number}", f"Other {number}", "Nothing of it.") for number in range(7)]
    shelf = Shelf(Corpus([mayor, person, *others]), {"Ada": ["c", "p", *(passage.id for passage in others)]})
    wide = WIDE.model_copy(update={"passages_per_search": 9, "max_observation_tokens": 20000})
    right = play("search-r1", SEARCH, "<think>b</think><answer>Orlen</answer>", retriever=shelf, limits=wide)
    assert sources_of(right) == [person]
    assert used_sentences(right, [person, mayor, others[0]]) == [
        "Daro Lind was born in Orlen.", "Its mayor is Daro Lind.", "",
    ]  # fmt: skip
    wrong = play("search-r1", SEARCH, "<think>b</think><answer>Rome</answer>", retriever=shelf, limits=wide)
    assert len(sources_of(wrong)) == 5
