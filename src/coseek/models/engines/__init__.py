"""Engines: `general` runs any Hugging Face module, `lfm2` one architecture with less overhead."""
