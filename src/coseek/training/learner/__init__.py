"""Learner: batches of trajectories, their log-probabilities, optimizers, checkpoints, workers."""
