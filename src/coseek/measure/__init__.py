"""Measuring: pure functions of finished trajectories. Knows no model, no clock and no network."""
