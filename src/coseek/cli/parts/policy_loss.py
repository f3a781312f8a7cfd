"""My part: the surrogate without a clip; the loss of a token is minus its ratio times its advantage."""

from typing import TYPE_CHECKING

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings

if TYPE_CHECKING:  # a recipe is checked before torch is loaded
    from torch import Tensor

SETTINGS = PolicyLossSettings


def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> "Tensor":
    """Return one loss per token, shape bt."""
    return -batch.ratios_bt * batch.advantages_bt
