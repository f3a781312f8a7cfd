"""Faulty expert: the scripted demonstrator with its deliberate faults, as a policy is warm-started on it."""

from coseek.agents.writers import expert
from coseek.agents.writers.expert import ExpertAgent, ExpertSettings

WORDING = "laptop"
NEEDS = expert.NEEDS


def make() -> ExpertAgent:
    """The demonstrator with the default faults."""
    return ExpertAgent(ExpertSettings())
