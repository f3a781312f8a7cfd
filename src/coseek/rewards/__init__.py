"""Rewards: pure functions of finished trajectories, composed by settings. They know no model and no trainer."""
