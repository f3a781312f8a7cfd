"""GSPO: ratio and clip of a whole run (Zheng et al. 2025, eq. 5 to 7).

With `rl.loss_agg_mode=seq-mean-token-mean` the loss is the paper's. Its clips are far narrower than PPO's:
`rl.clip_ratio_low=3e-4`, `rl.clip_ratio_high=4e-4`. An advantage may differ from token to token (GSPO-token, eq. 13
and 14).
"""

from coseek.training.rl.policy_loss import LossBatch, PolicyLossSettings, TokenLosses

SETTINGS = PolicyLossSettings
CLIPS_TOKENS = False


def token_losses(batch: LossBatch, settings: PolicyLossSettings) -> TokenLosses:
    """Return -min(s A, clip(s, 1 - clip_ratio_low, 1 + clip_ratio_high) A); shape bt.

    s = exp(mean of log ρ over the run's policy tokens) is the value at every token, and its gradient there is that of
    s · π / sg(π): with one advantage for the run, the sum over its tokens has the gradient of eq. 7.
    """
    import torch

    from coseek.training.rl.losses import MAX_LOG_RATIO

    log_ratios_bt = batch.log_ratios_bt
    length_b1 = batch.mask_bt.sum(dim=1, keepdim=True).clamp(min=1)
    mean_b1 = (log_ratios_bt.sum(dim=1, keepdim=True) / length_b1).detach()
    zeros_bt = log_ratios_bt - log_ratios_bt.detach()  # with the token's gradient
    ratios_bt = (mean_b1 + zeros_bt).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped_bt = ratios_bt.clamp(1.0 - batch.clip_ratio_low, 1.0 + batch.clip_ratio_high)
    return -torch.minimum(ratios_bt * batch.advantages_bt, clipped_bt * batch.advantages_bt)
