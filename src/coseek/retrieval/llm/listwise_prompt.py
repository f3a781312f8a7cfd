"""Listing: numbered passages for a model that ranks them, and the ranking read back out of what it wrote.

Reading never fails: whatever the model writes, every passage keeps exactly one place.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coseek.core.prompt_file import PromptFile, fill_template, one_line
from coseek.data.passage import Passage

_NUMBER = re.compile(r"\[\s*([0-9]{1,9})\s*\]")
_NUMBER_IN_DATA = re.compile(r"\[(\s*\d+\s*)\]")
_JOINTS = ("", ">", ",")


class ListwisePrompt(PromptFile):
    """How passages are put before a model that ranks them."""

    prompt: str
    """`{passages}`, `{query}` and `{count}` are filled in."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""


LISTWISE_FIELDS = {"prompt": {"passages", "query", "count"}, "passage": {"number", "title", "text"}}


@dataclass(frozen=True, slots=True)
class ParsedRanking:
    """What was made of one answer."""

    order: tuple[int, ...]
    """A permutation of 0 … count - 1: the named passages as named, then the others in their old order."""
    missing: int = 0
    """Passages that the answer does not name."""
    repeated: int = 0
    """Numbers that had been named before; they are passed over."""
    invented: int = 0
    """Numbers that no passage has; they are passed over."""

    @property
    def unreadable(self) -> bool:
        """No passage was named, so the old order stands."""
        return self.missing == len(self.order)


def parse_ranking(answer: str, count: int) -> ParsedRanking:
    """Read `[2] > [1] > [3]` as places from 0.

    The ranking is the longest chain of numbers in square brackets with nothing but `>`, commas or white space between
    them, the last of equally long ones: a model that thinks aloud mentions passages before it ranks them. Numbers
    without brackets are words.
    """
    named = [number - 1 for number in _longest_chain(answer)]
    known = [place for place in named if 0 <= place < count]
    order = dict.fromkeys(known)
    rest = [place for place in range(count) if place not in order]
    return ParsedRanking(
        order=(*order, *rest),
        missing=len(rest),
        repeated=len(known) - len(order),
        invented=len(named) - len(known),
    )


def _longest_chain(answer: str) -> list[int]:
    best: list[int] = []
    chain: list[int] = []
    end = 0
    for found in _NUMBER.finditer(answer):
        if answer[end : found.start()].strip() not in _JOINTS:
            chain = []
        chain.append(int(found.group(1)))
        end = found.end()
        if len(chain) >= len(best):
            best = chain  # the same list, which goes on growing while its chain does
    return best


def show(prompt: ListwisePrompt, query: str, passages: Sequence[Passage], max_words: int, **more: str) -> str:
    """The whole prompt. Passages are cut to `max_words` words, and numbers in brackets are disarmed inside them; `more`
    fills what else the prompt names."""
    shown = (
        fill_template(
            prompt.passage,
            number=str(number),
            title=neutralise_numbers(one_line(passage.title, max_words)),
            text=neutralise_numbers(one_line(passage.text, max_words)),
        )
        for number, passage in enumerate(passages, start=1)
    )
    return fill_template(
        prompt.prompt,
        passages=_joined(shown),
        query=neutralise_numbers(one_line(query)),
        count=str(len(passages)),
        **{name: neutralise_numbers(one_line(text)) for name, text in more.items()},
    )


def neutralise_numbers(text: str) -> str:
    """`[3]` as `(3)`: what a passage says cannot be taken for the number of a passage."""
    return _NUMBER_IN_DATA.sub(r"(\1)", text)


def _joined(passages: Iterable[str]) -> str:
    return "".join(passages).rstrip("\n")
