"""Learning: ledgers as batches, modules that are stepped, checkpoints."""
