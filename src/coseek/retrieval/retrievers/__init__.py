"""Retrievers: one file each. A file offers `SETTINGS`, `build` and `load`; its name is the retriever's name."""
