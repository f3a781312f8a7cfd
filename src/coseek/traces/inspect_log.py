"""Inspect log: exports a run as a log of Inspect AI (`.eval`), for its viewer and its Python functions."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import cast

from coseek.agents.sources import reply_of
from coseek.core.files import Json, JsonObject, atomic_path
from coseek.data.trajectory import Trajectory
from coseek.measure.score import score_trajectory
from coseek.models.written import reasoning_in
from coseek.traces.calls import calls_in, text_of
from coseek.traces.messages import messages_of

SHOWN = ("em", "cover_em", "f1", "recall", "answer_hit", "searches", "turns")
"""Metrics that become scores of a sample."""


def write_inspect_log(path: Path, task: str, record: JsonObject, runs: Sequence[Trajectory], model: str) -> int:
    """Write a log with one sample per trajectory. The trajectories of a question are its epochs. `record` is the
    contents of `run.yaml`."""
    from inspect_ai.log import EvalLog, write_eval_log

    epochs: Counter[str] = Counter()
    samples: list[JsonObject] = []
    for run in runs:
        epochs[run.question.id] += 1
        samples.append(sample_of(run, epochs[run.question.id], model))
    created = str(record.get("created", ""))
    log = {
        "status": "success",
        "eval": {
            "created": created,
            "task": task,
            "dataset": {"name": task, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": model,
            "config": {"epochs": max(epochs.values())},
        },
        "results": _results(samples),
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }
    with atomic_path(path) as part:
        write_eval_log(EvalLog.model_validate(log), str(part), format="eval")
    return len(samples)


def sample_of(run: Trajectory, epoch: int, model: str) -> JsonObject:
    """The sample of a trajectory. After a fault it has an error and no scores."""
    scores = {} if run.fault else {key: value for key, value in score_trajectory(run).items() if key in SHOWN}
    reply: Json = {"role": "assistant", "content": reply_of(run)}
    sample: JsonObject = {
        "id": run.question.id,
        "epoch": epoch,
        "input": run.question.question,
        "target": [*run.question.answers],
        "messages": [_message(message) for message in messages_of(run)],
        "output": {"model": model, "choices": [] if run.answer is None and not run.declined else [{"message": reply}]},
        "scores": {name: {"value": value, "answer": run.answer} for name, value in scores.items()},
        "metadata": {"protocol": run.agent_protocol, "stop": str(run.stop), "seed": run.seed, "exact": run.exact},
    }
    if run.fault:
        sample["error"] = {"message": ": ".join(map(str, run.fault)), "traceback": "", "traceback_ansi": ""}
    return sample


def _message(message: JsonObject) -> JsonObject:
    text = text_of(message.get("content"))
    if message["role"] == "user":
        return {"role": "user", "content": text}
    if message["role"] in ("tool", "function"):
        ident = message.get("tool_call_id")
        return {"role": "tool", "content": text, "tool_call_id": ident if isinstance(ident, str) else None}
    if message["role"] != "assistant":
        return {"role": "system", "content": text}
    calls: list[Json] = [
        {"id": call.ident or f"call_{number}", "function": call.name, "arguments": call.object}
        for number, call in enumerate(calls_in(message), start=1)
    ]
    reasoning = reasoning_in(message)
    return {"role": "assistant", "content": f"{reasoning}\n{text}" if reasoning else text, "tool_calls": calls or None}


def _results(samples: Sequence[JsonObject]) -> JsonObject:
    """The mean of every score over the samples that have it."""
    sample_scores = [cast(dict[str, dict[str, float]], sample["scores"]) for sample in samples if "error" not in sample]
    means: list[Json] = []
    for name in SHOWN:
        if values := [scores[name]["value"] for scores in sample_scores if name in scores]:
            mean: JsonObject = {"mean": {"name": "mean", "value": fmean(values)}}
            means.append({"name": name, "scorer": name, "scored_samples": len(values), "metrics": mean})
    return {"total_samples": len(samples), "completed_samples": len(sample_scores), "scores": means}
