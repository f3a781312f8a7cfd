"""Rewards: pure functions of finished trajectories, composed by settings. They use no model and no trainer."""
