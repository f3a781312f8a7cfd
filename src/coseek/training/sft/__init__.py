"""Supervised fine-tuning: demonstrations, drills, synthetic examples."""
