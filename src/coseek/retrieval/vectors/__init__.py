"""Vectors: encoders, what they make of texts, and the search for the nearest."""
