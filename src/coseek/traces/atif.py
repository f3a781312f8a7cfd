"""ATIF: the Agent Trajectory Interchange Format 1.7 (Harbor), out and in, through the messages of a trajectory.

An agent step has the results of its calls as its observation, and in `metrics` the token ids that were read and
sampled, with log-probabilities, where the run has them. Images and audio become a note in the text.
"""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import cast

import coseek
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.written import reasoning_in
from coseek.traces.calls import calls_in, text_of
from coseek.traces.conversation import ChatTurn, SampledIds, results_of, turns_of
from coseek.traces.messages import OF_RESULT, about, messages_of

VERSION = "ATIF-v1.7"
SOURCES = {"user": "user", "assistant": "agent"}
"""Role of a message → source of a step; all others are `system`."""


def is_atif(row: JsonObject) -> bool:
    return str(row.get("schema_version")).startswith("ATIF-")


def atif_document(run: Trajectory, model_name: str | None = None) -> JsonObject:
    """The ATIF document of a trajectory. `model_name` is that of the agent of a run of coseek."""
    messages = messages_of(run)
    begin, turns = turns_of(messages, run.question.question)
    wrote = [at for at, segment in enumerate(run.segments) if segment.author is Author.AGENT]
    steps = [_step(message) for message in messages[:begin]]
    for place, turn in enumerate(turns):
        written = [_step(messages[at]) for at in turn.written]
        if len(turn.written) == 1 and place < len(wrote) and (metrics := _metrics(run, wrote[place])):
            written[0]["metrics"] = metrics
        steps += written
        steps += _observed(written, messages, turn)
    own = not run.messages
    agent: JsonObject = {"name": "coseek" if own else "unknown", "version": coseek.__version__ if own else "unknown"}
    if own and model_name is not None:
        agent["model_name"] = model_name
    cost: JsonObject = {} if run.cost_usd is None else {"total_cost_usd": run.cost_usd}
    return {
        "schema_version": VERSION,
        "trajectory_id": f"{run.question.id}/{run.seed}",
        "agent": agent,
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {"total_steps": len(steps), **cost},
        "extra": about(run),
    }


def _step(message: JsonObject) -> JsonObject:
    step: JsonObject = {
        "source": SOURCES.get(str(message["role"]), "system"),
        "message": text_of(message.get("content")),
    }
    if step["source"] == "agent":
        if reasoning := reasoning_in(message):
            step["reasoning_content"] = reasoning
        if calls := calls_in(message):
            step["tool_calls"] = [
                {
                    "tool_call_id": call.ident or f"call_{number}",
                    "function_name": call.name,
                    "arguments": call.object,
                }
                for number, call in enumerate(calls, start=1)
            ]
    return step


def _observed(written: Sequence[JsonObject], messages: Sequence[JsonObject], turn: ChatTurn) -> list[JsonObject]:
    """Put the results of a turn's calls into the steps that made them; returns the steps of its other messages."""
    _, matched = results_of(messages, turn)
    owners = [step for step in written for _ in cast(list[Json], step.get("tool_calls", []))]
    idents = [call["tool_call_id"] for step in written for call in cast(list[JsonObject], step.get("tool_calls", []))]
    others: list[JsonObject] = []
    for at in turn.following:
        message = messages[at]
        if at not in matched:
            others.append(_step(message))
            continue
        result: JsonObject = {"source_call_id": idents[matched[at]], "content": text_of(message.get("content"))}
        if extra := {name: message[name] for name in OF_RESULT if name in message}:
            result["extra"] = extra
        observation = cast(JsonObject, owners[matched[at]].setdefault("observation", {"results": []}))
        cast(list[Json], observation["results"]).append(result)
    return others


def _metrics(run: Trajectory, at: int) -> JsonObject:
    """Ids of the segment with this index and of all before it, where they are those that the model sampled and read."""
    segment, before = run.segments[at], run.segments[:at]
    if not segment.ids or not (run.exact or run.messages):  # a server's text, encoded here
        return {}
    metrics: JsonObject = {"completion_tokens": len(segment.ids), "completion_token_ids": [*segment.ids]}
    if run.exact or any(segment.logprobs):
        metrics["logprobs"] = [*segment.logprobs]
    if all(one.ids or not one.text for one in before):
        read = _ids(before)
        metrics |= {"prompt_tokens": len(read), "prompt_token_ids": [*read]}
    return metrics


def _ids(segments: Sequence[Segment]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(segment.ids for segment in segments))


def conversation_parts(row: JsonObject) -> tuple[list[JsonObject], dict[int, SampledIds]]:
    """The messages of an ATIF document, and the ids of its agent's steps. Raises `DataError` for a wrong one."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not steps:
        raise DataError("this ATIF document holds no steps")
    messages: list[JsonObject] = []
    sampled: dict[int, SampledIds] = {}
    context: tuple[int, ...] | None = ()
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, dict) or step.get("source") not in ("system", "user", "agent"):
            raise DataError(f"step {number} of this ATIF document has no source of system, user or agent")
        if step["source"] == "agent" and isinstance(metrics := step.get("metrics"), dict):
            found = _sampled(metrics, context)
            context = None if found is None or context is None else (*context, *found.read, *found.ids)
            if found is not None:
                sampled[len(messages)] = found
        elif step["source"] == "agent":
            context = None
        messages += _messages(step, number)
    return messages, sampled


def _messages(step: JsonObject, number: int) -> list[JsonObject]:
    """The message of a step, and one for each result."""
    role = "assistant" if step["source"] == "agent" else str(step["source"])
    message: JsonObject = {"role": role, "content": step.get("message")}
    if isinstance(reasoning := step.get("reasoning_content"), str):
        message["reasoning_content"] = reasoning
    calls: list[Json] = []
    for call in _objects(step.get("tool_calls")):
        given = call.get("arguments")
        text = given.get("arguments") if isinstance(given, dict) and len(given) == 1 else None  # `ToolCallText.object`
        arguments = text if isinstance(text, str) else json.dumps(given, ensure_ascii=False)
        function: JsonObject = {"name": str(call.get("function_name")), "arguments": arguments}
        calls.append({"id": str(call.get("tool_call_id")), "type": "function", "function": function})
    if calls:
        message["tool_calls"] = calls
    found = [message]
    observation = step.get("observation")
    for result in _objects(observation.get("results")) if isinstance(observation, dict) else []:
        answer: JsonObject = {"role": "tool", "content": result.get("content")}
        if isinstance(ident := result.get("source_call_id"), str):
            answer["tool_call_id"] = ident
        if isinstance(extra := result.get("extra"), dict):
            answer |= {name: extra[name] for name in OF_RESULT if name in extra}
        found.append(answer)
    return found


def _objects(value: Json) -> list[JsonObject]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _sampled(metrics: Mapping[str, Json], context: tuple[int, ...] | None) -> SampledIds | None:
    """The ids of a step; `None` without any. `context` holds all ids before it, if they are known."""
    ids = _token_ids(metrics.get("completion_token_ids"))
    if not ids:
        return None
    given = metrics.get("logprobs")
    logprobs = tuple(map(_logprob, given)) if isinstance(given, list) and len(given) == len(ids) else (0.0,) * len(ids)
    prompt = _token_ids(metrics.get("prompt_token_ids"))
    grown = context is not None and len(prompt) > len(context) and prompt[: len(context)] == context
    return SampledIds(ids, logprobs, prompt[len(context or ()) :] if grown else ())


def _token_ids(value: Json) -> tuple[int, ...]:
    """The ids of a list; none where one of them is no id."""
    ids = tuple(one for one in value if type(one) is int and one >= 0) if isinstance(value, list) else ()
    return ids if isinstance(value, list) and len(ids) == len(value) else ()


def _logprob(value: Json) -> float:
    """A log-probability; 0, which stands for an unknown one, for anything else."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= 0
    return float(cast(float, value)) if known else 0.0
