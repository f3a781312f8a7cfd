"""A training by a Tinker server, to be killed and resumed: FOLDER POLICY URL."""

import sys
from pathlib import Path

from coseek.training.rl.callbacks import Callback, StepReport

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.training.test_tinker import STEPS, Served


class Versions(Callback):
    """Writes the version of the weights that sampled each step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def after_step(self, report: StepReport) -> None:
        runs = [episode.trajectory for episode in report.episodes.scored]
        (version,) = {part.version for run in runs for part in run.segments} - {None}
        with self.path.open("a") as file:
            file.write(f"{report.step} {version}\n")


if __name__ == "__main__":
    folder, policy, url = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    served = Served(folder, policy, url, steps=STEPS, checkpoint_every=2)
    folder.mkdir(exist_ok=True)
    served.train(callbacks=[Versions(folder / "versions")], resume=True)
    served.backend.save(folder / "policy", served.save_extra)
