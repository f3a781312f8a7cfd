"""Length: hundreds of characters that the agent wrote. A reward with a spread, whatever a policy has learnt."""

from coseek.data.trajectory import Author, Trajectory
from coseek.rewards.reward import PartSettings

SETTINGS = PartSettings


def reward(trajectory: Trajectory, settings: PartSettings) -> float:
    """Return the length of the agent's text / 100."""
    return sum(len(segment.text) for segment in trajectory.segments if segment.author is Author.AGENT) / 100
