"""Engines: `general` runs any Hugging Face module, `fused` those of common architectures with less overhead."""
