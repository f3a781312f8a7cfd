"""What one of several workers runs in `test_label_parts.py`."""

import os
import signal
from pathlib import Path

from tests.pipelines.test_round_labels import BY_ANSWERS, LIMITS, Played
from tests.pipelines.test_together import recipe

from coseek.core.progress import NoProgress
from coseek.pipelines.together.labelling import label_round


class Deadly(NoProgress):
    """Kills this process when six runs are made, or six turns labelled."""

    def __init__(self, doing: str) -> None:
        self.doing, self.now = doing, ""

    def stage(self, name: str, total: int) -> None:
        self.now = name

    def advance(self, done: int, note: str = "") -> None:
        if done == 6 and self.now.startswith(self.doing):
            os.kill(os.getpid(), signal.SIGKILL)


def co_training(folder: Path, method: str) -> Played:
    settings = f"labels=!replace {{method: {method}, scorer: oracle, questions: 16, samples: 2}}"
    own = folder / "recipes" / os.environ.get("RANK", "0")  # it is written anew by each, and not atomically
    made = Played(recipe(own, LIMITS, *BY_ANSWERS, "agent.limits.max_turns=2", settings), folder / method)
    if made.workers.is_main:
        made.first.prepare_data()
    made.workers.barrier()
    return made


def label(folder: Path, methods: tuple[str, ...], dies: str = "") -> None:
    """One round by every method; the second worker may have to die while it makes `runs` or `labels`."""
    for method in methods:
        made = co_training(folder, method)
        if dies and not made.workers.is_main:
            made.progress = Deadly(dies)
        label_round(made, 1)
