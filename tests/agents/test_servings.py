"""What a stored run serves again, against an extractor that reads the transcript's text as s3's program does."""

import random
import re

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, play

from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import Trajectory

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
    for found in BLOCK.finditer(text):
        if found[1] is not None:
            blocks.append((found[1], None))
        elif blocks[-1][1] is None:
            blocks[-1] = (blocks[-1][0], found[2])
    served: list[tuple[str, str]] = []
    for content, listed in blocks[begin:end]:
        numbers = None if listed is None or not select else set(re.findall(r"\d+", listed))
        for number, title, body in DOCUMENT.findall(content):
            if (numbers is None or number in numbers) and (title, body) not in served:
                served.append((title, body))
    return served


def served(run: Trajectory, serving: str) -> list[tuple[str, str]]:
    return [(passage.title, passage.text) for passage in served_context(run, serving)]


def test_a_thousand_runs_serve_again_what_an_extractor_of_their_text_finds() -> None:
    sizes = set()
    for seed in range(1000):
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
    assert len(sizes) > 300


def test_rounds_count_the_turns_of_an_agent_with_several_queries_each() -> None:
    texts = (
        "<plan>a</plan><search><query>Ada</query><query>Eve</query></search>",
        "<reflection>b</reflection><search><query>Bob</query></search>",
        "<reflection>c</reflection><answer>1815</answer>",
    )
    run = play("qagent", *texts, limits=WIDE.model_copy(update={"passages_per_search": 1}))
    found = {name: [passage.id for passage in served_context(run, name)] for name in ("rounds:1", "rounds:2", "all")}
    assert found == {"rounds:1": ["p1", "p3"], "rounds:2": ["p1", "p3", "p2"], "all": ["p1", "p3", "p2"]}
    assert served_context(run, "no-opening") == served_context(run)  # it has no search that opens it


@pytest.mark.parametrize("serving", ["", "every", "rounds:", "rounds:0", "rounds:N", "no-opening-selected"])
def test_an_unknown_serving_is_refused(serving: str) -> None:
    with pytest.raises(SettingError, match="cannot be served"):
        served_context(play("s3", "<search_complete>True</search_complete>"), serving)
