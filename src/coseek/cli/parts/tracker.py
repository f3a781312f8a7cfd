"""My part: append every row of metrics to a text file."""

from collections.abc import Mapping
from pathlib import Path

from coseek.training.tracker import TrackedRun


class TextFile:
    """Implements `Tracker`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("a", encoding="utf-8")

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send one row."""
        self.file.write(f"{step}: {', '.join(f'{name} {value:g}' for name, value in values.items())}\n")

    def close(self) -> None:
        """Write out what is buffered."""
        self.file.close()


def open_run(run: TrackedRun) -> TextFile:
    """Start a run; `run.last_step` is the last step before this session."""
    return TextFile(run.store / f"{run.id}.txt")
