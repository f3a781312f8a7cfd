"""Settings of reinforcement learning. No torch in here: a recipe is checked before anything heavy is loaded."""

from typing import ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from coseek.core.settings import Settings
from coseek.training.trainer.settings import LearnerSettings, OptimiserSettings

Normaliser: TypeAlias = Literal["token", "sequence", "group", "constant"]
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]
AlarmName: TypeAlias = Literal[
    "no-search", "no-answer", "endless-search", "format-hacking", "likelihood-decay", "exploding", "no-signal", "faults"
]


class MonitorSettings(Settings):
    """Alarms: when a run in reinforcement learning counts as sick. `rl/monitor.py` says what each looks at."""

    stop: bool = False
    """End the run at the first alarm; the last checkpoint before any alarm is kept either way."""
    ignore: tuple[AlarmName, ...] = ()
    """Alarms that are not watched."""
    outcome: str = "exact_match"
    """The metric that says whether a run was right: `exact_match`, or a part of the reward such as `reward/gen_acc`
    where the agent gives no answer. A run counts as right from 0.5 on."""
    window: int = Field(default=5, ge=1)
    """Steps that a reading is the mean of; a checkpoint counts as healthy when so many more brought no alarm."""
    probe_runs: int = Field(default=16, ge=0)
    """Right runs of a step whose likelihood is taken before and after its updates; 0 saves these two passes."""

    search_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """`no-search`: the share of runs that search is below this part of the best it has been."""
    answer_share: float = Field(default=0.75, ge=0.0, le=1.0)
    """`no-answer`: the share of runs that answer is below this part of the best it has been."""
    truncated_rise: float = Field(default=0.25, ge=0.0, le=1.0)
    """`endless-search`: the share of runs that a budget ended is above the least it has been by more than this."""
    outcome_share: float = Field(default=0.67, ge=0.0, le=1.0)
    """`format-hacking`: the outcome is below this part of the best it has been, though the reward is not below …"""
    valid_rise: float = Field(default=0.03, ge=0.0, le=1.0)
    """… and the share of valid runs has risen by this since then."""
    likelihood_fall: float = Field(default=0.05, ge=0.0)
    """`likelihood-decay`: nats a token that the updates of two windows took from right runs, in nearly every step."""
    gradient_factor: float = Field(default=10.0, gt=1.0)
    """`exploding`: every gradient of a window is longer than this times the run's median before it."""
    logprob_gap: float = Field(default=0.05, gt=0.0)
    """`exploding`: sampler and trainer differ by more than this, in nats a token."""
    kl_old: float = Field(default=0.1, gt=0.0)
    """`exploding`: a step's updates move the policy further than this, in nats a token."""
    flat_share: float = Field(default=0.95, ge=0.0, le=1.0)
    """`no-signal`: at least this share of the groups are paid all alike, and not because the task is solved."""
    fault_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """`faults`: in at least this share of the runs a retriever or a model failed, so that they were left out."""


class OverlongSettings(Settings):
    """A soft punishment of long runs (DAPO, Yu et al. 2025, eq. 13), a part of their reward: see `rl/overlong.py`."""

    max_tokens: int = Field(ge=1)
    """Tokens behind the prompt, observations included, from which a run is charged in full."""
    margin_tokens: int = Field(ge=1)
    """Tokens before that over which the charge rises from 0."""
    weight: float = Field(default=1.0, gt=0.0)
    """The charge in full."""

    @model_validator(mode="after")
    def _begins_behind_the_prompt(self) -> "OverlongSettings":
        if self.margin_tokens > self.max_tokens:
            raise ValueError(f"margin_tokens is at most max_tokens ({self.max_tokens}), not {self.margin_tokens}")
        return self


class RlSettings(Settings):
    """Reinforcement learning of an agent. The defaults are the laptop's; the papers' values are named beside them."""

    OLD_NAMES: ClassVar[dict[str, str]] = {"health": "monitor"}

    algorithm: str = "grpo"
    """`grpo`, `rloo`, `reinforce-pp`, `ppo`, or the path of a Python file: see `rl/algorithm.py`."""
    algorithm_settings: dict[str, object] = Field(default_factory=dict)
    """What the algorithm can be told, such as `{scale_by_std: false}`."""
    backend: str = "local"
    """Who holds the weights and steps them: a name, or the path of a Python file: see `rl/backend.py`."""
    steps: int = Field(default=40, ge=0)
    """Rounds of rollout and update (002: 500)."""
    questions_per_step: int = Field(default=32, ge=1)
    """Questions in a step; runs in a step are this times `group_size` (002: 512 runs)."""
    group_size: int = Field(default=8, ge=1)
    """Runs of one question (002: 5)."""
    minibatches: int = Field(default=2, ge=1)
    """Updates that one pass over a step's runs is cut into."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's runs."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of the rollouts (s3: 0.6); the trainer divides logits by it too."""
    seed: int = 0
    """Everything random in the run follows from it."""

    policy: LearnerSettings = LearnerSettings()
    """How the policy is run and stepped (002: lr 1e-6, GRPO 5e-7)."""
    critic: LearnerSettings = LearnerSettings(optimiser=OptimiserSettings(lr=1e-3))
    """How the value model is run and stepped; PPO only (002: lr 1e-5)."""

    clip_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """How far a ratio may fall below 1 before its gradient stops."""
    clip_high: float = Field(default=0.2, ge=0.0)
    """How far a ratio may rise above 1 (DAPO: 0.28)."""
    normaliser: Normaliser = "token"
    """What the sum of token losses is divided by: see `losses.loss_weights`."""
    constant_tokens: int = Field(default=0, ge=0)
    """Tokens a row for the normaliser `constant`."""
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """The old policy's log-probabilities: what the sampler said, or one more forward pass of the trainer."""

    entropy: float = Field(default=0.0, ge=0.0)
    """Bonus for the entropy of the sampling distribution, at every token that is looked at, exact (002's code: 0.001,
    though the paper has none; DAPO: none)."""
    measure_entropy: bool = False
    """Log the exact entropy although there is no bonus: `sampled_nll` is logged anyway."""

    resample: bool = False
    """Replace groups without spread by fresh questions until the step is full (DAPO's dynamic sampling)."""
    resample_at_most: float = Field(default=3.0, ge=1.0)
    """`resample`: ask at most this times `questions_per_step`; what has spread by then is the step."""
    overlong: OverlongSettings | None = None
    """Charge long runs softly; none does not."""

    kl: float = Field(default=0.0, ge=0.0)
    """β of the KL to the policy as it was at the start; 0 turns it off and saves the reference's pass (002: 0.001)."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where it is charged: a term of the loss (GRPO), or taken off the reward token by token (PPO in 002)."""
    kl_estimator: KlEstimator = "k3"
    """k1, k2 or k3: see `losses.kl_estimate`. k1 in the loss has no expected gradient."""
    kl_clamp: float | None = Field(default=None, gt=0.0)
    """Cut the estimate of a token to ± this (10 in 002's code)."""

    truncated: Literal["keep", "mask", "penalise"] = "keep"
    """Runs that a budget ended: as any other, left out of the loss (they still count in their group), or charged."""
    truncation_penalty: float = Field(default=0.5, ge=0.0)
    """What `penalise` takes off their reward."""

    monitor: MonitorSettings = MonitorSettings()
    """When to raise an alarm, and whether to stop at one; may change when a run goes on."""
    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints; the last step always has one."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only after the last."""

    @model_validator(mode="after")
    def _has_groups_to_resample(self) -> "RlSettings":
        if self.resample and self.group_size == 1:
            raise ValueError("resample looks for spread among the runs of a question; give a group_size above 1")
        return self

    @property
    def updates(self) -> int:
        """Updates of the whole run: what a learning-rate schedule is spread over."""
        return self.steps * self.epochs * self.minibatches
