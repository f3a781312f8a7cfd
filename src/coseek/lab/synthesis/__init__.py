"""Questions made from a corpus alone: chains of passages, their text, gates, splits, unanswerable twins."""
