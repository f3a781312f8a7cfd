"""Loop: reinforcement learning of an agent: sample, score, compute advantages, update, call back.

It depends on no tag, retriever or reward. The caller passes in the rollout and the score function; the settings name
the algorithm; the backend computes gradients. The entropy bonus is off by default: no paper uses one, though public
code does. Two things are left out on purpose: a trunk shared by policy and critic, and a second clip of ratios at
negative advantages ("dual clip").
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch

from coseek.core.errors import SettingError
from coseek.core.files import read_jsonl
from coseek.core.progress import NoProgress, Progress, waiting_stops
from coseek.data.question import Question
from coseek.training.rl.algorithm import Algorithm, open_algorithm, spread_over_steps
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.callbacks import (
    AlarmStop,
    AlarmWatch,
    Callback,
    CheckpointWriter,
    LearnsNothing,
    MetricsWriter,
    ProgressLine,
    StepReport,
)
from coseek.training.rl.experience import StepTokens, TokenRecord, make_experience
from coseek.training.rl.gold_probe import AnswerWriter, PolicyProbe
from coseek.training.rl.monitor import Monitor
from coseek.training.rl.rollout import RolloutFunction, SampledStep, ScoreFunction, describe, sample_step
from coseek.training.rl.rollout_servers import RolloutAhead
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import LikelihoodProbe, counted_rows, logprob_gap, right_rows, update_weights
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.checkpoint import TrainingState
from coseek.training.trainer.data_order import QuestionStream
from coseek.training.trainer.learner import Trainable

RESUMABLE_SETTINGS = frozenset(
    {"backend_settings", "steps", "checkpoint_every", "evaluate_every", "monitor", "keep_rollouts"}
)
"""Settings that may change when a run is resumed; `steps` only if no schedule depends on it."""
PROBE_RUNS = 8
"""Runs on which sampler and trainer are compared in a step without an update."""


@dataclass(frozen=True, slots=True)
class RlTraining:
    """Objects that all steps of a run share."""

    settings: RlSettings
    algorithm: Algorithm
    backend: TrainingBackend
    rollout: RolloutAhead
    state: TrainingState
    """Position and files of the run."""
    answers: AnswerWriter | None
    """Writes gold answers, for algorithms that ask how likely the policy finds them."""


def train_rl(
    backend: TrainingBackend,
    questions: Sequence[Question],
    rollout: RolloutFunction,
    reward: ScoreFunction,
    settings: RlSettings,
    folder: Path,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: Progress | None = None,
    answers: AnswerWriter | None = None,
) -> dict[str, float]:
    """Train the backend's policy; `folder` gets `metrics.jsonl` and `checkpoints/`. Returns the last step's metrics.

    `callbacks` are called before the built-in ones, which raise alarms and write metrics and checkpoints, so metrics
    that they add are written. On one machine with one number of threads, the same settings, questions and initial
    weights give the same run, also when it is killed and resumed; not where rollouts are sampled ahead
    (`rollout.max_steps_behind`), whose turns depend on when new weights arrive.
    """
    progress = progress or NoProgress()
    stream = QuestionStream(questions, settings.seed, settings.balance_hops)
    state = _open(folder, settings, backend, resume)
    backend.refresh()
    ahead = RolloutAhead(rollout, stream, settings, backend)
    run = RlTraining(settings, open_algorithm(settings), backend, ahead, state, answers)
    callbacks = [*callbacks, *_own_callbacks(run, folder, progress)]
    progress.stage(run.algorithm.name.upper(), settings.steps)
    for callback in callbacks:
        callback.begin()

    report = StepReport(state.step, settings.steps)
    with run.rollout, waiting_stops() as stop:
        for step in range(state.step, settings.steps):
            report = StepReport(step + 1, settings.steps)
            for callback in callbacks:
                callback.before_step(report)

            run.rollout.ask(step, state.position)
            sampled = sample_step(step, stream, state.position, settings, run.rollout, reward, backend, report.timer)
            backend.release()
            updated = _update(step, sampled, run, report)
            backend.refresh()

            report.episodes = sampled.episodes
            report.row = {"step": step + 1, **describe(sampled.episodes), **updated, **sampled.describe()}
            report.row |= run.rollout.describe(step, sampled.episodes)
            state.advance(step + 1, state.position + sampled.questions)
            for callback in callbacks:
                callback.after_step(report)
            state.end_step(stop)
    state.release()
    return report.row


def _update(step: int, sampled: SampledStep, run: RlTraining, report: StepReport) -> dict[str, float]:
    """Compute advantages and update. Returns the metrics; without a scored run there is no update."""
    settings, policy, episodes, timer = run.settings, run.backend.policy, sampled.kept, report.timer
    if not episodes.scored:
        return {"updates": 0, **_compare_sampler(policy, sampled)}
    with timer("advantages_s"):
        asked = None if run.answers is None else PolicyProbe(policy, run.answers)
        experience = make_experience(episodes, settings, run.algorithm, run.backend, asked)
        right_N = right_rows(episodes.scored, settings.monitor.outcome)
        probe = LikelihoodProbe(policy, experience.batch, right_N, ~experience.silent_B, settings.monitor.probe_runs)
    with timer("update_s"):
        rng = random.Random(f"{settings.seed}/minibatches/{step}")
        record = TokenRecord(experience) if report.wants_tokens else None
        updated = update_weights(experience, settings, run.algorithm, run.backend, rng, record)
        if "logprob_gap" not in updated:
            updated |= logprob_gap(policy, experience.batch, PROBE_RUNS)
    batch = experience.batch
    if record is not None:
        trained_B = torch.zeros(len(batch), dtype=torch.bool)
        trained_B[counted_rows(experience, run.algorithm.drops_zero_spread)] = True
        report.tokens = StepTokens(episodes, experience, record, trained_B, settings.old_logprobs == "recompute")
    return {
        # The sampler returned it, so it costs no pass. Its expectation is the entropy of the sampling distribution.
        "sampled_nll": -float(batch.logprobs_BT[batch.agent_BT].mean()),
        "zero_spread": experience.zero_spread,
        "lone_runs": experience.lone,
        "lr": policy.learning_rate,
        **updated,
        **probe.metrics(),
    }


def _compare_sampler(policy: Trainable, sampled: SampledStep) -> dict[str, float]:
    """Compare sampler and trainer in a step that sampled runs but trains on none."""
    scored = sampled.episodes.scored
    return logprob_gap(policy, make_batch([one.trajectory for one in scored]), PROBE_RUNS) if scored else {}


def _own_callbacks(run: RlTraining, folder: Path, progress: Progress) -> list[Callback]:
    """Return the built-in callbacks, in the order of their calls."""
    settings, state = run.settings, run.state
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(folder / "metrics.jsonl")]
    monitor = Monitor(settings, rows, progress)
    stop = [AlarmStop(monitor, state, folder / "checkpoints")] if settings.monitor.stop else []
    return [
        AlarmWatch(monitor),
        MetricsWriter(state),
        CheckpointWriter(state, monitor, settings.checkpoint_every, settings.monitor.window),
        LearnsNothing(run.algorithm, settings, progress),
        ProgressLine(progress),
        *stop,
    ]


def _open(folder: Path, settings: RlSettings, backend: TrainingBackend, resume: bool) -> TrainingState:
    models: dict[str, Trainable] = {"policy": backend.policy}
    if backend.critic is not None:
        models["critic"] = backend.critic
    frozen = {"reference": backend.reference} if backend.reference is not None else {}
    resumable = RESUMABLE_SETTINGS - ({"steps"} if spread_over_steps(settings) else set())
    state = TrainingState(folder, settings, models, frozen, resume=resume, resumable=resumable, workers=backend.workers)
    if state.step > settings.steps:
        raise SettingError(
            f"{folder} has already taken {state.step} steps, more than steps={settings.steps}; set steps to at least "
            "as many, or choose another folder"
        )
    return state
