"""Listwise prompt: numbered passages for a ranking model, and the parser of its answer.

Parsing never fails: every passage gets exactly one place.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.prompt_file import PromptFile, fill_template, one_line
from coseek.data.passage import Passage
from coseek.models.written import visible

_NUMBER = re.compile(r"\[\s*([0-9]{1,9})\s*\]")
_NUMBER_IN_DATA = re.compile(r"\[(\s*\d+\s*)\]")
_JOINTS = ("", ">", ",")


class ListwisePrompt(PromptFile):
    """The prompt of a ranking model."""

    prompt: str
    """`{passages}`, `{query}` and `{count}` are filled in."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""


LISTWISE_FIELDS = {"prompt": {"passages", "query", "count"}, "passage": {"number", "title", "text"}}


@dataclass(frozen=True, slots=True)
class ParsedRanking:
    """The parse of one answer."""

    order: tuple[int, ...]
    """A permutation of 0 … count − 1: the named passages in the answer's order, then the others in their old order."""
    missing: int = 0
    repeated: int = 0
    """Repeated numbers, which are ignored."""
    invented: int = 0
    """Numbers of no passage, which are ignored."""

    @property
    def unreadable(self) -> bool:
        """Whether no passage was named, so that the order is unchanged."""
        return self.missing == len(self.order)


def parse_ranking(answer: str, count: int) -> ParsedRanking:
    """Parse `[2] > [1] > [3]` as positions from 0. The ranking is the longest chain of bracketed numbers separated only
    by `>`, commas or white space, the last one of equal length, since a model that reasons first mentions passages
    earlier. Numbers without brackets are ignored."""
    named = [number - 1 for number in _longest_chain(visible(answer))]
    known = [place for place in named if 0 <= place < count]
    order = dict.fromkeys(known)
    rest = [place for place in range(count) if place not in order]
    return ParsedRanking(
        order=(*order, *rest), missing=len(rest), repeated=len(known) - len(order), invented=len(named) - len(known)
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
            best = chain  # an alias: grows with the chain
    return best


def show(prompt: ListwisePrompt, query: str, passages: Sequence[Passage], max_words: int, **more: str) -> str:
    """Fill the prompt; `more` fills further fields. Passages have at most `max_words` words, `[n]` becomes `(n)`."""
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
        passages="".join(shown).rstrip("\n"),
        query=neutralise_numbers(one_line(query)),
        count=str(len(passages)),
        **{name: neutralise_numbers(one_line(text)) for name, text in more.items()},
    )


def neutralise_numbers(text: str) -> str:
    """Write `[3]` as `(3)`, so that text in a passage cannot look like a passage number."""
    return _NUMBER_IN_DATA.sub(r"(\1)", text)
