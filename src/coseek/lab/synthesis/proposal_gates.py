"""Gates of proposed questions, by rules. Each verdict is stored, as are those of `gates`.

verbatim        the answer stands in the last passage letter by letter, and is short
self_contained  the question is one, and it does not point at a passage
closed_book     the question holds neither the answer nor the name between the passages
both            the first passage alone does not answer (two passages)
retrievable     a search with the question finds the first passage
one_search      it does not find the last one (two passages)
"""

import re
from collections.abc import Iterator

from coseek.lab.synthesis.gates import PASSED, GateVerdict, found_by
from coseek.lab.synthesis.graph import HopGraph
from coseek.lab.synthesis.proposals import Proposal
from coseek.retrieval.lexical.analyzer import has_words, words

LONGEST_ANSWER = 12
"""Words."""
_QUESTION_WORDS = (3, 60)
_MARKS = ("?", "？", "؟")
_POINTING = re.compile(
    r"\b(?:(?:this|the|these|both|above|given|following|first|second|provided)\s+(?:passages?|texts?|documents?|"
    r"articles?|excerpts?|paragraphs?|snippets?)|according\s+to\s+(?:it|this)|(?:mentioned|described|stated|listed)\s+"
    r"(?:above|here|below)|passages?\s+[12])\b",
    re.IGNORECASE,
)
FINDABLE = 20
"""Passages of the search that must find the first passage."""


def proposal_verdicts(graph: HopGraph, proposal: Proposal, depth: int) -> dict[str, GateVerdict]:
    """The verdicts up to the first one that is not passed."""
    verdicts: dict[str, GateVerdict] = {}
    for name, verdict in _verdicts(graph, proposal, depth):
        verdicts[name] = verdict
        if not verdict.passed:
            break
    return verdicts


def _verdicts(graph: HopGraph, proposal: Proposal, depth: int) -> Iterator[tuple[str, GateVerdict]]:
    yield "verbatim", _verbatim(graph.corpus[proposal.rows[-1]].text, proposal.answer)
    yield "self_contained", _self_contained(proposal.question)
    hidden = [proposal.answer, *([proposal.link] if proposal.link else [])]
    leaks = has_words(proposal.question, *hidden)
    yield "closed_book", _failed("the question holds what it asks for") if leaks else PASSED
    found = found_by(graph, proposal.question, max(depth, FINDABLE))
    if len(proposal.rows) > 1:
        first = graph.corpus[proposal.rows[0]]
        alone = has_words(f"{first.title} {first.text}", proposal.answer)
        yield "both", _failed("the first passage holds the answer") if alone else PASSED
        once = graph.corpus[proposal.rows[-1]].id in found[:depth]
        yield "one_search", _failed(f"the passage with the answer is among the first {depth}") if once else PASSED
    starts = graph.corpus[proposal.rows[0]].id in found
    yield "retrievable", PASSED if starts else _failed(f"no passage of the path is among the first {FINDABLE}")


def _verbatim(text: str, answer: str) -> GateVerdict:
    if not answer or answer not in " ".join(text.split()) or not has_words(text, answer):
        return _failed("the answer does not stand in the passage")
    return PASSED if len(words(answer)) <= LONGEST_ANSWER else _failed("the answer is too long")


def _self_contained(question: str) -> GateVerdict:
    least, most = _QUESTION_WORDS
    if not question.endswith(_MARKS) or not least <= len(words(question)) <= most:
        return _failed("it is no question")
    return _failed("the question points at its passage") if _POINTING.search(question) else PASSED


def _failed(reason: str) -> GateVerdict:
    return GateVerdict(False, reason)
