"""Readable: a trajectory as a conversation, in plain text and in HTML for a notebook."""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from coseek.data.trajectory import Trajectory

OBSERVATION_CHARS = 600
"""Characters of an observation in plain text; HTML has all of it, folded."""


class Utterance(NamedTuple):
    """One segment as a reader sees it."""

    speaker: str
    text: str
    is_agent: bool


def utterances(trajectory: "Trajectory") -> Iterator[Utterance]:
    """The segments after the prompt; turns of the agent are numbered from 1."""
    turn = 0
    for segment in trajectory.segments[1:]:
        is_agent = bool(segment.author == "agent")
        turn += is_agent
        speaker = f"agent, turn {turn}" if is_agent else segment.tag or "environment"
        yield Utterance(speaker, segment.text.strip(), is_agent)


def outcome(trajectory: "Trajectory") -> str:
    """One line: the answer, whether it is right, the searches, and why the run ended."""
    answer = "no answer" if trajectory.answer is None else f"answer {trajectory.answer!r}"
    golds = trajectory.question.answers
    right = f" ({'right' if trajectory.exact_match else 'wrong'}; gold: {' | '.join(golds)})" if golds else ""
    searches = trajectory.searches_made
    detail = f": {trajectory.stop_detail}" if trajectory.stop_detail else ""
    return f"{answer}{right}, {searches} search{'' if searches == 1 else 'es'}, ended by {trajectory.stop}{detail}"


def as_text(trajectory: "Trajectory") -> str:
    """Question, turns, observations (long ones cut) and outcome, a blank line between them."""
    parts = [f"question: {trajectory.question.question.strip()}"]
    for said in utterances(trajectory):
        text = said.text
        if not said.is_agent and len(text) > OBSERVATION_CHARS:
            text = f"{text[:OBSERVATION_CHARS].rstrip()} … ({len(text) - OBSERVATION_CHARS:,} more characters)"
        parts.append(f"[{said.speaker}]\n{text}")
    return "\n\n".join([*parts, f"[end] {outcome(trajectory)}"])


_AGENT, _OTHER = "border-left:3px solid #3b7ddd;padding-left:.6em", "color:#666;padding-left:.75em"


def as_html(trajectory: "Trajectory") -> str:
    """The same for a notebook; observations are folded."""
    parts = [f"<p><b>{escape(trajectory.question.question.strip())}</b></p>"]
    for said in utterances(trajectory):
        text = f'<div style="white-space:pre-wrap">{escape(said.text)}</div>'
        name = escape(said.speaker)
        if said.is_agent:
            parts.append(f'<div style="{_AGENT}"><small>{name}</small>{text}</div>')
        else:
            parts.append(f'<details style="{_OTHER}"><summary>{name}</summary>{text}</details>')
    return f"<div>{''.join(parts)}<p><small>{escape(outcome(trajectory))}</small></p></div>"
