"""Dr. GRPO: PPO's clipped surrogate, summed over a constant in place of a run's length (Liu et al. 2025, section 3.2).

Dividing by a run's own length teaches long wrong answers. The other half of the paper, advantages without the division
by the spread, is the setting `scale_by_std: false` of the algorithm `grpo`.
"""

from coseek.training.rl.policy_losses.ppo_clip import SETTINGS, token_losses

LOSS_AGG_MODE = "seq-mean-token-sum-norm"

__all__ = ["LOSS_AGG_MODE", "SETTINGS", "token_losses"]
