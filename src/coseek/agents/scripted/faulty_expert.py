"""Faulty expert: the scripted demonstrator with its deliberate faults, as a policy is warm-started on it."""

from coseek.agents.scripted import expert
from coseek.agents.scripted.expert import ExpertAgent, ExpertSettings

PROMPT_TEMPLATE = "laptop"
NEEDS = expert.NEEDS


def make() -> ExpertAgent:
    """The demonstrator with the default faults."""
    return ExpertAgent(ExpertSettings())
