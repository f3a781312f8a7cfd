"""Settings of every trainer. No torch in here: a recipe is checked before anything heavy is loaded."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from coseek.core.settings import Settings
from coseek.hardware.precision import TrainingPrecision

Normaliser: TypeAlias = Literal["token", "sequence", "group", "constant"]
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]
Algorithm: TypeAlias = Literal["grpo", "ppo", "rloo", "reinforce++"]
Decay: TypeAlias = Annotated[float, Field(ge=0.0, lt=1.0)]
Weight: TypeAlias = Annotated[float, Field(ge=0.0)]


class OptimiserSettings(Settings):
    """AdamW and its schedule."""

    lr: float = Field(default=3e-4, ge=0.0)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Decay rates of the two moments."""
    eps: float = Field(default=1e-8, ge=0.0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay, on matrices only."""
    clip_norm: float = Field(default=1.0, ge=0.0)
    """Gradients longer than this are shortened to it; 0 turns clipping off."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises linearly from 0."""
    decay: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of the fall after `decay_from`."""
    decay_from: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of all updates after which the fall begins."""
    floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of the peak that is left at the end of the fall."""


class LoraSettings(Settings):
    """Low-rank adapters: few numbers are trained beside frozen weights. There is no dropout: what is trained must be
    what was sampled from."""

    rank: int = Field(default=16, ge=1)
    """Inner width of an adapter."""
    alpha: float = Field(default=32.0, gt=0.0)
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get one (`q_proj`); all but the output layer when none is named."""
    seed: int = 0
    """Of the adapters' first weights."""


class LearnerSettings(Settings):
    """How a module is run and stepped."""

    optimiser: OptimiserSettings = OptimiserSettings()
    """AdamW and its schedule."""
    precision: TrainingPrecision = "float32"
    """Arithmetic of the forward pass; weights and optimiser are float32 either way. `auto`: what is fastest here."""
    micro_batch_tokens: int = Field(default=1024, ge=1)
    """Tokens (padding included) that go through the module at once: a matter of memory and speed, not of the result."""
    checkpointing: bool = False
    """Keep one activation a layer and compute the others again on the way back: about a third slower, the same
    gradient, and far less memory for long rows."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of the weights."""
    workers: Literal["ddp", "fsdp2"] = "ddp"
    """How the workers of `torchrun` hold the weights: each all of them, or each a share. No matter to one worker, and
    not of the result."""


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

    algorithm: Algorithm = "grpo"
    """`grpo` and `rloo` compare the runs of one question: with their mean and spread, or each with the mean of the
    others. `ppo` trains a value model (GAE). `reinforce++` compares with every token of the step."""
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
    """Log the exact entropy although there is no bonus: one more pass over the logits. `surprise` is logged anyway."""

    resample: bool = False
    """Replace groups without spread by fresh questions until the step is full (DAPO's dynamic sampling)."""
    resample_at_most: float = Field(default=3.0, ge=1.0)
    """`resample`: ask at most this times `questions_per_step`; what has spread by then is the step."""
    overlong: OverlongSettings | None = None
    """Charge long runs softly; none does not."""

    scale_by_std: bool = True
    """GRPO: divide by the group's standard deviation (False: Dr. GRPO)."""
    zero_spread: Literal["count", "drop"] = "count"
    """GRPO and RLOO groups whose rewards are all alike teach nothing. `count`: their tokens stay in the normaliser (and
    the KL and entropy terms of the loss, if there are any, still pull at them); `drop`: as if never sampled."""

    gamma: float = Field(default=1.0, ge=0.0, le=1.0)
    """PPO, REINFORCE++: discount from one policy token to the next."""
    lam: float = Field(default=1.0, ge=0.0, le=1.0)
    """PPO: λ of GAE."""
    whiten: bool = True
    """PPO, REINFORCE++: centre and scale the advantages of a step over its policy tokens."""
    value_clip: float | None = Field(default=0.2, gt=0.0)
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

    @property
    def spread_over_steps(self) -> str:
        """The setting that says how something changes from the first step to the last; empty where nothing does. While
        it is empty, a run may go on for more steps than it was begun with."""
        groups = {"policy": self.policy, **({"critic": self.critic} if self.algorithm == "ppo" else {})}
        decaying = [name for name, group in groups.items() if group.optimiser.decay != "constant"]
        return f"rl.{decaying[0]}.optimiser.decay" if decaying else ""


class Phase(Settings):
    """A stretch of a curriculum: which questions demonstrations are drawn from until `until` of training is over."""

    until: float = Field(gt=0.0, le=1.0)
    """Share of training at which this phase ends."""
    hops: dict[int, Weight]
    """Number of hops → its share of the draws; they need not add up to 1."""


class SftSettings(Settings):
    """Supervised training on demonstrations: the warm start. The defaults make a laptop policy from nothing."""

    steps: int = Field(default=800, ge=0)
    """Updates on demonstrations, in each round."""
    tokens_per_step: int = Field(default=3000, ge=1)
    """Tokens in an update, padding included."""
    learner: LearnerSettings = LearnerSettings(
        optimiser=OptimiserSettings(lr=3e-3, betas=(0.9, 0.98), decay="linear", decay_from=0.5),
        precision="auto",
    )
    """How the model is run and stepped."""
    environment_weight: float = Field(default=0.1, ge=0.0)
    """Weight of a token that the agent did not write (prompt, documents); the agent's weigh 1."""
    repeat_steps: int = Field(default=100, ge=0)
    """Updates on random sequences written twice, before the demonstrations: they teach an untrained model to copy.
    0 for a model that has been trained before."""
    varied_steps: int = Field(default=0, ge=0)
    """Updates that follow, in every other of which lengths and distances spread: copying by content."""
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
    checkpoint_every: int = Field(default=50, ge=1)
    """Steps between checkpoints; the last step always has one."""
    seed: int = 0
    """Everything random in the run follows from it."""


class RejectionSettings(Settings):
    """Rejection sampling: the agent's own runs that were right are demonstrations for supervised training."""

    samples: int = Field(default=5, ge=1)
    """Runs of each question."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of those runs."""
    at_least: float = 1.0
    """Runs whose reward is at least this are right."""
    keep: int = Field(default=1, ge=1)
    """Right runs of one question that are kept, at most; drawn by the recipe's seed."""
    sft: SftSettings = SftSettings()
    """The supervised training on what was kept; nothing is repeated in it (`repeat_steps`)."""
