"""Reinforcement learning: runs in groups, advantages, losses, updates."""
