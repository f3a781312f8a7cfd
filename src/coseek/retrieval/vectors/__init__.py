"""Vectors: encoders, vector stores, and nearest-neighbour search."""
