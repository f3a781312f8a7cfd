"""Extract: the rule-based agent, which answers with the sentence that fits the question best, or declines.

It searches as `rules` does. Of the passages found it takes the passage p with the highest

    support(p) = weighted share of the question's words in p + ½ · share of the question's word pairs in p

where a word has the weight ln(1 + (n + 1) / (df + ½)) if df of the n passages contain it; stop words have no weight,
and words are cut to five letters. Below `LEAST` it declines; otherwise it answers with the sentence of p that contains
most of the question. An answer is always a part of a passage, word for word.

It matches words, not meaning: a question about something that the documents only mention can get a sentence.
"""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from coseek.agents.scripted.rules import STOP_WORDS, RuleAgent
from coseek.agents.scripted_agent import Move
from coseek.agents.tag import NOT_FOUND
from coseek.core.text import sentence_spans
from coseek.data.passage import Passage
from coseek.models.model import EpisodeState
from coseek.retrieval.lexical.analyzer import units, words

PROMPT_TEMPLATE = "default"

LEAST, LEAST_CJK = 0.45, 0.3
"""Minimum support of an answer; lower in Chinese, Japanese and Korean, where pairs of characters are compared."""
STEM = 5
"""Number of letters of a word that are compared."""
SHORTEST, LONGEST = 40, 400
"""Characters of an answer. A shorter sentence, such as a heading, is extended by the next one."""
READ, CHARACTERS = 5, 50_000
"""Number of passages that are considered, best first, and of their characters."""
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
    """The answering passage and its best sentence; `None` and `NOT_FOUND` if no passage supports the question."""
    passages = [replace(passage, text=passage.text[:CHARACTERS]) for passage in passages]
    weights = _weights(question, passages)
    read_passages = [passage for passage in passages[:READ] if passage.text.strip()]
    supports = [(support(question, passage, weights), passage) for passage in read_passages]
    best, passage = max(supports, key=lambda pair: pair[0], default=(0.0, None))
    question_words = words(question)
    pairs = sum(len(word) == 2 and not word.isascii() for word in question_words)
    if passage is None or best < (LEAST_CJK if 2 * pairs > len(question_words) else LEAST):
        return None, NOT_FOUND
    return passage, sentence(question, passage, weights)


def support(question: str, passage: Passage, weights: Mapping[str, float]) -> float:
    """How much of the question a passage contains, from 0 to 1.5."""
    text = f"{passage.title} . {passage.text}"
    pairs, text_pairs = list(pairwise(words(question))), set(pairwise(words(text)))
    common = sum(pair in text_pairs and not STOP_WORDS.issuperset(pair) for pair in pairs)
    return _share(text, weights) + 0.5 * common / max(1, len(pairs))


def sentence(question: str, passage: Passage, weights: Mapping[str, float]) -> str:
    """The sentence of a passage that contains most of a question, extended by the next ones while it is short."""
    text = passage.text.strip()
    spans = [(start, end) for start, end in sentence_spans(text) if text[start:end].strip()]
    asks_number = not _COUNTS.isdisjoint(words(question))
    numbers = set(_DIGITS.findall(question))

    def fit(index: int) -> float:
        start, end = spans[index]
        has_number = asks_number and not numbers.issuperset(_DIGITS.findall(text[start:end]))
        return _share(text[start:end], weights) + (0.3 if has_number else 0.0)

    first = max(range(len(spans)), key=fit)
    start, end = spans[first]
    for _, later_end in spans[first + 1 :]:
        if end - start >= SHORTEST or later_end - start > LONGEST:
            break
        end = later_end
    answer = " ".join(text[start:end].split())
    answer = answer.lstrip("•*#-> ") or answer
    return answer if len(answer) <= LONGEST else answer[:LONGEST].rpartition(" ")[0] or answer[:LONGEST]


def _weights(question: str, passages: Sequence[Passage]) -> dict[str, float]:
    """The weights of the question's words, which sum to 1."""
    content = _content(question)
    counts = Counter(word for passage in passages for word in _units(f"{passage.title} {passage.text}") & content)
    weights = {word: math.log(1 + (len(passages) + 1) / (counts[word] + 0.5)) for word in sorted(content)}
    total = sum(weights.values())
    return {word: weight / total for word, weight in weights.items()}


def _share(text: str, weights: Mapping[str, float]) -> float:
    return sum(weights[word] for word in sorted(_units(text) & weights.keys()))


def _content(text: str) -> set[str]:
    return {word[:STEM] for word in words(text) if word not in STOP_WORDS}


def _units(text: str) -> set[str]:
    """The words of a text, and the single characters of pairs, which a question of one character consists of."""
    content = _content(text)
    return content.union(*map(units, content))
