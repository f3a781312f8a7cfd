"""Ways to run a network over slots: `general` through any Hugging Face module, `lfm2` without its overhead."""
