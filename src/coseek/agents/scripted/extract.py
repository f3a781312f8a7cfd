"""Extract: the rule-based agent, answering with the sentence that fits the question best, or that there is none.

It searches as `rules` does. Of the passages found it takes the one that supports the question best,

    support(p) = weighted share of the question's words in p + ½ · share of the question's word pairs in p

where a word weighs ln(1 + (n + 1) / (df + ½)), df of the n passages found holding it, stop words weigh nothing, and
words are cut to five letters. Below `LEAST` it answers that the documents do not say; else with the sentence of p
that holds the most of the question. An answer is always a stretch of a passage, word for word.

It reads words, not meaning: a question on something that the documents mention without answering it can get a sentence.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from coseek.agents.actions import NOT_FOUND
from coseek.agents.scripted.rules import STOP_WORDS, RuleAgent
from coseek.agents.scripted_agent import Move
from coseek.core.text import sentence_spans
from coseek.data.passage import Passage
from coseek.models.model import EpisodeState
from coseek.retrieval.lexical.analyzer import units, words

PROMPT_TEMPLATE = "default"

LEAST, LEAST_CJK = 0.45, 0.3
"""The least support of an answer; less in Chinese, Japanese and Korean, where pairs of characters are compared."""
STEM = 5
"""Letters of a word that count."""
SHORTEST, LONGEST = 40, 400
"""Characters of an answer; shorter sentences, such as headings, bring the next one along."""
READ, CHARACTERS = 5, 50_000
"""Passages looked at, best first, and how much of each."""
_DIGITS = re.compile(r"\d+")
_COUNTS = frozenset(["when", "many", "much", "long", "old", "far", "date", "year", "number"])
"""Words of a question that asks for a number or a date."""


class ExtractAgent(RuleAgent):
    """The rule-based agent with extracted answers."""

    LIMITS: ClassVar = {"passages_per_search": 5}

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The best sentence of the best passage, or `NOT_FOUND`."""
        question = so_far.question.searched
        passages = {hit.passage.id: hit.passage for search in so_far.searches for hit in search.hits}
        ranked = [passages[ident] for ident in self.evidence(question, so_far.searches)] if passages else []
        passage, answer = extract(question, ranked)
        report = f" I take {passage.title} ." if passage else " I found nothing that answers this ."
        return Move(report, answer=f" {answer}", selected=(passage.id,) if passage else ())


def make() -> ExtractAgent:
    """Make the agent with its default settings."""
    return ExtractAgent()


def extract(question: str, passages: Sequence[Passage]) -> tuple[Passage | None, str]:
    """The passage that answers and its best sentence; `None` and `NOT_FOUND` where none supports the question."""
    passages = [replace(passage, text=passage.text[:CHARACTERS]) for passage in passages]
    weights = _weights(question, passages)
    read = [passage for passage in passages[:READ] if passage.text.strip()]
    supports = [(support(question, passage, weights), passage) for passage in read]
    best, passage = max(supports, key=lambda pair: pair[0], default=(0.0, None))
    asked = words(question)
    pairs = sum(len(word) == 2 and not word.isascii() for word in asked)
    if passage is None or best < (LEAST_CJK if 2 * pairs > len(asked) else LEAST):
        return None, NOT_FOUND
    return passage, sentence(question, passage, weights)


def support(question: str, passage: Passage, weights: Mapping[str, float]) -> float:
    """How much of the question a passage holds, from 0 to 1.5."""
    text = f"{passage.title} . {passage.text}"
    asked, held = list(pairwise(words(question))), set(pairwise(words(text)))
    pairs = [pair for pair in asked if pair in held and not STOP_WORDS.issuperset(pair)]
    return _share(text, weights) + 0.5 * len(pairs) / max(1, len(asked))


def sentence(question: str, passage: Passage, weights: Mapping[str, float]) -> str:
    """The sentence of a passage that holds the most of a question, with those after it while it is short."""
    text = passage.text.strip()
    spans = [(start, end) for start, end in sentence_spans(text) if text[start:end].strip()]
    counted = bool(_COUNTS & set(words(question)))
    numbers = set(_DIGITS.findall(question))

    def fit(span: tuple[int, int]) -> float:
        piece = text[slice(*span)]
        says = counted and bool(set(_DIGITS.findall(piece)) - numbers)
        return _share(piece, weights) + (0.3 if says else 0.0)

    first = max(range(len(spans)), key=lambda at: fit(spans[at]))
    start, end = spans[first]
    for _, later in spans[first + 1 :]:
        if end - start >= SHORTEST or later - start > LONGEST:
            break
        end = later
    answer = " ".join(text[start:end].split())
    answer = answer.lstrip("•*#-> ") or answer
    return answer if len(answer) <= LONGEST else answer[:LONGEST].rpartition(" ")[0] or answer[:LONGEST]


def _weights(question: str, passages: Sequence[Passage]) -> dict[str, float]:
    """The weight of each word of the question; they sum to 1."""
    asked = _content(question)
    held = Counter(word for passage in passages for word in _held(f"{passage.title} {passage.text}") & asked)
    weights = {word: math.log(1 + (len(passages) + 1) / (held[word] + 0.5)) for word in sorted(asked)}
    total = sum(weights.values())
    return {word: weight / total for word, weight in weights.items()}


def _share(text: str, weights: Mapping[str, float]) -> float:
    return sum(weights[word] for word in sorted(_held(text) & weights.keys()))


def _content(text: str) -> set[str]:
    return {word[:STEM] for word in words(text) if word not in STOP_WORDS}


def _held(text: str) -> set[str]:
    """The words of a text, and the characters in pairs of them, which a question of one character has."""
    content = _content(text)
    return content.union(*map(units, content))
