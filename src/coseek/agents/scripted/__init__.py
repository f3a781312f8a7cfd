"""Scripted agents by name: agents that need no model. A file here is found by its name on the command line.

A module offers `make() -> ScriptedAgent` and `PROMPT_TEMPLATE`, its prompt template. `NEEDS` says what it wants to
know of a question besides its words, if anything.
"""
