"""Settings of every trainer. No torch in here: a recipe is checked before anything heavy is loaded."""

from typing import Literal, TypeAlias

from pydantic import Field

from coseek.data.settings import Settings

Normaliser: TypeAlias = Literal["token", "sequence", "group", "constant"]
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]


class OptimiserSettings(Settings):
    """AdamW and its schedule."""

    lr: float = 3e-4
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay, on matrices only."""
    clip_norm: float = 1.0
    """Gradients longer than this are shortened to it; 0 turns clipping off."""
    warmup_updates: int = 0
    """Updates over which the learning rate rises linearly from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the fall after `decay_from`."""
    decay_from: float = 0.5
    """Share of all updates after which the fall begins."""
    floor: float = 0.0
    """Share of the peak that is left at the end of the fall."""


class LearnerSettings(Settings):
    """How a module is run and stepped."""

    optimiser: OptimiserSettings = OptimiserSettings()
    """AdamW and its schedule."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward pass; weights and optimiser are float32 either way."""
    micro_batch_tokens: int = 3072
    """Tokens (padding included) that go through the module at once: a matter of memory and speed, not of the result."""


class RlSettings(Settings):
    """Reinforcement learning of an agent. The defaults are the laptop's; the papers' values are named beside them."""

    algorithm: Literal["grpo", "ppo"] = "grpo"
    """`grpo` compares the runs of one question; `ppo` trains a value model (GAE)."""
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

    scale_by_std: bool = True
    """GRPO: divide by the group's standard deviation (False: Dr. GRPO)."""
    zero_spread: Literal["count", "drop"] = "count"
    """GRPO groups whose rewards are all the same add no gradient. `count`: their tokens stay in the normaliser, so
    that leaving them out of the computation changes nothing; `drop`: they are as if never sampled."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """PPO: discount from one policy token to the next."""
    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """PPO: λ of GAE."""
    whiten: bool = True
    """PPO: centre and scale the advantages of a step over its policy tokens."""
    value_clip: float | None = 0.2
    """PPO: how far a value may move from what it was at rollout time within a step; none turns this off."""

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
    truncation_penalty: float = 0.5
    """What `penalise` takes off their reward."""

    checkpoint_every: int = Field(default=5, ge=1)
    """Steps between checkpoints; the last step always has one."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only after the last."""

    @property
    def updates(self) -> int:
        """Updates of the whole run: what a learning-rate schedule is spread over."""
        return self.steps * self.epochs * self.minibatches


class Phase(Settings):
    """A stretch of a curriculum: which questions demonstrations are drawn from until `until` of training is over."""

    until: float = Field(gt=0.0, le=1.0)
    """Share of training at which this phase ends."""
    hops: dict[int, float]
    """Number of hops → its share of the draws; they need not add up to 1."""


class SftSettings(Settings):
    """Supervised training on demonstrations: the warm start. The defaults make a laptop policy from nothing."""

    steps: int = Field(default=800, ge=0)
    """Updates on demonstrations, in each round."""
    tokens_per_step: int = Field(default=3000, ge=1)
    """Tokens in an update, padding included."""
    learner: LearnerSettings = LearnerSettings(
        optimiser=OptimiserSettings(lr=3e-3, betas=(0.9, 0.98), decay="linear", decay_from=0.5),
        precision="bfloat16",
    )
    """How the model is run and stepped."""
    environment_weight: float = Field(default=0.1, ge=0.0)
    """Weight of a token that the agent did not write (prompt, documents); the agent's weigh 1."""
    repeat_steps: int = Field(default=100, ge=0)
    """Updates on random sequences written twice, before the demonstrations: they teach an untrained model to copy.
    0 for a model that has been trained before."""
    varied_steps: int = Field(default=0, ge=0)
    """Updates that follow, in which lengths and distances of the repetitions vary: copying by content."""
    repeat_tokens: int = Field(default=1536, ge=4)
    """Tokens in such an update."""
    repeat_length: int = Field(default=24, ge=2)
    """Tokens in a sequence, before it is repeated."""
    curriculum: tuple[Phase, ...] = (
        Phase(until=0.15, hops={1: 1.0}),
        Phase(until=1.0, hops={1: 0.25, 2: 0.3, 3: 0.25, 4: 0.2}),
    )
    """Which questions when, for demonstrations whose hops are known."""
    gate: float | None = None
    """Value of `gate_metric` below which another round follows, up to `rounds`."""
    gate_metric: str = "exact_match"
    """Name of the evaluation that the gate looks at."""
    rounds: int = Field(default=3, ge=1)
    """Rounds at most; each begins with the weights of the one before it and a fresh schedule."""
    later_steps: int | None = Field(default=None, ge=1)
    """Updates of each round after the first; `steps` when not set."""
    later_lr: float = Field(default=0.5, gt=0.0)
    """Share of the learning rate that is left after every round."""
    evaluate_every: int = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only at the end of a round."""
    log_every: int = Field(default=10, ge=1)
    """Steps between lines of metrics."""
    checkpoint_every: int = Field(default=200, ge=1)
    """Steps between checkpoints; the last step always has one."""
    seed: int = 0
    """Everything random in the run follows from it."""
