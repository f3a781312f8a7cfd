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
    """Kills this process when six turns are labelled."""

    def advance(self, done: int, note: str = "") -> None:
        if done == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def course(folder: Path, method: str) -> Played:
    settings = f"labels={{method: {method}, scorer: oracle, questions: 16, samples: 2}}"
    made = Played(recipe(folder, LIMITS, "agent.limits.max_turns=2", settings), folder / method)
    if made.workers.first:
        made.first.prepare_data()
    made.workers.wait()
    return made


if __name__ == "__main__":
    for method in sys.argv[3:]:
        made = course(Path(sys.argv[2]), method)
        if sys.argv[1] == "die" and not made.workers.first:
            made.progress = Deadly()
        label_round(made, 1)
    dist.destroy_process_group()
