"""ATIF: export to and import from the Agent Trajectory Interchange Format 1.7 (Harbor), by way of chat messages.

The observation of an agent step holds the results of its calls; `metrics` holds the token ids that were read and
sampled, with log-probabilities, if the run has them. Images and audio become a note in the text.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import cast

import coseek
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import Author, Trajectory
from coseek.models.written import reasoning_in
from coseek.traces.calls import as_json, calls_in, text_of, tool_call
from coseek.traces.conversation import ChatTurn, SampledIds, results_of, turns_of
from coseek.traces.messages import OF_RESULT, about, messages_of

VERSION = "ATIF-v1.7"
SOURCES = {"user": "user", "assistant": "agent"}
"""Role of a message → source of a step; `system` for other roles."""


def is_atif(row: JsonObject) -> bool:
    return str(row.get("schema_version")).startswith("ATIF-")


def atif_document(run: Trajectory, model_name: str | None = None) -> JsonObject:
    """The ATIF document of a trajectory. `model_name` is the agent of a run of coseek."""
    messages = messages_of(run)
    begin, turns = turns_of(messages, run.question.question)
    agent_segments = [index for index, segment in enumerate(run.segments) if segment.author is Author.AGENT]
    steps = [_step(message) for message in messages[:begin]]
    for number, turn in enumerate(turns):
        written_steps = [_step(messages[index]) for index in turn.written]
        if len(turn.written) == 1 and number < len(agent_segments):
            written_steps[0] |= _metrics(run, agent_segments[number])
        steps += written_steps
        steps += _add_results(written_steps, messages, turn)
    agent: JsonObject = {"name": "unknown", "version": "unknown"}
    if not run.messages:
        agent = {"name": "coseek", "version": coseek.__version__}
        agent |= {} if model_name is None else {"model_name": model_name}
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
    source = SOURCES.get(str(message["role"]), "system")
    step: JsonObject = {"source": source, "message": text_of(message.get("content"))}
    if source == "agent":
        if reasoning := reasoning_in(message):
            step["reasoning_content"] = reasoning
        calls: list[Json] = [
            {"tool_call_id": call.ident or f"call_{number}", "function_name": call.name, "arguments": call.object}
            for number, call in enumerate(calls_in(message), start=1)
        ]
        step |= {"tool_calls": calls} if calls else {}
    return step


def _add_results(steps: Sequence[JsonObject], messages: Sequence[JsonObject], turn: ChatTurn) -> list[JsonObject]:
    """Put the results of a turn's calls into the steps that made them. Returns the steps of all other messages."""
    _, matched = results_of(messages, turn)
    owners = [step for step in steps for _ in cast(list[Json], step.get("tool_calls", []))]
    idents = [call["tool_call_id"] for step in steps for call in cast(list[JsonObject], step.get("tool_calls", []))]
    other_steps: list[JsonObject] = []
    for index in turn.following:
        message = messages[index]
        if index not in matched:
            other_steps.append(_step(message))
            continue
        result: JsonObject = {"source_call_id": idents[matched[index]], "content": text_of(message.get("content"))}
        if extra := {name: message[name] for name in OF_RESULT if name in message}:
            result["extra"] = extra
        observation = cast(JsonObject, owners[matched[index]].setdefault("observation", {"results": []}))
        cast(list[Json], observation["results"]).append(result)
    return other_steps


def _metrics(run: Trajectory, index: int) -> JsonObject:
    """The metrics of a segment: its ids and all ids before it, if they are those that the model sampled and read."""
    segment, earlier_segments = run.segments[index], run.segments[:index]
    if not segment.ids or not (run.exact or run.messages):  # a server's text, encoded here
        return {}
    metrics: JsonObject = {"completion_tokens": len(segment.ids), "completion_token_ids": [*segment.ids]}
    if run.exact or any(segment.logprobs):
        metrics["logprobs"] = [*segment.logprobs]
    if all(earlier.ids or not earlier.text for earlier in earlier_segments):
        read_ids = list(chain.from_iterable(earlier.ids for earlier in earlier_segments))
        metrics |= {"prompt_tokens": len(read_ids), "prompt_token_ids": [*read_ids]}
    return {"metrics": metrics}


def conversation_parts(row: JsonObject) -> tuple[list[JsonObject], dict[int, SampledIds]]:
    """The messages of an ATIF document, and the token ids of its agent's steps. Raises `DataError` if it is invalid."""
    steps = row.get("steps")
    if not isinstance(steps, list) or not steps:
        raise DataError("this ATIF document holds no steps")
    messages: list[JsonObject] = []
    sampled: dict[int, SampledIds] = {}
    context: tuple[int, ...] | None = ()
    for number, step in enumerate(steps, start=1):
        if not isinstance(step, dict) or step.get("source") not in ("system", "user", "agent"):
            raise DataError(f"step {number} of this ATIF document has no source of system, user or agent")
        if step["source"] == "agent":
            ids = _sampled_ids(metrics, context) if isinstance(metrics := step.get("metrics"), dict) else None
            context = None if ids is None or context is None else (*context, *ids.read, *ids.ids)
            if ids is not None:
                sampled[len(messages)] = ids
        messages += _messages(step)
    return messages, sampled


def _messages(step: JsonObject) -> list[JsonObject]:
    """The message of a step, then one for each result."""
    role = "assistant" if step["source"] == "agent" else str(step["source"])
    message: JsonObject = {"role": role, "content": step.get("message")}
    if isinstance(reasoning := step.get("reasoning_content"), str):
        message["reasoning_content"] = reasoning
    calls: list[Json] = []
    for call in _objects(step.get("tool_calls")):
        arguments = call.get("arguments")
        is_text = isinstance(arguments, dict) and len(arguments) == 1  # written by `ToolCallText.object`
        text = cast(JsonObject, arguments).get("arguments") if is_text else None
        text = text if isinstance(text, str) else as_json(arguments)
        calls.append(tool_call(str(call.get("tool_call_id")), str(call.get("function_name")), text))
    if calls:
        message["tool_calls"] = calls
    messages = [message]
    observation = step.get("observation")
    for result in _objects(observation.get("results")) if isinstance(observation, dict) else []:
        answer: JsonObject = {"role": "tool", "content": result.get("content")}
        if isinstance(ident := result.get("source_call_id"), str):
            answer["tool_call_id"] = ident
        if isinstance(extra := result.get("extra"), dict):
            answer |= {name: extra[name] for name in OF_RESULT if name in extra}
        messages.append(answer)
    return messages


def _objects(value: Json) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _sampled_ids(metrics: Mapping[str, Json], context: tuple[int, ...] | None) -> SampledIds | None:
    """The ids of a step; `None` without any. `context` holds all ids before it, if known."""
    ids = _token_ids(metrics.get("completion_token_ids"))
    if not ids:
        return None
    logged_values = metrics.get("logprobs")
    has_all = isinstance(logged_values, list) and len(logged_values) == len(ids)
    logprobs = tuple(map(_logprob, cast(list[Json], logged_values) if has_all else [None] * len(ids)))
    prompt = _token_ids(metrics.get("prompt_token_ids"))
    has_grown = context is not None and len(prompt) > len(context) and prompt[: len(context)] == context
    return SampledIds(ids, logprobs, prompt[len(context or ()) :] if has_grown else ())


def _token_ids(value: Json) -> tuple[int, ...]:
    """The ids of a list; empty if any item is not an id."""
    is_ids = isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
    return tuple(cast(list[int], value)) if is_ids else ()


def _logprob(value: Json) -> float:
    """A log-probability; 0, which stands for unknown, for any other value."""
    is_known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value <= 0
    return float(cast(float, value)) if is_known else 0.0
