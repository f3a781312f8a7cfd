"""Trainer: batches of trajectories, learners, optimisers, checkpoints."""
