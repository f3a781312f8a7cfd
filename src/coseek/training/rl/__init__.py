"""Reinforcement learning: sampling in groups, advantages, losses, updates."""
