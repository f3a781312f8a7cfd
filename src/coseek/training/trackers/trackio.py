"""Trackio: logs to a database on this machine (`TRACKIO_DIR`). Read it with `trackio show --project coseek`.

Rows leave the machine only if Trackio's own variables say so (`TRACKIO_SPACE_ID`, `TRACKIO_SERVER_URL`).
"""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout

from coseek.training.tracker import TrackedRun

NEEDS = "trackio"


class TrackioTracker:
    """One Trackio run, resumed by its name, which therefore contains a part of the id.

    Trackio writes in a thread, twice per second: a killed process may lose the rows of the last half second.
    """

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._finish = trackio.finish
        with redirect_stdout(io.StringIO()):  # Trackio prints, but standard output is reserved for the command
            self._run = trackio.init(
                project="coseek",
                name=f"{run.name} {run.id[:8]}",
                config=run.config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._finish()


def open_run(run: TrackedRun) -> TrackioTracker:
    return TrackioTracker(run)
