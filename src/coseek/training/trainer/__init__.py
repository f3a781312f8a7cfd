"""Trainer: batches of trajectories, learners, optimizers, checkpoints."""
