"""The laptop world: a generated encyclopedia, fully labelled. Knows nothing of retrievers, models or agents."""
