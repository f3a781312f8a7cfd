"""Dr. GRPO: PPO's clipped surrogate, summed over a constant in place of a run's length (Liu et al. 2025, section 3.2).

Dividing by a run's own length teaches long wrong answers. The other half of the paper, advantages without the division
by the spread, is the setting `scale_by_std: false` of the algorithm `grpo`.
"""

from typing import TYPE_CHECKING

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings
from coseek.training.rl.policy_losses import ppo_clip

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = PolicyLossSettings
LOSS_AGG_MODE = "seq-mean-token-sum-norm"


def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> "Tensor":
    """Return PPO's token loss; shape bt."""
    return ppo_clip.token_losses(batch, settings)
