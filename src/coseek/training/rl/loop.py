"""Reinforcement learning of an agent: GRPO and PPO on the token ledger.

Knows neither tags, retrievers nor rewards: runs come from a rollout that is handed in, numbers from a score that is
handed in. Left out on purpose: an entropy bonus (in no paper, though on by default in public code), and sharing a trunk
between policy and critic.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from coseek.data.question import Question
from coseek.data.settings import save_settings
from coseek.training.learning.critic import Critic
from coseek.training.learning.journal import Journal
from coseek.training.learning.learner import Learner
from coseek.training.learning.policy import Policy
from coseek.training.order import QuestionOrder, derive_seed
from coseek.training.progress import Progress, Silent
from coseek.training.rl.advantages import make_experience
from coseek.training.rl.episodes import Episodes, RolloutFunction, ScoreFunction, collect, describe, score
from coseek.training.rl.update import improve, logprob_gap
from coseek.training.settings import RlSettings

Evaluate: TypeAlias = Callable[[int], Mapping[str, float]]
"""(steps that are over) → named numbers of the policy as it is now."""
Watch: TypeAlias = Callable[[int, Episodes], None]
"""Hears of every step's runs."""

FREE = frozenset({"steps", "checkpoint_every", "evaluate_every"})
"""Settings that may change when a run goes on; `steps` only where no schedule is spread over them."""
PROBE_RUNS = 8
"""Runs on which the sampler is compared with the trainer in a step that has nothing to learn from."""


@dataclass(slots=True)
class Clock:
    """Seconds by part of a step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


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
) -> dict[str, float]:
    """Train the policy in place; `folder` gets `metrics.jsonl` and `checkpoints/`. Returns the last line of metrics.

    The same settings, questions and first weights give the same run on one machine with one number of threads, also
    when it is killed and resumed.
    """
    progress = progress or Silent()
    reference = policy.frozen_copy() if settings.kl > 0.0 else None
    critic = Critic(policy.model, settings.critic, settings.updates) if settings.algorithm == "ppo" else None
    journal = _open(folder, settings, policy, critic, reference, resume)
    order = QuestionOrder(questions, settings.seed)
    last: dict[str, float] = {}
    progress.stage(settings.algorithm.upper(), settings.steps)
    for step in range(journal.step, settings.steps):
        clock = Clock()
        asked = order.take(journal.position, settings.questions_per_step)
        runs = settings.questions_per_step * settings.group_size
        seeds = [derive_seed(settings.seed, "rollout", step, place) for place in range(runs)]
        with clock("rollout_s"):
            groups, trajectories = collect(asked, settings.group_size, seeds, rollout)
        with clock("reward_s"):
            episodes = score(groups, trajectories, reward)
        learnt = _learn(step, episodes, settings, policy, critic, reference, clock)
        last = {"step": step + 1, **describe(episodes), **learnt}
        if evaluate is not None and _due(step + 1, settings.evaluate_every, settings.steps):
            with clock("evaluate_s"):
                last |= {f"eval/{name}": value for name, value in evaluate(step + 1).items()}
        journal.record(last | clock.seconds | {f"runs_{name}": value for name, value in episodes.timings.items()})
        journal.advance(step + 1, journal.position + settings.questions_per_step)
        if _due(step + 1, settings.checkpoint_every, settings.steps):
            journal.save()
        if watch is not None:
            watch(step + 1, episodes)
        progress.advance(step + 1, f"reward {last.get('reward', 0.0):.2f}")
    return last


def _open(
    folder: Path, settings: RlSettings, policy: Policy, critic: Critic | None, reference: Policy | None, resume: bool
) -> Journal:
    learners: dict[str, Learner] = {"policy": policy}
    if critic is not None:
        learners["critic"] = critic
    scheduled = any(group.optimiser.decay != "constant" for group in (settings.policy, settings.critic))
    free = FREE - {"steps"} if scheduled else FREE
    frozen = {"reference": reference} if reference is not None else {}
    return Journal(folder, save_settings(settings), learners, frozen, resume=resume, free=free)


def _learn(
    step: int,
    episodes: Episodes,
    settings: RlSettings,
    policy: Policy,
    critic: Critic | None,
    reference: Policy | None,
    clock: Clock,
) -> dict[str, float]:
    """Advantages and updates; a step in which every run failed teaches nothing and says so."""
    if not episodes.scored:
        return {"updates": 0}
    with clock("advantages_s"):
        experience = make_experience(episodes, settings, policy, critic, reference)
    with clock("update_s"):
        learnt = improve(experience, settings, policy, critic, random.Random(f"{settings.seed}/minibatches/{step}"))
        if "logprob_gap" not in learnt:
            learnt |= logprob_gap(policy, experience.batch, PROBE_RUNS)
    return {
        "zero_spread": experience.zero_spread,
        "lone_runs": experience.lone,
        "lr": policy.optimiser.rate,
        **learnt,
    }


def _due(step: int, every: int, steps: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)
