"""Policy losses: one file each, which computes the loss of every token. See `rl/policy_loss.py`."""
