"""Scripted agents: agents without a model, one file each. A file's name is the agent's name on the command line.

A module offers `make() -> ScriptedAgent` and `PROMPT_TEMPLATE`, the name of its prompt template. `NEEDS` names what it
reads of a question besides its text, if anything. The agent may have an attribute `LIMITS`, its default budgets.
"""
