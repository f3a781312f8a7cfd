"""Evidence: the demonstrator for questions with gold passages. It knows the answer and quotes the passages.

It searches the steps of a question if they are known (2Wiki's path, MuSiQue's decomposition), else the question itself
and then the titles that occur in the question or in the passages found. It answers once its searches have found every
gold passage, and declines otherwise.
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from coseek.agents.episode import latest_block, shown_documents
from coseek.agents.scripted_agent import Move
from coseek.agents.sources import first_with, holds
from coseek.agents.tag import NOT_FOUND
from coseek.core.text import sentence_spans
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, has_plan, plain_name, plan_of
from coseek.models.model import EpisodeState
from coseek.retrieval.lexical.analyzer import has_words

PROMPT_TEMPLATE = "default"
NEEDS = "gold passages and gold answers"

LONGEST = 240
"""Maximum characters of a quotation."""


class EvidenceAgent:
    """A scripted agent for questions with gold passages; it declines all others."""

    def __init__(self, corpus: Corpus | None = None) -> None:
        """`corpus` holds the titles of passages that were not found yet; without it no title is searched."""
        self.corpus = corpus

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The next move, a pure function of the question and the searches."""
        question, searches = so_far.question, so_far.searches
        seen_passages = {hit.passage.id: hit.passage for search in searches for hit in search.hits}
        missing = [ident for ident in question.gold_ids if ident not in seen_passages]
        gold = [seen_passages[ident] for ident in question.gold_ids if ident in seen_passages]
        report, selected = self._report(so_far, missing), self._selected_ids(so_far)
        if question.gold_ids and question.answers and not missing:
            return Move(report, answer=f" {held_answer(question, gold)}", selected=selected)
        for thought, query in self._needs(question, missing, gold):
            if all(search.query.strip() != query for search in searches):
                return Move(f"{report} {thought}", queries=(f" {query}",), selected=selected)
        return self.conclude(so_far, rng)

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Decline, with the passages found so far."""
        return Move(" Nothing that I found answers this.", answer=f" {NOT_FOUND}", selected=self._selected_ids(so_far))

    def _report(self, so_far: EpisodeState, missing: Sequence[str]) -> str:
        """A sentence of each gold passage that the latest search found first."""
        if not so_far.searches:
            return ""
        latest = latest_block(so_far.searches)
        earlier = so_far.searches[: len(so_far.searches) - len(latest)]
        new_gold = set(so_far.question.gold_ids) - {hit.passage.id for search in earlier for hit in search.hits}
        quotations = [
            f" [{number}] {hit.passage.title}: "
            + quotation(hit.passage, self._wanted_texts(so_far.question, hit.passage, missing))
            for number, (_, hit) in enumerate(shown_documents(latest), start=1)
            if hit.passage.id in new_gold
        ]
        return "".join(quotations) or " Not found."

    def _needs(self, question: Question, missing: Sequence[str], gold: Sequence[Passage]) -> Iterator[tuple[str, str]]:
        """Possible searches, best first: (sentence for the thought, query)."""
        steps = [step for step in known_steps(question) if step.gold_id in missing]
        yield from ((step.question, step.query) for step in steps)
        if not any(known_steps(question)):
            yield "I search for the question.", question.searched.strip()
        read_texts = [question.question, *(passage.text for passage in gold)]
        for title in self._titles(missing):
            if any(has_words(text, title) for text in read_texts):
                yield f"I need {title}.", title

    def _titles(self, idents: Sequence[str]) -> list[str]:
        return [] if self.corpus is None else [plain_name(self.corpus.by_id(ident).title) for ident in idents]

    def _wanted_texts(self, question: Question, passage: Passage, missing: Sequence[str]) -> list[str]:
        """What the quotation of a gold passage should contain: the answer of its step, the answer, or the title of a
        passage that is still missing."""
        step_answers = [step.answer for step in known_steps(question) if step.gold_id == passage.id]
        return [*step_answers, *question.answers, *self._titles(missing)]

    def _selected_ids(self, so_far: EpisodeState) -> tuple[str, ...] | None:
        """The gold passages found; `None` before the first search."""
        idents = (hit.passage.id for search in so_far.searches for hit in search.hits)
        gold = tuple(dict.fromkeys(ident for ident in idents if ident in so_far.question.gold_ids))
        return gold if so_far.searches else None


def make() -> EvidenceAgent:
    return EvidenceAgent()


def quotation(passage: Passage, wanted: Sequence[str]) -> str:
    """The sentence of a passage that contains one of the texts, else its first sentence; a long sentence is cut around
    the text."""
    text = first_with(passage, wanted)
    if not text:
        start, end = next(iter(sentence_spans(passage.text)), (0, 0))
        text = passage.text[start:end]
    text = " ".join(text.split())
    if len(text) <= LONGEST:
        return text
    position = next((index for target in wanted if (index := text.lower().find(target.lower())) >= 0), 0)
    start = text.rfind(" ", 0, max(0, position - LONGEST // 2)) + 1 if position > LONGEST // 2 else 0
    excerpt = text[start : start + LONGEST]
    return excerpt if start + LONGEST >= len(text) else excerpt.rpartition(" ")[0]


def held_answer(question: Question, gold: Sequence[Passage]) -> str:
    """The first gold answer that a gold passage contains, else the first."""
    held_answers = (answer for answer in question.answers if any(holds(passage, answer) for passage in gold))
    return next(held_answers, question.answers[0]).strip()


class KnownStep(NamedTuple):
    """A known step of a question."""

    gold_id: str
    question: str
    query: str
    answer: str


def known_steps(question: Question) -> list[KnownStep]:
    """The steps along a question's path (2Wiki, made questions) or decomposition (MuSiQue); empty without either."""
    if has_plan(question):
        return [
            KnownStep(step.gold_id, step.sub_question, f"{step.mention} {step.relation}".strip(), step.sub_answer)
            for step in plan_of(question)
        ]
    entries = question.meta.get("decomposition")
    steps: list[KnownStep] = []
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or "gold_id" not in entry:
            return []
        query = re.sub(r"#(\d+)", partial(_answer_of, steps=steps), str(entry["question"])).replace(" >> ", " ")
        steps.append(KnownStep(str(entry["gold_id"]), query, query, str(entry["answer"])))
    return steps


def _answer_of(reference: re.Match[str], steps: Sequence[KnownStep]) -> str:
    """The answer of the earlier step that `#1` names (MuSiQue); an invalid reference is kept."""
    index = int(reference[1]) - 1
    return steps[index].answer if 0 <= index < len(steps) else reference[0]
