"""Export of runs: their trajectories as chat messages, as ATIF documents, or as a log of Inspect AI (`.eval`)."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeAlias, cast

from coseek.agents.protocol import stored_protocol
from coseek.agents.sources import reply_of
from coseek.core.connections import is_url
from coseek.core.errors import DataError, UnknownName
from coseek.core.files import (
    Json,
    JsonObject,
    atomic_folder,
    atomic_path,
    check_output_folder,
    check_replaceable,
    write_json,
    write_jsonl,
)
from coseek.core.lock import lock_beside
from coseek.data.digests import check_output_file
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.measure.score import score_trajectory
from coseek.models.written import reasoning_in
from coseek.traces.atif import atif_document
from coseek.traces.calls import calls_in, text_of
from coseek.traces.messages import message_row, messages_of

SHOWN = ("em", "cover_em", "f1", "recall", "answer_hit", "searches", "turns")
"""Metrics that become scores of a sample of Inspect."""
_ATIF_FILES = re.compile(r"[0-9]{6,}\.json")

Writer: TypeAlias = Callable[[Run, Path], int]
"""(run, output path) → number of trajectories."""


def export_run(run: Run, format_name: str, out: Path) -> int:
    """Write a run in a format of `FORMATS`. Returns the number of its trajectories. Raises `DataError` for an empty
    run, and for an `out` with other contents."""
    if format_name not in FORMATS:
        raise UnknownName("trace format", format_name, FORMATS)
    ending, write = FORMATS[format_name]
    if ending:
        check_output_file(out, ending)
    with lock_beside(out, again=False):
        return write(run, out)


def _trajectories(run: Run) -> Iterator[Trajectory]:
    """The trajectories of a run. Raises `DataError` if it has none."""
    stored_protocol(run)
    trajectory = None
    for trajectory in run.trajectories():
        yield trajectory
    if trajectory is None:
        raise DataError(f"{run.folder} holds no trajectories, so there is nothing to export")


def _messages(run: Run, out: Path) -> int:
    return write_jsonl(out, map(message_row, _trajectories(run)))


def _atif(run: Run, out: Path) -> int:
    """Write one document per file. Files are numbered, since an id may be unusable as a file name."""
    check_output_folder(out, "000001.json")
    check_replaceable(out, _ATIF_FILES.fullmatch, "a run in ATIF")
    count = 0

    def fill(folder: Path) -> None:
        nonlocal count
        for count, trajectory in enumerate(_trajectories(run), start=1):
            write_json(folder / f"{count:06}.json", atif_document(trajectory, _agent_name(run)))

    atomic_folder(out, fill)
    return count


def _inspect(run: Run, out: Path) -> int:
    """Write a log with one sample per trajectory. The trajectories of a question are its epochs."""
    from inspect_ai.log import EvalLog, write_eval_log

    task, model, created = run.folder.resolve().name, _agent_name(run) or "none", str(run.record.get("created", ""))
    epochs: Counter[str] = Counter()
    samples: list[JsonObject] = []
    for trajectory in _trajectories(run):
        epochs[trajectory.question.id] += 1
        samples.append(_sample(trajectory, epochs[trajectory.question.id], model))
    log = {
        "status": "success",
        "eval": {
            "created": created,
            "task": task,
            "dataset": {"name": task, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": model,
            "config": {"epochs": max(epochs.values())},
        },
        "results": _mean_scores(samples),
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }
    with atomic_path(out) as part:
        write_eval_log(EvalLog.model_validate(log), str(part), format="eval")
    return len(samples)


def _sample(run: Trajectory, epoch: int, model: str) -> JsonObject:
    """The sample of a trajectory. After a fault it has an error and no scores."""
    scores = {} if run.fault else {key: value for key, value in score_trajectory(run).items() if key in SHOWN}
    reply: Json = {"role": "assistant", "content": reply_of(run)}
    sample: JsonObject = {
        "id": run.question.id,
        "epoch": epoch,
        "input": run.question.question,
        "target": [*run.question.answers],
        "messages": [_inspect_message(message) for message in messages_of(run)],
        "output": {"model": model, "choices": [] if run.answer is None and not run.declined else [{"message": reply}]},
        "scores": {name: {"value": value, "answer": run.answer} for name, value in scores.items()},
        "metadata": {"protocol": run.agent_protocol, "stop": str(run.stop), "seed": run.seed, "exact": run.exact},
    }
    if run.fault:
        sample["error"] = {"message": ": ".join(map(str, run.fault)), "traceback": "", "traceback_ansi": ""}
    return sample


def _inspect_message(message: JsonObject) -> JsonObject:
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


def _mean_scores(samples: Sequence[JsonObject]) -> JsonObject:
    """The mean of every score over the samples that have it."""
    sample_scores = [cast(dict[str, dict[str, float]], sample["scores"]) for sample in samples if "error" not in sample]
    means: list[Json] = []
    for name in SHOWN:
        if values := [scores[name]["value"] for scores in sample_scores if name in scores]:
            mean: JsonObject = {"mean": {"name": "mean", "value": fmean(values)}}
            means.append({"name": name, "scorer": name, "scored_samples": len(values), "metrics": mean})
    return {"total_samples": len(samples), "completed_samples": len(sample_scores), "scores": means}


def _agent_name(run: Run) -> str | None:
    """The name of a run's agent, without folders of this machine."""
    agent = run.settings.get("agent")
    name = agent.get("name") if isinstance(agent, dict) else None
    if not isinstance(name, str):
        return None
    return name if is_url(name) else Path(name).name


FORMATS: Mapping[str, tuple[str, Writer]] = {
    "messages": (".jsonl", _messages),
    "atif": ("", _atif),
    "inspect": (".eval", _inspect),
}
"""Name → file ending, empty for a folder, and writer. `messages`: JSON lines of chat messages; `atif`: ATIF documents;
`inspect`: an Inspect log."""
