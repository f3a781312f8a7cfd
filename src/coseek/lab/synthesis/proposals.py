"""Proposals: questions and answers that a language model writes about one passage, or about two that are linked.

A reply is one JSON object; a reply that cannot be read is requested once more. Failures of the model are counted; they
are neither questions nor reasons to drop any.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from coseek.core.errors import RunError
from coseek.core.files import Json
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Corpus, Passage
from coseek.data.question import plain_name
from coseek.graders.structured_output import (
    RETRIES,
    CallCounts,
    OutputRequest,
    ParsedOutput,
    Unreadable,
    ask_with_retry,
)
from coseek.lab.synthesis.statements import key_of, names_in
from coseek.models.judge_text import unfenced
from coseek.models.text_model import TextModel
from coseek.models.written import repeatable
from coseek.retrieval.lexical.analyzer import words

PROMPTS = Path(__file__).parent / "prompts"
_PASSAGES = {"count", "passages"}
_FIELDS = {
    "single": _PASSAGES, "pair": _PASSAGES | {"link"}, "passage": {"number", "title", "text"}, "again": set[str]()
}  # fmt: skip
_MAX_WORDS = 400
"""Words of one passage that are shown."""
_TOGETHER = 32
"""Requests that a model is given together."""
_LEAST_WORDS = 5
"""Words of a passage that is asked about."""
_RARE = 5
"""Passages that may hold a name that joins them, or have it as their title."""
MANY_FAULTS = 8
"""Failures in a row that end a synthesis; fewer are counted."""


@dataclass(frozen=True, slots=True)
class PassageGroup:
    """What a request shows: one passage, or two that a name links: the title of the second, or a rare name of both.

    Unlike a hop of the graph it states nothing: what the passages say of the name is left to whoever reads them.
    """

    rows: tuple[int, ...]
    link: str = ""
    """The name that leads from the first passage to the second, as the first one writes it."""
    rank: int = 0
    """Pairs whose second passage is titled by the link come before the others."""


def single_passages(passages: Iterable[Passage]) -> list[PassageGroup]:
    """Every passage that is long enough to be asked about."""
    return [PassageGroup((row,)) for row, passage in enumerate(passages) if len(words(passage.text)) >= _LEAST_WORDS]


def linked_passages(passages: Sequence[Passage]) -> Iterator[PassageGroup]:
    """Every linked pair of titled passages, once in each direction at most."""
    titles = [key_of(plain_name(passage.title)) for passage in passages]
    titled, holders = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for row, title in enumerate(titles):
        titled[title].append(row)
    names: list[dict[str, str]] = []
    for row, passage in enumerate(passages):
        mentions = [mention for mention in names_in(passage.text, titled) if mention.kind == "name" and mention.key]
        names.append({mention.key: mention.text for mention in reversed(mentions)})
        for key in names[row]:
            holders[key].append(row)
    for row, written in enumerate(names):
        joined = {row}
        for key, name in written.items():
            others = titled.get(key) or holders[key]
            if key != titles[row] and len(others) <= _RARE:
                yield from (
                    PassageGroup((row, other), name, int(key not in titled)) for other in others if other not in joined
                )
                joined.update(others)


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


@dataclass(frozen=True, slots=True)
class Proposal:
    """A question that a model wrote."""

    rows: tuple[int, ...]
    """The passages that it was shown: one, or two in the order of the steps."""
    question: str
    answer: str
    link: str = ""
    """The name that leads from the first passage to the second."""
    steps: tuple[str, ...] = ()
    """The questions of the two steps, where the model wrote them."""


@dataclass
class QuestionProposer:
    """A model that proposes questions, with its prompts. Counts its calls."""

    model: TextModel
    prompt: ProposalPrompt
    counts: CallCounts = field(default_factory=CallCounts)
    requests: int = 0
    """Passages and pairs that it was asked about."""
    unreadable: int = 0
    """Requests whose second reply could not be read either."""
    fault: str = ""
    """The first failure."""

    @classmethod
    def over(cls, model: TextModel, prompt: str = "proposal") -> "QuestionProposer":
        """A proposer with the built-in prompts or a YAML file."""
        return cls(model, load_prompt(ProposalPrompt, prompt, Path(), _FIELDS, PROMPTS))

    @property
    def tally(self) -> dict[str, int]:
        """Counts of the calls by their outcome."""
        failed = sum(self.counts.faults.values())
        return {
            "requests": self.requests, "retries": self.counts.counts[RETRIES], "unreadable": self.unreadable,
            "failed": failed,
        }  # fmt: skip

    def propose(
        self, corpus: Corpus, groups: Sequence[PassageGroup], seed: str, questions: int, limit: int, max_tokens: int
    ) -> Iterator[list[Proposal]]:
        """What the model writes about the first `limit` of the `groups`, in a seeded order that keeps those of lower
        rank first; one list a batch of requests. Raises `RunError` when all of a batch failed."""
        order = random.Random(seed).sample(groups, len(groups))
        order = sorted(order, key=lambda group: group.rank)[:limit]
        for start in range(0, len(order), _TOGETHER):
            batch = order[start : start + _TOGETHER]
            requests = [self._request([corpus[row] for row in group.rows], group.link, questions) for group in batch]
            replies = ask_with_retry(self.model, requests, max_tokens, self.counts)
            self._count(replies)
            yield [
                replace(proposal, rows=group.rows, link=group.link)
                for group, reply in zip(batch, replies, strict=True)
                for proposal in reply.found or ()
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

    def _count(self, replies: Sequence[ParsedOutput[tuple[Proposal, ...]]]) -> None:
        self.requests += len(replies)
        self.unreadable += sum(bool(reply.unreadable) for reply in replies)
        faults = [reply.fault for reply in replies if reply.fault]
        self.fault = self.fault or next(iter(faults), "")
        if len(faults) == len(replies) and (len(faults) >= MANY_FAULTS or self.requests == len(faults)):
            raise RunError(
                f"the generator failed in all of {len(faults)} requests in a row: {faults[0]}; nothing is written, and "
                "the same command resumes from the replies in its cache"
            )


def read_proposals(text: str, most: int) -> tuple[Proposal, ...] | Unreadable:
    """The proposals in a reply, the first `most`; their rows are not known yet."""
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
        proposals.append(Proposal((), one_line(question), one_line(answer), steps=_texts(fields.get("steps"))))
    return tuple(proposals)


def _texts(value: Json) -> tuple[str, ...]:
    """The texts of a list of texts; empty for anything else."""
    items = value if isinstance(value, list) else []
    texts = tuple(one_line(item) for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else ()
