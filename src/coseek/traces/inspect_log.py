"""Inspect log: a run as a log of Inspect AI (`.eval`), which its viewer and its Python functions open."""

import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalError,
    EvalLog,
    EvalMetric,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ModelOutput,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall

from coseek.core.files import JsonObject, make_folder
from coseek.data.trajectory import Trajectory
from coseek.measure.score import score_trajectory
from coseek.traces.conversation import LoggedCall, calls_in, reasoning_in, text_of
from coseek.traces.messages import messages_of

SHOWN = ("em", "cover_em", "f1", "recall", "answer_hit", "searches", "turns")
"""Metrics that become scores of a sample."""


def write_inspect_log(path: Path, task: str, record: JsonObject, runs: Sequence[Trajectory], model: str) -> int:
    """Write a log with one sample a trajectory; the runs of a question are its epochs. `record` is the run's."""
    epochs: Counter[str] = Counter()
    samples: list[EvalSample] = []
    for run in runs:
        epochs[run.question.id] += 1
        samples.append(sample_of(run, epochs[run.question.id], model))
    created = str(record.get("created", ""))
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=created,
            task=task,
            dataset=EvalDataset(name=task, samples=len(epochs), sample_ids=list(epochs)),
            model=model,
            config=EvalConfig(epochs=max(epochs.values())),
        ),
        results=_results(samples),
        stats=EvalStats(started_at=created, completed_at=created),
        samples=samples,
    )
    make_folder(path.parent)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".eval")
    os.close(handle)
    try:
        write_eval_log(log, part, format="eval")
        os.chmod(part, 0o644)
        os.replace(part, path)
    finally:
        Path(part).unlink(missing_ok=True)
    return len(samples)


def sample_of(run: Trajectory, epoch: int, model: str) -> EvalSample:
    """The sample of a trajectory. One that a fault ended has an error and no scores."""
    fault = run.fault
    scores = {} if fault else {key: value for key, value in score_trajectory(run).items() if key in SHOWN}
    output = ModelOutput(model=model)
    if run.answer is not None:
        said = ChatMessageAssistant(content=run.answer)
        output = ModelOutput(model=model, choices=[ChatCompletionChoice(message=said)])
    return EvalSample(
        id=run.question.id,
        epoch=epoch,
        input=run.question.question,
        target=list(run.question.answers),
        messages=list(map(_message, messages_of(run))),
        output=output,
        scores={name: Score(value=value, answer=run.answer) for name, value in scores.items()},
        metadata={"protocol": run.protocol, "stop": str(run.stop), "seed": run.seed, "exact": run.exact},
        error=EvalError(message=": ".join(map(str, fault)), traceback="", traceback_ansi="") if fault else None,
    )


def _message(message: JsonObject) -> ChatMessage:
    text = text_of(message.get("content"))
    if message["role"] == "user":
        return ChatMessageUser(content=text)
    if message["role"] in ("tool", "function"):
        ident = message.get("tool_call_id")
        return ChatMessageTool(content=text, tool_call_id=ident if isinstance(ident, str) else None)
    if message["role"] != "assistant":
        return ChatMessageSystem(content=text)
    calls = [_call(call, number) for number, call in enumerate(calls_in(message), start=1)]
    reasoning = reasoning_in(message)
    return ChatMessageAssistant(content=f"{reasoning}\n{text}" if reasoning else text, tool_calls=calls or None)


def _call(call: LoggedCall, number: int) -> ToolCall:
    return ToolCall(id=call.ident or f"call_{number}", function=call.name, arguments=call.object)


def _results(samples: Sequence[EvalSample]) -> EvalResults:
    """The mean of every score over the samples that have it."""
    scored = [sample for sample in samples if sample.error is None]
    found: list[EvalScore] = []
    for name in SHOWN:
        values = [sample.scores[name].as_float() for sample in scored if name in (sample.scores or {})]
        if values:
            mean = EvalMetric(name="mean", value=fmean(values))
            found.append(EvalScore(name=name, scorer=name, scored_samples=len(values), metrics={"mean": mean}))
    return EvalResults(total_samples=len(samples), completed_samples=len(scored), scores=found)
