"""A reward of your own: a gold answer in any capitals, minus a price for each passage that the agent had to read.

    python examples/own_reward.py FOLDER

The same file is a part of a recipe: `coseek train agent quickstart 'reward={examples/own_reward.py: 1.0}' --out RUN`.
"""

import sys
from pathlib import Path

import coseek


class SETTINGS(coseek.PartSettings):
    """What can be set besides the weight and the gate that every part has."""

    price: float = 0.01
    """Taken off for each passage shown."""


def reward(trajectory: coseek.Trajectory, settings: SETTINGS) -> float:
    """A pure function of a finished trajectory: no model, clock or random number."""
    right = (trajectory.answer or "").casefold() in {answer.casefold() for answer in trajectory.question.answers}
    shown = sum(len(search.hits) for search in trajectory.searches)
    return float(right) - settings.price * shown


def main(folder: Path) -> None:
    """Roll out the scripted agent, and pay it by this file and by a part that ships with coseek."""
    data = coseek.make_world(folder / "world", size="tiny", train=0, dev=0, test=20)
    coseek.build_index(data.folder, "bm25", folder / "index")
    trajectories = coseek.rollout("rules", data.questions("test"), folder / "index")
    paid = coseek.score(trajectories, {__file__: {"weight": 1.0, "price": 0.02}, "f1": 0.1})
    for trajectory, found in zip(trajectories, paid, strict=True):
        if isinstance(found, coseek.Reward):
            parts = ", ".join(f"{name} {value:.2f}" for name, value in found.parts.items())
            print(f"{found.value:+.3f}  ({parts})  {trajectory.answer}")
        else:  # a search or a model call failed: the trajectory has no reward, which is not a reward of 0
            print(f"no reward: {found.part}: {found.detail}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
