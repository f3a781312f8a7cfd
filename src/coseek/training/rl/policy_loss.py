"""Policy loss: the loss of every token of the policy, from its log-probabilities and advantages.

A policy loss is one file: `rl/policy_losses/NAME.py`, or a user's file whose path the recipe gives
(`rl.policy_loss: mine.py`). It defines

    SETTINGS                        a subclass of `PolicyLossSettings`
    token_losses(batch, settings)   `LossBatch` → a Tensor of shape bt, unweighted: `rl.loss_agg_mode` sets the weights
    LOSS_AGG_MODE                   optional: the only `rl.loss_agg_mode` that the loss is defined with
    CLIPS_TOKENS                    optional: False if it clips no single tokens at `rl.clip_ratio_low` and
                                    `rl.clip_ratio_high`, so that `clip_frac` says nothing about it

In a program it may also be a function of the `LossBatch` alone (`policy_loss_name`). The update adds the weights, the
KL, the entropy bonus and `rl.rollout_is`. Neither this module nor the top level of a loss's file imports torch: a
recipe is checked before torch is loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

from coseek.core.errors import SettingError
from coseek.core.plugins import PluginSpec, check_function, check_takes, find_plugin, offer, plugin_name, running
from coseek.core.settings import Settings, make_settings
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "coseek.training.rl.policy_losses"
TokenLosses: TypeAlias = "Tensor"
"""The loss of every token, unweighted; shape bt."""


class PolicyLossSettings(Settings):
    """Settings of a policy loss; the base class has none."""


CONTRACT: PluginSpec = {"SETTINGS": PolicyLossSettings, "token_losses": None}


@dataclass(frozen=True, slots=True)
class LossBatch:
    """Whole rows of a micro-batch, the input of a policy loss, which must not average over them. Shapes: b rows
    (trajectories) · t tokens. Tensors of numbers are 0 outside the mask."""

    new_bt: "Tensor"
    """Log-probabilities under the policy in training, with their gradient."""
    old_bt: "Tensor"
    """The same under the policy that the ratio is to (`rl.old_logprobs`)."""
    advantages_bt: "Tensor"
    mask_bt: "Tensor"
    """True at the policy's tokens in the loss."""
    clip_ratio_low: float
    """`rl.clip_ratio_low`."""
    clip_ratio_high: float
    """`rl.clip_ratio_high`."""

    @classmethod
    def of(
        cls, new_bt: "Tensor", old_bt: "Tensor", advantages_bt: "Tensor", mask_bt: "Tensor", settings: RlSettings
    ) -> "LossBatch":
        """The batch of tensors that may hold anything outside the mask."""
        import torch

        def masked(values_bt: "Tensor") -> "Tensor":
            return torch.where(mask_bt, values_bt, 0.0)

        return cls(
            masked(new_bt),
            masked(old_bt),
            masked(advantages_bt),
            mask_bt,
            clip_ratio_low=settings.clip_ratio_low,
            clip_ratio_high=settings.clip_ratio_high,
        )

    @property
    def ratios_bt(self) -> "Tensor":
        """π_new / π_old of every token, with its gradient; 1 outside the mask."""
        from coseek.training.rl.losses import ratios

        return ratios(self.new_bt, self.old_bt, self.mask_bt)

    @property
    def log_ratios_bt(self) -> "Tensor":
        """log π_new - log π_old of every token; 0 outside the mask."""
        return self.new_bt - self.old_bt


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss with its settings."""

    name: str
    settings: PolicyLossSettings
    _token_losses: "Callable[[LossBatch, PolicyLossSettings], TokenLosses]" = field(repr=False)
    clips_tokens: bool = True
    """Whether `clip_frac` is the share of tokens that it clips."""

    def __call__(self, batch: LossBatch) -> "Tensor":
        """The loss of every token, 0 outside the mask. Raises `SettingError` for another shape, for a loss without a
        gradient and for numbers that are not finite."""
        import torch

        losses_bt = self._token_losses(batch, self.settings)
        shape = getattr(losses_bt, "shape", None)
        if shape != batch.mask_bt.shape:
            raise SettingError(
                f"the policy loss {self.name} returned a loss of shape {shape}; one number per token is needed, shape "
                f"{tuple(batch.mask_bt.shape)}"
            )
        if batch.new_bt.requires_grad and not getattr(losses_bt, "requires_grad", False):
            raise SettingError(
                f"the policy loss {self.name} returned a loss without a gradient; compute it from batch.new_bt or "
                "batch.ratios_bt, and detach neither"
            )
        # Where its inputs are not finite, the loss is not at fault.
        inputs_bt = batch.log_ratios_bt + batch.advantages_bt
        if not bool((losses_bt.isfinite() | ~batch.mask_bt).all()) and bool(inputs_bt.isfinite().all()):
            raise SettingError(
                f"the policy loss {self.name} returned losses that are not finite; guard its divisions and logarithms"
            )
        return torch.where(batch.mask_bt, losses_bt, 0.0)


def policy_loss_name(policy_loss: "str | Path | Callable[[LossBatch], Tensor]") -> str:
    """The name in settings of a policy loss: a name, a file, or a function of a batch, which becomes a part."""
    if not callable(policy_loss):
        return str(policy_loss)
    check_takes("policy loss", policy_loss, "batch")
    names = {"SETTINGS": PolicyLossSettings, "token_losses": lambda batch, settings: policy_loss(batch)}
    return offer("policy loss", policy_loss, names)


def open_policy_loss(settings: RlSettings) -> PolicyLoss:
    """Open the loss that `rl.policy_loss` names, with its settings. A user's file is executed.

    Raises `UnknownName` with the nearest name, and `SettingError` for unknown settings or another loss_agg_mode than
    the loss is defined with.
    """
    name = settings.policy_loss
    module = find_plugin("policy loss", PACKAGE, name, CONTRACT)
    check_function(module, "token_losses", name, "batch", "settings")
    mode = getattr(module, "LOSS_AGG_MODE", settings.loss_agg_mode)
    if mode != settings.loss_agg_mode:
        raise SettingError(
            f"rl.policy_loss={name} is defined with rl.loss_agg_mode={mode}, not {settings.loss_agg_mode}; add "
            f"rl.loss_agg_mode={mode}{' and rl.loss_scale_factor=TOKENS' if mode.endswith('norm') else ''}"
        )
    kind = cast(type[PolicyLossSettings], module.SETTINGS)
    loss_settings = make_settings(kind, settings.policy_loss_settings, "rl.policy_loss_settings")

    def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> "Tensor":
        with running("policy loss", name):
            return cast("Tensor", module.token_losses(batch, settings))

    return PolicyLoss(plugin_name(name), loss_settings, token_losses, getattr(module, "CLIPS_TOKENS", True))
