"""Encoder training: train a retriever's encoder on labels or on synthetic labels."""
