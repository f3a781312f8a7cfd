"""Training labels of the laboratory, found by name: those of laptop worlds."""
