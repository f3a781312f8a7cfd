"""Settings of reinforcement learning. Does not import torch: a recipe is checked before torch is loaded."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from coseek.agents.limits import Tree
from coseek.core.errors import SettingError
from coseek.core.settings import MayChange, Settings
from coseek.models.remote import RemoteModelSettings
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings

LossAggMode: TypeAlias = Literal["token-mean", "seq-mean-token-mean", "group-mean", "seq-mean-token-sum-norm"]
KlEstimator: TypeAlias = Literal["k1", "k2", "k3"]
AlarmName: TypeAlias = Literal[
    "no-search", "no-answer", "endless-search", "format-hacking", "likelihood-decay", "exploding", "no-signal", "faults"
]


class MonitorSettings(Settings):
    """Thresholds of the alarms of a training. `rl/monitor.py` defines each alarm."""

    stop: bool = False
    """Stop the training at the first alarm. The last checkpoint before any alarm is kept either way."""
    ignore: tuple[AlarmName, ...] = ()
    """Alarms that are turned off."""
    outcome: str = "exact_match"
    """Metric of correctness: `exact_match`, or a part of the reward such as `reward/gen_acc` if the agent gives no
    answer. A trajectory with 0.5 or more counts as right."""
    window: int = Field(default=5, ge=1)
    """Steps in a moving average. A checkpoint counts as healthy after this many further steps without an alarm."""
    probe_trajectories: int = Field(default=16, ge=0)
    """Right trajectories per step whose likelihood is measured before and after the updates; 0 saves the two passes."""

    search_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """`no-search`: raised if the share of trajectories that search is below this fraction of its best."""
    answer_share: float = Field(default=0.75, ge=0.0, le=1.0)
    """`no-answer`: raised if the share of trajectories that answer is below this fraction of its best."""
    truncated_rise: float = Field(default=0.25, ge=0.0, le=1.0)
    """`endless-search`: raised if the share of truncated trajectories is above its lowest by more than this."""
    outcome_share: float = Field(default=0.67, ge=0.0, le=1.0)
    """`format-hacking`: raised if the outcome is below this fraction of its best, the reward is no lower …"""
    valid_rise: float = Field(default=0.03, ge=0.0, le=1.0)
    """… and the share of valid trajectories rose by more than this since then."""
    likelihood_fall: float = Field(default=0.05, ge=0.0)
    """`likelihood-decay`: raised if the updates of two windows, nearly all of them downward, lower the log-probability
    of right trajectories by more than this, in nats per token."""
    gradient_factor: float = Field(default=10.0, gt=1.0)
    """`exploding`: raised if every gradient norm of a window exceeds this times the median before it."""
    logprob_gap: float = Field(default=0.05, gt=0.0)
    """`exploding`: raised if sampler and trainer log-probabilities differ by more than this, in nats per token."""
    kl_old: float = Field(default=0.1, gt=0.0)
    """`exploding`: raised if the KL from the old policy exceeds this, in nats per token."""
    flat_share: float = Field(default=0.95, ge=0.0, le=1.0)
    """`no-signal`: raised if at least this share of groups have equal rewards and the task is not solved."""
    fault_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """`faults`: raised if at least this share of trajectories is left out because a retriever or a model failed."""


class OverlongSettings(Settings):
    """A soft penalty on long trajectories, part of their reward (DAPO, Yu et al. 2025, eq. 13). See `rl/rollout.py`."""

    max_tokens: int = Field(ge=1)
    """Tokens after the prompt, observations included, from which the full penalty applies."""
    margin_tokens: int = Field(ge=1)
    """Tokens before that over which the penalty rises from 0."""
    weight: float = Field(default=1.0, gt=0.0)
    """The full penalty."""

    @model_validator(mode="after")
    def _begins_after_the_prompt(self) -> "OverlongSettings":
        if self.margin_tokens > self.max_tokens:
            raise ValueError(f"margin_tokens is at most max_tokens ({self.max_tokens}), not {self.margin_tokens}")
        return self


class KeepRolloutsSettings(Settings):
    """Which rollouts of training are kept, as run folders that `coseek view`, `score` and `audit` open."""

    every: int = Field(default=10, ge=0)
    """Steps from one kept step to the next; the last step is kept, too. 0 keeps none."""
    mb: float = Field(default=200.0, gt=0.0)
    """Disk space in megabytes. Beyond it, every second kept step is removed, so that the others stay evenly spread; one
    step takes at most a tenth, in whole groups."""


class RolloutSettings(Settings):
    """Where rollouts are sampled."""

    servers: tuple[str, ...] = ()
    """URLs of model servers that sample: vLLM or SGLang. None: in this process."""
    weights: str | None = None
    """A folder that the servers can read, for the weights of each step; inside the run's folder when not set."""
    remote: RemoteModelSettings = RemoteModelSettings()
    """Requests to the servers."""
    max_steps_behind: int = Field(default=0, ge=0)
    """Steps by which the weights that sample a token may be older than those that it trains. From 1 on, servers sample
    later steps while this process trains; 0 samples and trains in turn."""

    @model_validator(mode="after")
    def _names_each_server_once(self) -> "RolloutSettings":
        if len(set(self.servers)) < len(self.servers):
            raise ValueError(f"servers names a server twice: {', '.join(self.servers)}")
        if self.max_steps_behind and not self.servers:
            raise ValueError(
                f"max_steps_behind={self.max_steps_behind} needs servers, which sample while this process trains; name "
                "them, or set it to 0"
            )
        return self

    def check(self, rl: "RlSettings") -> None:
        """Raise `SettingError` for settings of the training that servers, or sampling ahead, cannot follow."""
        if self.servers and rl.top_p < 1.0:
            raise SettingError(
                f"rollout servers draw from the whole softmax; leave out rl.top_p={rl.top_p:g}, or sample in this "
                "process with rollout.servers=[]"
            )
        if self.max_steps_behind and rl.dynamic_sampling:
            raise SettingError(
                f"max_steps_behind={self.max_steps_behind} samples a step before the last one's rewards are known, "
                "by which dynamic_sampling chooses questions; set max_steps_behind=0 or dynamic_sampling=false"
            )


class RlSettings(Settings):
    """Reinforcement learning of an agent. The defaults fit a laptop; the papers' values are given in brackets."""

    algorithm: str = "grpo"
    """A file of `rl/algorithms` by name (`grpo`, `rloo`, `ppo`, `mt-grpo` …), or the path of a Python file: see
    `rl/algorithm.py`."""
    algorithm_settings: dict[str, object] = Field(default_factory=dict)
    """Settings of the algorithm, such as `{scale_by_std: false}`."""
    policy_loss: str = "ppo-clip"
    """`ppo-clip`, `dr-grpo`, `gspo`, `cispo`, `sapo`, or the path of a Python file: see `rl/policy_loss.py`."""
    policy_loss_settings: dict[str, object] = Field(default_factory=dict)
    """Settings of the policy loss, such as `{max_weight: 5}` of `cispo`."""
    backend: str = "local"
    """Training backend: `local`, `tinker`, or the path of a Python file: see `rl/backend.py`."""
    backend_settings: Annotated[dict[str, object], MayChange()] = Field(default_factory=dict)
    """Settings of the backend, such as `{url: "http://127.0.0.1:8800", reduction: mean}` of `tinker`. May change when a
    training is resumed."""
    steps: Annotated[int, MayChange()] = Field(default=40, ge=0)
    """Steps, each a rollout and its updates (Search-R1: 500)."""
    questions_per_step: int = Field(default=32, ge=1)
    """Questions per step; a step has this times `group_size` trajectories (Search-R1: 512)."""
    group_size: int = Field(default=8, ge=1)
    """Trajectories per question (Search-R1: 5)."""
    tree_roots: int | None = Field(default=None, ge=1)
    """How many trajectories of a group begin at the question; the others fork from a search of one of these
    (Tree-GRPO). None: all."""
    balance_hops: bool = False
    """Give every number of hops the same share of each step, rather than its share of the questions. Without it, a step
    may hold no long question, or few that are paid."""
    num_minibatches: int = Field(default=2, ge=1)
    """Updates per pass over a step's trajectories."""
    epochs: int = Field(default=1, ge=1)
    """Passes over a step's trajectories."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Sampling temperature of the rollouts (s3: 0.6). The trainer divides logits by it too."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus of the rollouts (Search-R1's code: 0.95). Below 1 the sampler's log-probabilities are of the nucleus and
    the trainer's of the whole softmax, so that `old_logprobs: recompute` is needed."""
    seed: int = 0
    """Seed of all randomness in the training."""

    policy: LearnerSettings = LearnerSettings()
    """Training of the policy (Search-R1: lr 1e-6, GRPO 5e-7)."""
    critic: LearnerSettings = LearnerSettings(optimizer=OptimizerSettings(lr=1e-3))
    """Training of the value model; PPO only (Search-R1: lr 1e-5)."""

    clip_ratio_low: float = Field(default=0.2, ge=0.0, le=1.0)
    """Lower clip: a ratio below 1 by more than this has no gradient."""
    clip_ratio_high: float = Field(default=0.2, ge=0.0)
    """Upper clip: a ratio above 1 by more than this has no gradient (DAPO: 0.28)."""
    loss_agg_mode: LossAggMode = "token-mean"
    """Divisor of the sum of token losses: see `losses.loss_weights`."""
    loss_scale_factor: int = Field(default=0, ge=0)
    """Tokens per row, for `loss_agg_mode: seq-mean-token-sum-norm`."""
    old_logprobs: Literal["rollout", "recompute"] = "rollout"
    """Source of the old policy's log-probabilities: the sampler, or one more forward pass of the trainer."""
    rollout_is: Literal["off", "truncate", "mask"] = "off"
    """Correction for a sampler whose probabilities differ from the trainer's: a token's loss is multiplied by
    π_trainer / π_sampler, truncated at `rollout_is_threshold`, or without the tokens outside [1 / cap, cap]. See
    `losses.importance_weights`."""
    rollout_is_threshold: float = Field(default=2.0, ge=1.0)
    """C of the correction."""

    entropy_coef: float = Field(default=0.0, ge=0.0)
    """Weight of a bonus for the exact entropy of the sampling distribution at every trained token (Search-R1's code:
    0.001, though the paper has none; DAPO: none)."""
    measure_entropy: bool = False
    """Log the exact entropy even without a bonus. `sampled_nll` is always logged."""

    dynamic_sampling: bool = False
    """Replace groups without spread by fresh questions until the step is full (DAPO's dynamic sampling)."""
    dynamic_sampling_max_factor: float = Field(default=3.0, ge=1.0)
    """`dynamic_sampling`: take at most this times `questions_per_step` questions; the step trains on the groups with
    spread among them."""
    overlong: OverlongSettings | None = None
    """Soft penalty on long trajectories; none turns it off."""

    kl_coef: float = Field(default=0.0, ge=0.0)
    """β of the KL to the initial policy; 0 turns it off and saves the reference's pass (Search-R1: 0.001)."""
    kl_location: Literal["loss", "reward"] = "loss"
    """Where it is charged: as a term of the loss (GRPO), or subtracted from each token's reward (PPO in Search-R1)."""
    kl_estimator: KlEstimator = "k3"
    """k1, k2 or k3: see `losses.kl_estimate`. In the loss, the expected gradient of k1 is 0."""
    kl_clamp: float | None = Field(default=None, gt=0.0)
    """Clamp the estimate of a token to ± this (Search-R1's code: 10)."""

    truncated: Literal["keep", "mask", "penalise"] = "keep"
    """Truncated trajectories: treated like others, left out of the loss (they still count in their group), or
    penalised."""
    truncation_penalty: float = Field(default=0.5, ge=0.0)
    """Penalty that `penalise` subtracts from their reward."""

    monitor: Annotated[MonitorSettings, MayChange()] = MonitorSettings()
    """Alarms, and whether to stop at one. May change when a training is resumed."""
    checkpoint_every: Annotated[int, MayChange()] = Field(default=5, ge=1)
    """Steps between checkpoints; the last step always has one. May change when a training is resumed."""
    keep_rollouts: Annotated[KeepRolloutsSettings, MayChange()] = KeepRolloutsSettings()
    """Rollouts that are kept. May change when a training is resumed."""
    evaluate_every: Annotated[int, MayChange()] = Field(default=0, ge=0)
    """Steps between evaluations; 0 evaluates only after the last step. May change when a training is resumed."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "RlSettings":
        if self.tree_roots is not None and self.tree_roots >= self.group_size:
            raise ValueError(
                f"tree_roots={self.tree_roots} leaves no trajectory of group_size={self.group_size} to fork"
            )
        if self.dynamic_sampling and self.group_size == 1:
            raise ValueError(
                "dynamic_sampling needs several trajectories of a question to compare; give a group_size above 1"
            )
        if self.critic.share_prefixes:
            raise ValueError("only the policy's rows share prefixes; leave out critic.share_prefixes")
        if self.top_p < 1.0 and self.old_logprobs == "rollout":
            raise ValueError(
                f"rollouts with top_p={self.top_p:g} have log-probabilities of a part of the softmax that is trained; "
                "add old_logprobs=recompute"
            )
        if self.rollout_is != "off" and self.old_logprobs == "rollout":
            raise ValueError(
                f"rollout_is={self.rollout_is} corrects the old policy's log-probabilities; add "
                "old_logprobs=recompute (with rollout, the clipped ratio is to the sampler already)"
            )
        return self

    @property
    def tree(self) -> Tree | None:
        """The shape of a group whose trajectories fork."""
        return None if self.tree_roots is None else Tree(self.group_size, self.tree_roots)

    @property
    def rows_together(self) -> int:
        """How many rows one worker must sample together: a group whose trajectories fork, else one."""
        return 1 if self.tree_roots is None else self.group_size

    @property
    def total_updates(self) -> int:
        """Updates of the whole training, the length of the learning-rate schedule. Under `group-mean` a minibatch
        has at least one group."""
        minibatches = self.num_minibatches
        if self.loss_agg_mode == "group-mean":
            minibatches = min(minibatches, self.questions_per_step)
        return self.steps * self.epochs * minibatches
