"""Export of runs: their trajectories in the formats of other systems."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from coseek.agents.protocol import stored_protocol
from coseek.core.connections import is_url
from coseek.core.errors import DataError, UnknownName
from coseek.core.files import atomic_folder, check_output_folder, check_replaceable, write_json, write_jsonl
from coseek.core.lock import lock_beside
from coseek.data.digests import check_output_file
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.traces.atif import atif_document
from coseek.traces.inspect_log import write_inspect_log
from coseek.traces.messages import message_row

_ATIF_FILES = re.compile(r"[0-9]{6,}\.json")

Writer: TypeAlias = Callable[[Run, Path], int]
"""(run, output path) → number of trajectories."""


def export_run(run: Run, format_name: str, out: Path) -> int:
    """Write a run in a format of `FORMATS`. Returns the number of its trajectories. Raises `DataError` for an empty
    run, and for an `out` with other contents."""
    if format_name not in FORMATS:
        raise UnknownName("trace format", format_name, FORMATS)
    ending, write = FORMATS[format_name]
    if ending:
        check_output_file(out, ending)
    with lock_beside(out, again=False):
        return write(run, out)


def _trajectories(run: Run) -> Iterator[Trajectory]:
    """The trajectories of a run. Raises `DataError` if it has none."""
    stored_protocol(run)
    trajectory = None
    for trajectory in run.trajectories():
        yield trajectory
    if trajectory is None:
        raise DataError(f"{run.folder} holds no trajectories, so there is nothing to export")


def _messages(run: Run, out: Path) -> int:
    return write_jsonl(out, map(message_row, _trajectories(run)))


def _atif(run: Run, out: Path) -> int:
    """Write one document per file. Files are numbered, since an id may be unusable as a file name."""
    check_output_folder(out, "000001.json")
    check_replaceable(out, _ATIF_FILES.fullmatch, "a run in ATIF")
    count = 0

    def fill(folder: Path) -> None:
        nonlocal count
        for count, trajectory in enumerate(_trajectories(run), start=1):
            write_json(folder / f"{count:06}.json", atif_document(trajectory, _agent_name(run)))

    atomic_folder(out, fill)
    return count


def _inspect(run: Run, out: Path) -> int:
    task = run.folder.resolve().name
    return write_inspect_log(out, task, run.record, list(_trajectories(run)), _agent_name(run) or "none")


def _agent_name(run: Run) -> str | None:
    """The name of a run's agent, without folders of this machine."""
    agent = run.settings.get("agent")
    name = agent.get("name") if isinstance(agent, dict) else None
    if not isinstance(name, str):
        return None
    return name if is_url(name) else Path(name).name


FORMATS: Mapping[str, tuple[str, Writer]] = {
    "messages": (".jsonl", _messages),
    "atif": ("", _atif),
    "inspect": (".eval", _inspect),
}
"""Name → file ending, empty for a folder, and writer. `messages`: JSON lines of chat messages; `atif`: ATIF documents;
`inspect`: an Inspect log."""
