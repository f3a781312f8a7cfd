"""Local backend: the models of a run in this process, or in the processes that `torchrun` started."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from coseek.models.model import Tokenizer
    from coseek.models.sampler import Sampler, SamplerSettings
    from coseek.training.learner.policy import Policy
    from coseek.training.learner.workers import Workers

HERE = True


class LocalBackend:
    """Implements `TrainingBackend` around a policy. Creates reference and critic if the settings need them."""

    def __init__(self, policy: "Policy", settings: RlSettings) -> None:
        from coseek.training.learner.policy import Critic

        self.policy, self.workers = policy, policy.workers
        self.reference = policy.frozen_copy() if settings.kl_coef > 0.0 else None
        self.critic: Critic | None = None
        if open_algorithm(settings).needs_critic:
            self.critic = Critic(policy.model, settings.critic, settings.total_updates, policy.workers)
        for learner in (self.policy, self.reference, self.critic):  # after all copies of the policy are made
            if learner is not None:
                learner.shard()

    def sampler(
        self, tokenizer: "Tokenizer", stops: Sequence[str], settings: "SamplerSettings", *, on_policy: bool = True
    ) -> "Sampler":
        return self.policy.sampler(tokenizer, stops, settings, on_policy=on_policy)

    def release(self) -> None:
        self.policy.release()

    def refresh(self) -> None:
        self.policy.refresh()

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        self.policy.save(folder, extra)


def make(network: "PreTrainedModel", settings: RlSettings, workers: "Workers") -> LocalBackend:
    """Make the backend of `network`, which is trained in place."""
    from coseek.training.learner.policy import Policy

    policy = Policy(network, settings.policy, settings.total_updates, settings.temperature, workers)
    return LocalBackend(policy, settings)
