"""Stored runs as demonstrations: trajectories of any agent, kept by their outcome, in the policy's token ids.

A run that was sampled in the policy's own tokens keeps its ledger. Another one is written anew, segment by segment, and
every segment keeps its author, so that the loss masks what the environment wrote. The prompt is the recipe's own.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from coseek.agents.drivers import Limits
from coseek.agents.environment import NativeTurns
from coseek.agents.episode import Episode
from coseek.agents.grammar import Grammar
from coseek.agents.protocol import Protocol
from coseek.core.errors import DataError
from coseek.core.prompt_file import ROLE_MARK
from coseek.data.run import Run
from coseek.data.trajectory import PROMPT, Author, Segment, Trajectory
from coseek.graders.scoring import EpisodeScorer
from coseek.models.model import Tokenizer
from coseek.models.written import after_opened, closing_of
from coseek.pipelines.stages import right_runs
from coseek.rewards.reward import make_reward
from coseek.training.sft.settings import KeptRunsSettings

_END = re.compile(rf"(?:{ROLE_MARK})\s*+\Z", re.I)


def stored_demonstrations(
    folders: Sequence[str], kept: KeptRunsSettings, protocol: Protocol, tokenizer: Tokenizer, limits: Limits, seed: int
) -> list[Trajectory]:
    """The runs of these folders whose reward is high enough. Raises `DataError` for none, or another protocol's."""
    runs: list[Trajectory] = []
    for folder in folders:
        for run in Run(Path(folder)).trajectories():
            if run.protocol != protocol.name:
                raise DataError(
                    f"{folder} holds runs of the protocol {run.protocol}, and the policy learns {protocol.name}; name "
                    "runs of that protocol in warm_start.runs"
                )
            runs.append(run)
    right = right_runs(runs, EpisodeScorer(make_reward(kept.reward)), kept, seed)
    return [in_tokens_of(run, protocol, tokenizer, limits) for run in right]


def in_tokens_of(run: Trajectory, protocol: Protocol, tokenizer: Tokenizer, limits: Limits) -> Trajectory:
    """The run with the recipe's prompt, in a tokenizer's ids. Log-probabilities of a run that is written anew are 0."""
    same = all(tokenizer.decode(segment.ids) == segment.text for segment in run.segments)
    if protocol.grammar.native_calls:
        return _native_in_tokens_of(run, protocol, tokenizer, same)
    first = next((place for place, one in enumerate(run.segments) if one.author is Author.AGENT), 0)
    had = protocol.grammar.opened_mark(run.segments[first - 1].text) if first else ""
    opened = protocol.template.opened_mark(tokenizer)
    prompt, tail = protocol.template.prompt_ids(tokenizer, run.question, protocol.opens_with_search)
    segments: list[Segment] = []
    for place, segment in enumerate(run.segments):
        ours = segment.author is Author.AGENT
        moved = place == first and had != opened
        text = _reopened(segment.text, protocol.grammar, had, opened) if moved else segment.text
        kept = same and not moved
        ids = segment.ids if kept else _ids(text, protocol, tokenizer, ours)
        if segment.tag == PROMPT:
            ids = prompt
        elif place == 1 and protocol.opens_with_search:
            opening = [search for search in run.searches if search.turn == 0]
            shown = (limits.max_observation_tokens, limits.max_document_tokens)
            ids = protocol.template.block_ids(tokenizer, opening, *shown) + tail
        logprobs = (segment.logprobs if kept else (0.0,) * len(ids)) if ours else ()
        segments.append(Segment(segment.author, segment.tag, tokenizer.decode(ids), ids, logprobs))
    return replace(run, segments=tuple(segments), side_contexts=(), exact=True, messages=(), logged_protocol=None)


def _native_in_tokens_of(run: Trajectory, protocol: Protocol, tokenizer: Tokenizer, same: bool) -> Trajectory:
    """The same for native tool calls: turns in our own spelling, results in the frame of the tokenizer's template.

    Raises `DataError` for results in the frame of another chat template, which cannot be taken out of it.
    """
    ids, _ = protocol.template.prompt_ids(tokenizer, run.question)
    row = Episode(0, run.question, run.seed, 0.0)
    row.add(Segment(Author.ENVIRONMENT, PROMPT, tokenizer.decode(ids), ids))
    if same:
        return replace(run, segments=(*row.segments, *run.segments[1:]), exact=True)
    turns, opened = NativeTurns(protocol.template, tokenizer), protocol.template.opened_mark(tokenizer)
    for ours, group in groupby(run.segments[1:], lambda segment: segment.author is Author.AGENT):
        segments = list(group)
        if not ours:
            shown = [tuple(tokenizer.encode_data(_bare(segment, protocol))) for segment in segments]
            for segment, framed in zip(segments, turns.framed(row, shown), strict=True):
                row.add(Segment(Author.ENVIRONMENT, segment.tag, tokenizer.decode(framed), framed))
            continue
        for segment in segments:
            spelt = protocol.grammar.spell(segment.message or {})
            if opened:  # the frame begins the thought
                spelt = spelt.removeprefix(opened) if spelt.startswith(opened) else closing_of(opened) + spelt
            ids = (*protocol.template.text_ids(tokenizer, spelt), tokenizer.eos_id)
            text, logprobs, message = tokenizer.decode(ids), (0.0,) * len(ids), turns.read(ids)
            row.add(Segment(Author.AGENT, segment.tag, text, ids, logprobs, message=message))
    return replace(run, segments=tuple(row.segments), exact=True, messages=(), logged_protocol=None)


def _bare(segment: Segment, protocol: Protocol) -> str:
    """A result without the marks of our own spelling around it."""
    tag = protocol.grammar.by_name[protocol.grammar.observation]
    inside = segment.text.strip().removeprefix(tag.opening).removesuffix(tag.closing)
    if tag.opening in inside or protocol.grammar.escape(inside) != inside:
        raise DataError(
            "a run with native tool calls is framed by the chat template of another model; keep runs of the policy's "
            "own model, or of a server (dialect tools)"
        )
    return inside


def _reopened(text: str, grammar: Grammar, had: str, opened: str) -> str:
    """A first turn after a prompt that opened reasoning with the mark `had`, for one that opens it with `opened`."""
    has_tag = grammar.free_text or any(tag.opening in (had, opened) for tag in grammar.tags)
    if not has_tag:
        text = (after_opened(text) or text) if had else text
        return closing_of(opened) + text if opened else text
    if had and not text.lstrip().startswith(had):
        text = had + text
    return text.lstrip().removeprefix(opened) if opened else text


def _ids(text: str, protocol: Protocol, tokenizer: Tokenizer, is_turn: bool) -> tuple[int, ...]:
    """A segment in a tokenizer's ids. A turn that no stop string ended gets the tokenizer's own end of text, in place
    of another one's."""
    if not is_turn or any(stop in text for stop in protocol.grammar.stops):
        return protocol.template.text_ids(tokenizer, text)
    return (*protocol.template.text_ids(tokenizer, _END.sub("", text)), tokenizer.eos_id)
