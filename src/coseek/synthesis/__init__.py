"""Questions made from a corpus alone: chains of passages, wordings, gates, splits, unanswerable twins."""
