"""Evidence: the demonstrator for questions with gold passages. It knows the answer, and quotes what the passages say.

It searches every step of a question where the steps are known (2Wiki's path, MuSiQue's decomposition), even where an
earlier search happened to find its passage: an agent that learns from it cannot know that it may stop. Else it searches
the question as it stands, then the titles that only the passages name. After a search it quotes, shortly, the passage
that the search was for. It declines where a gold passage was not found.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from coseek.agents.actions import NOT_FOUND
from coseek.agents.episode import latest_block, shown_documents
from coseek.agents.scripted_agent import Move
from coseek.agents.sources import first_with, holds
from coseek.core.text import sentence_spans
from coseek.data.gold_path import has_plan, plain_name, plan_of
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.models.model import EpisodeState
from coseek.retrieval.lexical.analyzer import has_words

PROMPT_TEMPLATE = "default"
NEEDS = "gold passages and gold answers"

LONGEST = 120
"""Characters of a quotation; more only where what it should hold is longer."""
_EARLIER = re.compile(r"#(\d+)")
"""The answer of an earlier step, in MuSiQue's steps."""


class KnownStep(NamedTuple):
    """A step of a question that is known."""

    gold_id: str
    question: str
    query: str
    answer: str


class EvidenceAgent:
    """A scripted agent for questions with gold passages; others are declined."""

    def __init__(self, corpus: Corpus | None = None) -> None:
        """`corpus` knows the titles of passages that were not found yet; without it none is searched by title."""
        self.corpus = corpus

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The next move; a pure function of the question and the searches."""
        question, searches = so_far.question, so_far.searches
        seen = {hit.passage.id: hit.passage for search in searches for hit in search.hits}
        missing = [ident for ident in question.gold_ids if ident not in seen]
        gold = [seen[ident] for ident in question.gold_ids if ident in seen]
        report, worth = self._report(so_far), self._worth(so_far)
        for need in self._needs(question, missing, gold):
            if all(search.query.strip() != need.query for search in searches):
                return Move(f"{report} {need.question}", queries=(f" {need.query}",), selected=worth)
        if question.gold_ids and question.answers and not missing:
            return Move(report, answer=f" {held_answer(question, gold)}", selected=worth)
        return self.conclude(so_far, rng)

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Decline, with what was found so far."""
        return Move(" Nothing that I found answers this.", answer=f" {NOT_FOUND}", selected=self._worth(so_far))

    def _report(self, so_far: EpisodeState) -> str:
        """A sentence of the gold passage that the latest search was for, or of each that it found first."""
        question, latest = so_far.question, latest_block(so_far.searches)
        if not latest:
            return ""
        before = so_far.searches[: len(so_far.searches) - len(latest)]
        known = {hit.passage.id for search in before for hit in search.hits}
        shown = {hit.passage.id: hit.passage for _, hit in shown_documents(latest)}
        needs = [*known_steps(question), *self._titled(question.gold_ids)]
        aims = {need.gold_id for search in latest for need in needs if need.query == search.query.strip()}
        quoted = [shown[ident] for ident in question.gold_ids if ident in shown and ident in aims]
        quoted = quoted or [shown[ident] for ident in question.gold_ids if ident in shown and ident not in known]
        texts = [f" {one.title}: {quotation(one, self._wanted(question, one))}" for one in quoted]
        return "".join(texts) or " Not found."

    def _needs(self, question: Question, missing: Sequence[str], gold: Sequence[Passage]) -> Iterator[KnownStep]:
        """What is to be searched, best first."""
        steps = known_steps(question)
        yield from steps
        if not steps:
            yield KnownStep("", "I search for the question.", question.question.strip(), "")
        for title in self._titled(question.gold_ids):
            in_question = has_words(question.question, title.query)
            named = any(has_words(passage.text, title.query) for passage in gold if passage.id != title.gold_id)
            if named or in_question if title.gold_id in missing else named and not (in_question or steps):
                yield title

    def _titled(self, idents: Sequence[str]) -> list[KnownStep]:
        """Gold passages as steps that search their titles; none without a corpus."""
        if self.corpus is None:
            return []
        titles = [(ident, plain_name(self.corpus.by_id(ident).title)) for ident in idents]
        return [KnownStep(ident, f"I need {title}.", title, "") for ident, title in titles]

    def _wanted(self, question: Question, passage: Passage) -> list[str]:
        """What the quotation of a gold passage should hold: the answer of its step, the answer, or another's title."""
        of_step = [step.answer for step in known_steps(question) if step.gold_id == passage.id]
        others = self._titled([ident for ident in question.gold_ids if ident != passage.id])
        return [*of_step, *question.answers, *(title.query for title in others)]

    def _worth(self, so_far: EpisodeState) -> tuple[str, ...] | None:
        """The gold passages found; no selection before a search."""
        found = (hit.passage.id for search in so_far.searches for hit in search.hits)
        gold = tuple(dict.fromkeys(ident for ident in found if ident in so_far.question.gold_ids))
        return gold if so_far.searches else None


def make() -> EvidenceAgent:
    return EvidenceAgent()


def quotation(passage: Passage, wanted: Sequence[str]) -> str:
    """The sentence of a passage that holds one of the texts, else its first; cut around the text where it is long."""
    text = first_with(passage, wanted)
    if not text:
        start, end = next(iter(sentence_spans(passage.text)), (0, 0))
        text = passage.text[start:end]
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    low = text.lower()
    start, end = next(((at, at + len(one)) for one in wanted if (at := low.find(one.lower())) >= 0), (0, 0))
    first = text.rfind(" ", 0, start - LONGEST // 2) + 1 if start > LONGEST // 2 else 0
    last = max(end, first + LONGEST)
    return (
        text[first:] if last >= len(text) else text[first:last] if last == end else text[first:last].rpartition(" ")[0]
    )


def held_answer(question: Question, gold: Sequence[Passage]) -> str:
    """The first gold answer that a gold passage holds, else the first."""
    held = (answer for answer in question.answers if any(holds(passage, answer) for passage in gold))
    return next(held, question.answers[0]).strip()


def known_steps(question: Question) -> list[KnownStep]:
    """The steps along a question's path (2Wiki, made questions) or decomposition (MuSiQue); empty without either."""
    if has_plan(question):
        return [
            KnownStep(step.gold_id, step.sub_question, f"{step.mention} {step.relation}".strip(), step.sub_answer)
            for step in plan_of(question)
        ]
    rows = question.meta.get("decomposition")
    steps: list[KnownStep] = []
    for row in rows if isinstance(rows, list) else []:
        if not isinstance(row, dict) or "gold_id" not in row:
            return []
        earlier = partial(_earlier, answers=[step.answer for step in steps])
        asked = _EARLIER.sub(earlier, str(row["question"])).replace(" >> ", " ")
        steps.append(KnownStep(str(row["gold_id"]), asked, asked, str(row["answer"])))
    return steps


def _earlier(found: re.Match[str], answers: Sequence[str]) -> str:
    place = int(found[1]) - 1
    return answers[place] if 0 <= place < len(answers) else found[0]
