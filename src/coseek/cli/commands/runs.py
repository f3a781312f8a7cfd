"""List the trainings, runs and labels in a folder: time, recipe, progress, result."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, cast

from typer import Argument

from coseek.cli.terminal import AsJson, new_app, print_json, stdout_console, tell
from coseek.core.errors import CoseekError, DataError
from coseek.core.files import RECORDS, JsonObject, parse_line, read_yaml
from coseek.core.lock import is_being_written
from coseek.core.text import counted
from coseek.measure.table import Table

GROUP = "Results"
app = new_app()
DEPTH = 3
"""Levels of subfolders to search. The search does not descend into a folder with a record."""
KINDS = {"rounds": "co-training", "rl": "agent", "tasks": "base model", "loss": "retriever", "sft": "reader"}
"""Setting of a recipe → what it trains. The first that the recipe has counts."""
MODELS = ("encoder", "simulator")
"""Models of trainings that may end without a table."""


@dataclass(frozen=True)
class Entry:
    """One folder with a record: a row of the table."""

    folder: str
    what: str
    """`agent`, `retriever`, `co-training`, `run`, `labels` …"""
    about: str
    """The recipe's first line, or what was run or labelled."""
    started: str
    """ISO time; empty if the record has none."""
    state: str
    """`finished`, `running`, or the progress."""
    result: str
    """Headline of a finished training."""


@app.command(epilog="Example: `coseek runs runs`")
def runs(
    folder: Annotated[Path, Argument(metavar="DIR", help="The folder to list.")] = Path("runs"), as_json: AsJson = False
) -> None:
    """List the trainings, runs and labels in a folder, the newest first."""
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; name one: coseek runs DIR")
    newest_first = sorted(entries(folder), key=lambda entry: entry.started, reverse=True)
    if as_json:
        print_json([cast(JsonObject, asdict(entry)) for entry in newest_first])
    elif not newest_first:
        tell(f"{folder} holds no training, run or labels")
    else:
        rows = [asdict(replace(entry, started=entry.started[:16].replace("T", " "))) for entry in newest_first]
        stdout_console().print(Table(tuple(rows[0]), tuple(tuple(row.values()) for row in rows)).rich())


def entries(folder: Path, depth: int = DEPTH) -> Iterator[Entry]:
    """Yield an entry for each folder with a record, except those inside another one."""
    for name in RECORDS:
        if (folder / name).is_file() and (entry := entry_of(folder, name)) is not None:
            yield entry
            return
    if depth:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from entries(path, depth - 1)


def entry_of(folder: Path, name: str) -> Entry | None:
    """Describe a folder by its record `name`, or by the error if the record cannot be read. `None` for a `recipe.yaml`
    of a user's, which is no record."""
    try:
        record = read_yaml(folder / name, "record")
    except CoseekError as error:
        return Entry(str(folder), "?", str(error), "", "", "")
    recipe, settings = (value if isinstance(value := record.get(key), dict) else {} for key in ("recipe", "settings"))
    created, is_running = str(record.get("created") or ""), is_being_written(folder)
    if name == "recipe.yaml":
        if not created:
            return None
        kind = next((kind for key, kind in KINDS.items() if key in recipe), "training")
        has_finished = is_finished(folder)
        state = "running" if is_running else "finished" if has_finished else "stopped"
        state = state if has_finished else ", ".join(filter(None, (state, last_step(folder))))
        about = recipe.get("about")
        agent = recipe.get("agent")
        about = about or (agent.get("about") if isinstance(agent, dict) else "")
        return Entry(str(folder), kind, str(about or ""), created, state, headline(folder / "table.md"))
    agent = settings.get("agent")
    if name == "run.yaml":
        agent_name = agent.get("name") if isinstance(agent, dict) else agent
        logs = settings.get("traces")
        about = f"{agent_name} on {settings.get('questions', settings.get('set', ''))}"
        about = f"logs: {', '.join(map(str, logs))}" if isinstance(logs, list) else about
        rows = counted(count_lines(folder / "trajectories.jsonl"), "trajectory", "trajectories")
        return Entry(str(folder), "run", about, created, f"running, {rows}" if is_running else rows, "")
    set_count = counted(count_lines(folder / "labels.jsonl"), "label set")
    about = f"{settings.get('method', '')}: {', '.join(map(str, cast(list[str], settings.get('runs') or [])))}"
    return Entry(str(folder), "labels", about, created, f"running, {set_count}" if is_running else set_count, "")


def is_finished(folder: Path) -> bool:
    """Whether a training has its table or, if nothing was held out to measure, its model."""
    unmeasured = not (folder / "before.json").exists()
    return (folder / "table.md").is_file() or (unmeasured and any((folder / name).is_dir() for name in MODELS))


def last_step(folder: Path) -> str:
    """Return `STAGE step N`, or `step N`, of the last logged metrics; empty without any."""
    logs = sorted(folder.rglob("metrics.jsonl"), key=lambda path: path.stat().st_mtime)
    for path in reversed(logs):
        lines = path.read_bytes().splitlines()
        for line in reversed(lines):
            try:
                step = parse_line(line, str(path)).get("step")
                stage = path.parent.relative_to(folder).as_posix().removeprefix(".")
                return f"{stage} step {step}".strip()
            except CoseekError:  # the line is still being written
                continue
    return ""


def headline(path: Path) -> str:
    """Return the first measured column of a training's first table, before and after:
    `em on test: before 0.618, after 0.840`, `recall@1: before 0.632, trained 0.917`."""
    if not path.is_file():
        return ""
    lines = path.read_text(encoding="utf-8").splitlines()
    header, *rows = [line.strip("| ").split(" | ") for line in lines if line[:1] == "|"] or [[""]]
    rows = [row for row in rows[1:] if len(row) == len(header)]
    if not rows or len(header) < 2:
        return ""
    column = next((number for number, cell in enumerate(rows[0]) if number and "[" in cell), 1)  # with an interval
    chosen = [row for row in rows if row[0] in ("before", "after", "trained")][:2]
    cells = [f"{row[0]} {row[column].partition(' ')[0]}" for row in (chosen if len(chosen) == 2 else rows[:2])]
    return f"{header[column] if column > 1 else f'{header[0]} on {header[1]}'}: {', '.join(cells)}"


def count_lines(path: Path) -> int:
    """Count the lines of a file, which may be growing; 0 if it is missing."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
