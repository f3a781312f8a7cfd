"""Retrieval: retrievers and their indexes."""
