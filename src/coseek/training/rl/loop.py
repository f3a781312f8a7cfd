"""Reinforcement learning of an agent on the token ledger: GRPO, RLOO, REINFORCE++, PPO.

Knows neither tags, retrievers nor rewards: runs come from a rollout that is handed in, numbers from a score that is
handed in. An entropy bonus is a setting that is off: no paper has it, public code has it on. Left out on purpose:
sharing a trunk between policy and critic, and a second clip of ratios at negative advantages ("dual clip").
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias, cast

from coseek.core.errors import SettingError
from coseek.core.files import read_jsonl
from coseek.core.progress import Evaluate, NoProgress, Progress
from coseek.core.settings import dump_settings
from coseek.data.question import Question
from coseek.training.rl.episodes import EpisodeBatch, RolloutFunction, ScoreFunction, describe
from coseek.training.rl.experience import make_experience
from coseek.training.rl.likelihood_probe import LikelihoodProbe, right_rows
from coseek.training.rl.monitor import Monitor
from coseek.training.rl.sampling import SampledStep, sample_step
from coseek.training.rl.update import improve, logprob_gap
from coseek.training.settings import RlSettings
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.checkpoint import HEALTHY
from coseek.training.trainer.critic import Critic
from coseek.training.trainer.data_order import QuestionStream
from coseek.training.trainer.learner import Learner
from coseek.training.trainer.metrics import as_written
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.run_state import RunState
from coseek.training.trainer.timer import Timer

Watch: TypeAlias = Callable[[int, EpisodeBatch], None]
"""Hears of every step's runs."""

FREE = frozenset({"steps", "checkpoint_every", "evaluate_every", "monitor"})
"""Settings that may change when a run goes on; `steps` only where no schedule is spread over them."""
PROBE_RUNS = 8
"""Runs on which the sampler is compared with the trainer in a step that has nothing to learn from."""


def train_rl(
    policy: Policy,
    questions: Sequence[Question],
    rollout: RolloutFunction,
    reward: ScoreFunction,
    settings: RlSettings,
    folder: Path,
    *,
    resume: bool = False,
    evaluate: Evaluate | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
    begin: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Train the policy in place; `folder` gets `metrics.jsonl` and `checkpoints/`. Returns the last line of metrics.

    The same settings, questions and first weights give the same run on one machine with one number of threads, also
    when it is killed and resumed.
    """
    progress = progress or NoProgress()
    reference = policy.frozen_copy() if settings.kl > 0.0 else None
    workers = policy.workers
    critic = Critic(policy.model, settings.critic, settings.updates, workers) if settings.algorithm == "ppo" else None
    journal = _open(folder, settings, policy, critic, reference, resume)
    health = _watch_over(settings, folder, journal, progress)
    order = QuestionStream(questions, settings.seed)
    last: dict[str, float] = {}
    progress.stage(settings.algorithm.upper(), settings.steps)
    _stop_if_sick(health, settings, folder)
    for step in range(journal.step, settings.steps):
        clock = Timer()
        if begin is not None:
            begin(step, settings.steps)
        update = policy.optimiser.update
        sampled = sample_step(order, journal.position, step, settings, rollout, reward, clock, update, workers)
        episodes = sampled.episodes
        learnt = _learn(step, sampled, settings, policy, critic, reference, clock)
        last = {"step": step + 1, **describe(episodes), **learnt, **sampled.describe()}
        if evaluate is not None and _due(step + 1, settings.evaluate_every, settings.steps):
            with clock("evaluate_s"):
                last |= {f"eval/{name}": value for name, value in workers.agree(partial(evaluate, step + 1)).items()}
        last |= health.look(as_written(last))
        journal.record(last | clock.seconds | {f"runs_{name}": value for name, value in episodes.timings.items()})
        journal.advance(step + 1, journal.position + sampled.questions)
        if _due(step + 1, settings.checkpoint_every, settings.steps):
            journal.save()
            journal.keep(bool(health.alarms), settings.monitor.window)
        if watch is not None:
            watch(step + 1, episodes)
        progress.advance(step + 1, f"reward {last.get('reward', 0.0):.2f}")
        if health.alarms and settings.monitor.stop:
            journal.save()
        _stop_if_sick(health, settings, folder)
    return last


def _stop_if_sick(health: Monitor, settings: RlSettings, folder: Path) -> None:
    """Also a run that goes on: an alarm is not over because somebody started again."""
    if health.alarms and settings.monitor.stop:
        raise health.stopped(folder / "checkpoints" / HEALTHY)


def _watch_over(settings: RlSettings, folder: Path, journal: RunState, progress: Progress) -> Monitor:
    """Health, with the steps that are over; what a kill left undone after the last checkpoint is done now."""
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(folder / "metrics.jsonl")]
    health = Monitor(settings, rows, progress)
    if journal.step:
        journal.keep(bool(health.alarms), settings.monitor.window)
    return health


def _open(
    folder: Path, settings: RlSettings, policy: Policy, critic: Critic | None, reference: Policy | None, resume: bool
) -> RunState:
    learners: dict[str, Learner] = {"policy": policy}
    if critic is not None:
        learners["critic"] = critic
    free = FREE - {"steps"} if settings.spread_over_steps else FREE
    frozen = {"reference": reference} if reference is not None else {}
    workers = policy.workers
    journal = RunState(folder, dump_settings(settings), learners, frozen, resume=resume, free=free, workers=workers)
    if journal.step > settings.steps:
        raise SettingError(
            f"{folder} has taken {journal.step} steps already, and steps={settings.steps} asks for fewer; ask for at "
            "least as many, or choose another folder"
        )
    return journal


def _learn(
    step: int,
    sampled: SampledStep,
    settings: RlSettings,
    policy: Policy,
    critic: Critic | None,
    reference: Policy | None,
    clock: Timer,
) -> dict[str, float]:
    """Advantages and updates; a step in which every run failed teaches nothing and says so."""
    episodes = sampled.kept
    if not episodes.scored:
        return {"updates": 0, **_probe(policy, sampled.episodes)}
    with clock("advantages_s"):
        experience = make_experience(episodes, settings, policy, critic, reference)
        right_N = right_rows(episodes.scored, settings.monitor.outcome)
        probe = LikelihoodProbe(policy, experience.batch, right_N, ~experience.silent_B, settings.monitor.probe_runs)
    with clock("update_s"):
        learnt = improve(experience, settings, policy, critic, random.Random(f"{settings.seed}/minibatches/{step}"))
        if "logprob_gap" not in learnt:
            learnt |= logprob_gap(policy, experience.batch, PROBE_RUNS)
    batch = experience.batch
    return {
        # The sampler's own word, so it costs nothing; its expectation is the entropy of what was sampled from.
        "surprise": -float(batch.logprobs_BT[batch.agent_BT].mean()),
        "zero_spread": experience.zero_spread,
        "lone_runs": experience.lone,
        "lr": policy.optimiser.rate,
        **learnt,
        **probe.readings(),
    }


def _probe(policy: Policy, episodes: EpisodeBatch) -> dict[str, float]:
    """The sampler compared with the trainer, where runs were sampled though none is learnt from."""
    if not episodes.scored:
        return {}
    return logprob_gap(policy, make_batch([episode.trajectory for episode in episodes.scored]), PROBE_RUNS)


def _due(step: int, every: int, steps: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)
