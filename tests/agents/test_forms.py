"""Valid form against automata written here from the papers' descriptions, without the grammar.

A run is read as letters: a capital opens a tag, a small letter closes it, `x` is text. What is valid is then a regular
expression over letters. Real runs have information from the environment only, so a text is cut there first.
"""

import json
import random
import re
from typing import ClassVar

import pytest

from coseek.agents.protocol import load_protocol
from coseek.data.trajectory import Author, Segment


def cut(text: str, marks: list[str]) -> list[Segment]:
    """A text as segments of a run: every whole information block belongs to the environment."""
    other = "|".join(map(re.escape, marks))
    parts = re.split(rf"(<information>(?:(?!{other}).)*</information>)", text, flags=re.S)
    return [
        Segment(Author.ENVIRONMENT, "information", piece, (0,))
        if piece.startswith("<information>")
        else Segment(Author.AGENT, "", piece, (0,), (0.0,))
        for piece in parts
        if piece
    ]


def letters(text: str, tags: dict[str, str]) -> str:
    """The text as letters; white space is ignored."""
    marks = {f"<{tag}>": letter.upper() for tag, letter in tags.items()}
    marks |= {f"</{tag}>": letter.lower() for tag, letter in tags.items()}
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", text)
    return "".join(marks.get(piece, "x" if piece.strip() else "") for piece in pieces)


def mutated(pieces: list[str], alphabet: list[str], rng: random.Random) -> str:
    """The pieces of a text, some of them changed, left out, doubled or swapped."""
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        at = rng.randrange(len(pieces))
        kind = rng.randrange(4)
        if kind == 0:
            pieces[at] = rng.choice(alphabet)
        elif kind == 1 and len(pieces) > 1:
            del pieces[at]
        elif kind == 2:
            pieces.insert(at, rng.choice([pieces[at], rng.choice(alphabet)]))
        else:
            other = rng.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
    return rng.choice(("", " ", "\n")).join(pieces)


def tagged(tag: str, text: str) -> list[str]:
    return [f"<{tag}>", text, f"</{tag}>"]


class SearchR1:
    """start → think → (search → information → think)* → answer → end (paper 002, appendix C)."""

    name = "search-r1"
    tags: ClassVar = {"think": "t", "search": "s", "information": "i", "answer": "a"}
    form = re.compile(r"Tx?t(Sx?sIx?iTx?t)*Ax?a")

    def is_valid(self, text: str) -> bool:
        return self.form.fullmatch(letters(text, self.tags)) is not None

    def pieces(self, rng: random.Random) -> list[str]:
        turns = [
            *tagged("think", "a"), *tagged("search", "b"), *tagged("information", rng.choice(("c", "", "c < d")))
        ] * rng.randrange(4)  # fmt: skip
        return [*turns, *tagged("think", rng.choice(("d", " "))), *tagged("answer", "e")]

    def alphabet(self) -> list[str]:
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        return [*marks, "word", "", "</think", "<", "<Think>"]


class QAgent:
    """(plan → search of one to three queries → information → reflection)+ → answer (paper 001)."""

    name = "qagent"
    tags: ClassVar = {"plan": "p", "search": "s", "query": "q", "information": "i", "reflection": "r", "answer": "a"}
    form = re.compile(r"(Px?pS(Qxq){1,3}sIx?iRx?r)+Ax?a")

    def is_valid(self, text: str) -> bool:
        return self.form.fullmatch(letters(text, self.tags)) is not None

    def pieces(self, rng: random.Random) -> list[str]:
        pieces: list[str] = []
        for _ in range(rng.choice((1, 1, 2, 3, 0))):
            queries = [piece for _ in range(rng.choice((1, 1, 2, 3, 3, 4, 0))) for piece in tagged("query", "b")]
            pieces += [*tagged("plan", "a"), "<search>", *queries, "</search>"]
            pieces += [*tagged("information", "c"), *tagged("reflection", rng.choice(("d", "")))]
        return [*pieces, *tagged("answer", "e")]

    def alphabet(self) -> list[str]:
        return [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")] + ["word", "", "<query", "<reflect>"]


class S3:
    """A block of information, perhaps a selection, then a flag: a query follows false, true ends (paper 004)."""

    name = "s3"
    tags: ClassVar = {"information": "i", "important_info": "m", "search_complete": "c", "query": "q"}
    choices: ClassVar = ["[1, 2]", "[]", "[1,2,3]", "[1, 2, 3, 4]", "[3, 3, 3, 1]", "none", "", '["1"]', "2", "1 and 2"]
    flags: ClassVar = ["True", "False", " true ", "0", "1", "maybe", "", "truely"]
    queries: ClassVar = [
        '{"query": "x"}', '"x"', "x y", '{"query": ""}', '{"q": "x"}', "[]", '["x"]', '["x", "y"]', "", "{", "7",
    ]  # fmt: skip

    def is_valid(self, text: str) -> bool:
        """Parse block by block, each inner text by its own rules."""
        block = r"\s*<information>[^<]*</information>\s*(?:<important_info>([^<]*)</important_info>\s*)?"
        block += r"<search_complete>([^<]*)</search_complete>\s*(?:<query>([^<]*)</query>)?"
        at, more = 0, True
        while more:
            match = re.compile(block).match(text, at)
            if match is None:
                return False
            chosen, flag, query = match.groups()
            flag = flag.strip().lower()
            if flag not in ("true", "1", "false", "0") or not (chosen is None or self.is_choice(chosen)):
                return False
            more, at = flag in ("false", "0"), match.end()
            if more != (query is not None) or (query is not None and not self.is_query(query)):
                return False
        return not text[at:].strip()

    def is_choice(self, text: str) -> bool:
        inner = text.strip().removeprefix("[").removesuffix("]")
        numbers = [number.strip().strip("\"'") for number in inner.split(",")] if inner.strip() else []
        return all(number.isdigit() for number in numbers) and len(set(map(int, numbers))) <= 3

    def is_query(self, text: str) -> bool:
        try:
            value = json.loads(text)
        except ValueError:
            return False
        if isinstance(value, dict):
            value = value.get("query")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        return isinstance(value, str) and bool(value.strip())

    def pieces(self, rng: random.Random) -> list[str]:
        def odd(usual: str, others: list[str]) -> str:
            return usual if rng.random() < 0.8 else rng.choice(others)

        pieces: list[str] = []
        turns = rng.choice((1, 1, 2, 3))
        for turn in range(1, turns + 1):
            pieces += tagged("information", "c")
            pieces += tagged("important_info", odd("[1, 2]", self.choices)) if rng.random() < 0.7 else []
            pieces += tagged("search_complete", odd("True" if turn == turns else "False", self.flags))
            pieces += tagged("query", odd('{"query": "x"}', self.queries)) if turn < turns else []
        return pieces

    def alphabet(self) -> list[str]:
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        return [*marks, "word", "", *self.choices, *self.flags, *self.queries]


def check(paper: SearchR1 | QAgent | S3, count: int, seed: int) -> float:
    """Compare on many texts. Returns the share of valid texts, which must not be trivial."""
    grammar, rng, alphabet = load_protocol(paper.name).grammar, random.Random(seed), paper.alphabet()
    marks = [mark for tag in paper.tags for mark in (f"<{tag}>", f"</{tag}>")]
    valid = 0
    for _ in range(count):
        if rng.random() < 0.1:
            text = "".join(rng.choices(alphabet, k=rng.randrange(14)))
        else:
            text = mutated(paper.pieces(rng), alphabet, rng)
        complaint = grammar.format_error(grammar.spans(cut(text, marks)))
        assert (complaint == "") == paper.is_valid(text), (text, complaint)
        valid += not complaint
    return valid / count


PAPERS = [SearchR1(), QAgent(), S3()]


@pytest.mark.medium
@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_validity_is_the_papers_on_generated_and_mutated_sequences(paper: SearchR1 | QAgent | S3) -> None:
    assert 0.1 < check(paper, 1500, seed=0) < 0.9
