"""Loop: reinforcement learning of an agent: sample, score, compute advantages, update, call back.

`AgentTrainer`, which runs it, is in `pipelines/trainers.py`.

The loop depends on no tag, retriever or reward. The caller passes in the rollout and the score function; the settings
name the algorithm; the backend computes gradients. The entropy bonus is off by default: no paper uses one, though
public code does. Two things are left out on purpose: a trunk shared by policy and critic, and a second clip of ratios
at negative advantages ("dual clip").
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch

from coseek.core.errors import SettingError
from coseek.core.files import read_jsonl
from coseek.core.progress import NoProgress, Progress, waiting_stops
from coseek.data.question import Question
from coseek.training.learner.batch import make_batch
from coseek.training.learner.checkpoint import TrainingState
from coseek.training.learner.data_order import QuestionStream
from coseek.training.learner.learner import Trainable
from coseek.training.rl.algorithm import Algorithm, GoldProbe, open_algorithm, spread_over_steps
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.callbacks import (
    AlarmStop,
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
from coseek.training.rl.rollout import RolloutFunction, SampledStep, ScoreFunction, rollout_metrics, sample_step
from coseek.training.rl.rollout_servers import RolloutAhead
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import LikelihoodProbe, logprob_gap, right_rows, rows_in_loss, update_weights

GAP_ROWS = 8
"""Trajectories on which sampler and trainer are compared in a step without an update."""


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
    that they add are written. `answers` writes gold answers, for algorithms that ask how likely the policy finds them.
    On one machine with one number of threads, the same settings, questions and initial weights give the same training,
    also when it is killed and resumed; not where rollouts are sampled ahead (`rollout.max_steps_behind`), whose turns
    depend on when new weights arrive.
    """
    progress = progress or NoProgress()
    stream = QuestionStream(questions, settings.seed, settings.balance_hops)
    state = _open_state(folder, settings, backend, resume)
    backend.refresh()
    ahead = RolloutAhead(rollout, stream, settings, backend)
    algorithm = open_algorithm(settings)
    gold_probe = None if answers is None else PolicyProbe(backend.policy, answers)
    callbacks = [*callbacks, *_built_in_callbacks(settings, algorithm, state, folder, progress)]
    progress.stage(algorithm.name.upper(), settings.steps)
    for callback in callbacks:
        callback.begin()

    report = StepReport(state.step, settings.steps)
    with ahead, waiting_stops() as stop:
        for step in range(state.step, settings.steps):
            report = StepReport(step + 1, settings.steps)
            for callback in callbacks:
                callback.before_step(report)

            ahead.prefetch(step, state.position)
            sampled = sample_step(step, stream, state.position, settings, ahead, reward, backend, report.timer)
            backend.release()
            update_metrics = _update(step, sampled, settings, algorithm, backend, gold_probe, report)
            backend.refresh()

            report.episodes = sampled.episodes
            report.row = {"step": step + 1, **rollout_metrics(sampled.episodes), **update_metrics, **sampled.metrics()}
            report.row |= ahead.metrics(step, sampled.episodes)
            state.advance(step + 1, state.position + sampled.questions)
            for callback in callbacks:
                callback.after_step(report)
            state.end_step(stop)
    state.release()
    return report.row


def _update(
    step: int,
    sampled: SampledStep,
    settings: RlSettings,
    algorithm: Algorithm,
    backend: TrainingBackend,
    gold_probe: GoldProbe | None,
    report: StepReport,
) -> dict[str, float]:
    """Compute advantages and update. Returns the metrics. Without a trajectory to train on there is no update, and
    sampler and trainer are compared on the trajectories that were sampled."""
    policy, episodes = backend.policy, sampled.kept
    if not episodes.scored:
        trajectories = [episode.trajectory for episode in sampled.episodes.scored]
        return {"updates": 0, **(logprob_gap(policy, make_batch(trajectories), GAP_ROWS) if trajectories else {})}
    with report.timer("advantages_s"):
        experience = make_experience(episodes, settings, algorithm, backend, gold_probe)
        batch, has_grad_B = experience.batch, ~experience.zero_grad_B
        right_N = right_rows(episodes.scored, settings.monitor.outcome)
        probe = LikelihoodProbe(policy, batch, right_N, has_grad_B, settings.monitor.probe_trajectories)
    learning_rate = policy.learning_rate
    with report.timer("update_s"):
        rng = random.Random(f"{settings.seed}/minibatches/{step}")
        record = TokenRecord(experience) if report.wants_tokens else None
        metrics = update_weights(experience, settings, algorithm, backend, rng, record)
        if "logprob_gap" not in metrics:
            metrics |= logprob_gap(policy, batch, GAP_ROWS)
    if record is not None:
        trained_B = torch.zeros(len(batch), dtype=torch.bool)
        trained_B[rows_in_loss(experience, algorithm.drops_zero_std)] = True
        report.tokens = StepTokens(episodes, experience, record, trained_B, settings.old_logprobs == "recompute")
    return {
        # The sampler returned it, so it costs no pass. Its expectation is the entropy of the sampling distribution.
        "sampled_nll": -float(batch.logprobs_BT[batch.agent_BT].mean()),
        "frac_reward_zero_std": experience.frac_reward_zero_std,
        "singleton_groups": experience.singleton_groups,
        "lr": learning_rate,
        **metrics,
        **probe.metrics(),
    }


def _built_in_callbacks(
    settings: RlSettings, algorithm: Algorithm, state: TrainingState, folder: Path, progress: Progress
) -> list[Callback]:
    """Return the built-in callbacks, in the order of their calls."""
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(folder / "metrics.jsonl")]
    monitor = Monitor(settings, rows, progress)
    alarm_stops = [AlarmStop(monitor, state, folder / "checkpoints")] if settings.monitor.stop else []
    return [
        MetricsWriter(state, monitor),
        CheckpointWriter(state, monitor, settings.checkpoint_every, settings.monitor.window),
        LearnsNothing(algorithm, settings, progress),
        ProgressLine(progress),
        *alarm_stops,
    ]


def _open_state(folder: Path, settings: RlSettings, backend: TrainingBackend, resume: bool) -> TrainingState:
    models: dict[str, Trainable] = {"policy": backend.policy}
    if backend.critic is not None:
        models["critic"] = backend.critic
    frozen = {"reference": backend.reference} if backend.reference is not None else {}
    fixed = ["steps"] if spread_over_steps(settings) else []
    state = TrainingState(folder, settings, models, frozen, resume=resume, fixed=fixed, workers=backend.workers)
    if state.step > settings.steps:
        raise SettingError(
            f"{folder} has already taken {state.step} steps, more than steps={settings.steps}; set steps to at least "
            "as many, or choose another folder"
        )
    return state
