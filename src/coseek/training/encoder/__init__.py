"""Training retrievers: labels, or lessons in throw-away worlds, become an encoder folder."""
