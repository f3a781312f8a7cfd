"""Adapters: coseek's retrievers, runs and labels as parts of other libraries, each behind an extra of its name."""
