"""What one of several workers runs in `test_label_parts.py`: `MODE FOLDER METHOD…`."""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist
from tests.pipelines.test_round_labels import LIMITS, Played
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


def course(folder: Path, method: str) -> Played:
    settings = f"labels={{method: {method}, scorer: oracle, questions: 16, samples: 2}}"
    own = folder / "recipes" / os.environ.get("RANK", "0")  # it is written anew by each, and not atomically
    made = Played(recipe(own, LIMITS, "agent.limits.max_turns=2", settings), folder / method)
    if made.workers.first:
        made.first.prepare_data()
    made.workers.wait()
    return made


if __name__ == "__main__":
    for method in sys.argv[3:]:
        made = course(Path(sys.argv[2]), method)
        if sys.argv[1] in ("labels", "runs") and not made.workers.first:
            made.progress = Deadly(sys.argv[1])
        label_round(made, 1)
    dist.destroy_process_group()
