"""TensorBoard: writes event files to the training folder; read by `tensorboard --logdir OUT/trackers/tensorboard`."""

from collections.abc import Mapping

from coseek.training.tracker import TrackedRun

NEEDS = "tensorboard"


class TensorBoardTracker:
    """Writes scalars. Flushes every row, so that the files of a killed run are readable."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Readers drop rows of an earlier session after its last step that is noted as sent.
        purge = None if run.last_step is None else run.last_step + 1
        self._writer = SummaryWriter(log_dir=str(run.store / run.part), purge_step=purge)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def open_run(run: TrackedRun) -> TensorBoardTracker:
    return TensorBoardTracker(run)
