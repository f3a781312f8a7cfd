"""Proposals: questions and answers about one passage, or about two that are linked, as a language model writes them.

A reply is one JSON object; an unreadable reply is requested once more. Failures of the model are counted; they drop no
question.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from coseek.core.errors import RunError
from coseek.core.files import Json
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Passage
from coseek.graders.structured_output import (
    RETRIES,
    CallCounts,
    OutputRequest,
    ParsedOutput,
    Unreadable,
    ask_with_retry,
)
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.graph import HopGraph, PassageGroup
from coseek.models.judge_text import unfenced
from coseek.models.text_model import TextModel
from coseek.models.written import repeatable

PROMPTS = Path(__file__).parent / "prompts"
_PASSAGES = {"count", "passages"}
_FIELDS = {
    "single": _PASSAGES, "pair": _PASSAGES | {"link"}, "passage": {"number", "title", "text"}, "again": set[str]()
}  # fmt: skip
_MAX_WORDS = 400
"""Maximum words of a passage in a prompt."""
BATCH = 32
"""Groups of passages per batch of requests."""
MANY_FAULTS = 8
"""Consecutive failures that end a synthesis; fewer are counted."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A question and its answer."""

    rows: tuple[int, ...]
    """Its passages: one, or two in the order of the steps."""
    question: str
    answer: str
    """As the last passage writes it."""
    link: str = ""
    """The name that leads from the first passage to the second."""
    steps: tuple[str, ...] = ()
    """The question of each step; empty if the writer gave none."""
    phrases: tuple[str, ...] = ()
    """The words of each step's passage between its two names; empty if unknown."""
    guessed: bool = False
    """Whether the answer can be guessed without a search."""


class QuestionWriter(Protocol):
    """Writes proposals: a language model, or the phrases of the passages."""

    def propose(self, graph: HopGraph, hops: int, settings: SynthesisSettings) -> Iterator[list[Proposal]]:
        """Proposals of 1 or 2 hops, in batches, which are drawn until there are enough questions."""


class ProposalPrompt(PromptFile):
    """Prompts for one passage and for a pair."""

    single: str
    """`{count}` and `{passages}` are filled in."""
    pair: str
    """`{link}`, too: the name that both passages hold."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""
    again: str
    """Appended to the prompt after an unreadable reply."""


@dataclass
class QuestionProposer:
    """A language model that writes proposals, with its prompts. Counts its calls."""

    model: TextModel
    prompt: ProposalPrompt
    counts: CallCounts = field(default_factory=CallCounts)
    requests: int = 0
    """Number of requests: passages and pairs."""
    unreadable: int = 0
    """Requests whose second reply was unreadable, too."""
    fault: str = ""
    """The first failure."""

    @classmethod
    def over(cls, model: TextModel, prompt: str = "proposal") -> "QuestionProposer":
        """A proposer with the built-in prompts or a YAML file."""
        return cls(model, load_prompt(ProposalPrompt, prompt, Path(), _FIELDS, PROMPTS))

    @property
    def tally(self) -> dict[str, int]:
        """Counts of the calls by their outcome."""
        return {
            "requests": self.requests, "retries": self.counts.counts[RETRIES], "unreadable": self.unreadable,
            "failed": sum(self.counts.faults.values()),
        }  # fmt: skip

    def propose(self, graph: HopGraph, hops: int, settings: SynthesisSettings) -> Iterator[list[Proposal]]:
        """The model's proposals for at most `limit` groups of passages, in a seeded order with lower ranks first.
        Raises `RunError` if a whole batch failed."""
        groups = shuffled(graph.groups(hops), settings.seed, hops)[: settings.limit]
        for start in range(0, len(groups), BATCH):
            batch = groups[start : start + BATCH]
            requests = [
                self._request([graph.corpus[row] for row in group.rows], group.link, settings.proposals)
                for group in batch
            ]
            replies = ask_with_retry(self.model, requests, settings.reply_tokens, self.counts)
            self._count_replies(replies)
            yield [
                replace(proposal, rows=group.rows, link=group.link)
                for group, reply in zip(batch, replies, strict=True)
                for proposal in reply.value or ()
            ]

    def _request(self, path: Sequence[Passage], link: str, questions: int) -> OutputRequest[tuple[Proposal, ...]]:
        passages = "".join(
            fill_template(
                self.prompt.passage, number=str(number), title=one_line(passage.title),
                text=one_line(passage.text, _MAX_WORDS),
            )
            for number, passage in enumerate(path, start=1)
        )  # fmt: skip
        prompt = fill_template(
            self.prompt.pair if link else self.prompt.single,
            count=str(questions), passages=repeatable(passages.rstrip("\n")), link=one_line(link),
        )  # fmt: skip
        return OutputRequest(prompt, self.prompt.again, partial(read_proposals, most=questions))

    def _count_replies(self, replies: Sequence[ParsedOutput[tuple[Proposal, ...]]]) -> None:
        self.requests += len(replies)
        self.unreadable += sum(bool(reply.unreadable) for reply in replies)
        faults = [reply.fault for reply in replies if reply.fault]
        self.fault = self.fault or next(iter(faults), "")
        if len(faults) == len(replies) and (len(faults) >= MANY_FAULTS or self.requests == len(faults)):
            raise RunError(
                f"the generator failed in all of {len(faults)} requests in a row: {faults[0]}; nothing is written, and "
                "the same command resumes from the replies in its cache"
            )


def shuffled(groups: Sequence[PassageGroup], seed: int, hops: int) -> list[PassageGroup]:
    """The groups in a seeded order, lower ranks first."""
    order = random.Random(f"{seed} proposals {hops}").sample(groups, len(groups))
    return sorted(order, key=lambda group: group.rank)


def read_proposals(text: str, most: int) -> tuple[Proposal, ...] | Unreadable:
    """The first `most` proposals in a reply, still without rows."""
    try:
        reply = parse_lenient(unfenced(text))
    except InvalidJson as error:
        return Unreadable(str(error))
    rows = reply.get("questions") if isinstance(reply, dict) else None
    if not isinstance(rows, list):
        return Unreadable('no object with a list "questions"')
    proposals: list[Proposal] = []
    for row in rows[:most]:
        fields = row if isinstance(row, dict) else {}
        question, answer = fields.get("question"), fields.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            return Unreadable('a question without the texts "question" and "answer"')
        proposals.append(Proposal((), one_line(question), one_line(answer), steps=_parse_texts(fields.get("steps"))))
    return tuple(proposals)


def _parse_texts(value: Json) -> tuple[str, ...]:
    """The texts of a list of texts; empty for anything else."""
    items = value if isinstance(value, list) else []
    texts = tuple(one_line(item) for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else ()
