"""Faulty expert: the expert with its default deliberate mistakes, on which policies are warm-started."""

from coseek.lab.agents import expert
from coseek.lab.agents.expert import ExpertAgent, ExpertSettings

PROMPT_TEMPLATE = "laptop"
NEEDS = expert.NEEDS


def make() -> ExpertAgent:
    """Make the expert with the default mistakes."""
    return ExpertAgent(ExpertSettings())
