"""Run: a folder with `run.yaml` (settings, identities, versions, commit), `trajectories.jsonl`, and
`SHA256SUMS` once it is closed."""

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, BinaryIO, TypeAlias, cast

from coseek.core.errors import DataError
from coseek.core.files import (
    SUMS,
    JsonObject,
    as_path,
    atomic_write,
    check_link,
    check_output_folder,
    is_failed_start,
    json_line,
    parse_line,
    parse_row,
    parse_rows,
    parsing,
    read_yaml,
    write_yaml,
)
from coseek.core.lock import NAME as LOCK, lock_folder
from coseek.core.settings import Settings, check_same_settings, fixed_settings
from coseek.core.strict_json import is_json
from coseek.data.digests import (
    KEY,
    Identities,
    changed_parts,
    check_identities,
    remove_digests,
    replacing,
    write_digests,
)
from coseek.data.trajectory import Trajectory

RECORDED = ("coseek", "torch", "transformers", "tokenizers", "faiss-cpu", "numpy")
"""Libraries whose versions a run records."""
TOKENS = "tokens.jsonl"
"""The token data of kept rollouts."""
RowKey: TypeAlias = tuple[str, int]
"""Question id and seed of a trajectory."""


@dataclass(frozen=True, slots=True)
class RunRows:
    """All rows of a run, to be sent to another process."""

    identities: Identities
    lines: str


class Run:
    """A run on disk. Each trajectory is appended when it ends, so a killed run keeps all finished ones."""

    def __init__(self, folder: Path | str) -> None:
        folder = as_path(folder, "a run folder")
        if not (folder / "run.yaml").exists():
            raise DataError(f"{folder} is not a run: {_explain_no_run(folder)}")
        self.folder = folder

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @classmethod
    def create(cls, folder: Path, settings: JsonObject) -> "Run":
        """Start a run, or replace a failed start. Raises `DataError` for a folder with results or with other files."""
        check_output_folder(folder, "run.yaml")
        with lock_folder(folder):
            cls.check_new(folder)
            write_yaml(folder / "run.yaml", {"settings": settings, **provenance()})
        return cls(folder)

    @staticmethod
    def check_new(folder: Path) -> None:
        """Raise `DataError` if a folder holds a run with results."""
        if (folder / "run.yaml").exists() and not is_failed_start(folder, "run.yaml"):
            raise DataError(f"{folder} holds a run already; go on with it with --resume, or choose another --out")

    @classmethod
    def begin(cls, folder: Path, settings: JsonObject, resume: bool, kind: type[Settings] | None = None) -> "Run":
        """Start a run, or with `resume` continue one with the same settings. Those that `kind` marks `MayChange` may
        differ."""
        if not (resume and (folder / "run.yaml").exists()) or is_failed_start(folder, "run.yaml"):
            return cls.create(folder, settings)
        run = cls(folder)
        check_same_settings(folder, fixed_settings(kind, run.settings), fixed_settings(kind, settings))
        return run

    @classmethod
    def made_with(cls, folder: Path, settings: JsonObject, identities: Identities) -> "Run":
        """Open the run of a folder if it has these identities, else replace it with a new run.

        For folders inside a training's folder only, since it deletes their contents.
        """
        with lock_folder(folder):
            recorded = cls(folder).record.get(KEY) if (folder / "run.yaml").exists() else None
            if recorded and not changed_parts(recorded, identities):
                return cls(folder)
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != LOCK:
                    path.unlink()
            run = cls.create(folder, settings)
            run.bind(identities)
            return run

    @property
    def record(self) -> JsonObject:
        """The contents of `run.yaml`."""
        return read_yaml(self.folder / "run.yaml", "run file")

    @property
    def settings(self) -> JsonObject:
        settings = self.record.get("settings")
        if not isinstance(settings, dict):
            raise DataError(f"{self.folder / 'run.yaml'} holds no settings; repeat the run with `coseek run`")
        return settings

    def bind(self, identities: Identities) -> None:
        """Store the identities of the parts that make the trajectories. Raises `SettingError` if they have changed
        since the first trajectory."""
        with lock_folder(self.folder):
            record, known_identities = self.record, {}
            recorded = record.get(KEY)
            if self.trajectories_path.exists() and self.trajectories_path.stat().st_size > 0:
                check_identities(self.folder / "run.yaml", recorded, identities)
                known_identities = recorded if isinstance(recorded, dict) else {}
            if (merged := {**known_identities, **identities}) != recorded:
                with replacing(self.folder, self.files):
                    write_yaml(self.folder / "run.yaml", {**record, KEY: merged})

    @property
    def is_closed(self) -> bool:
        """Whether the run was written to its end."""
        return (self.folder / SUMS).exists()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the digests of a closed run cover."""
        return self.folder / "run.yaml", self.trajectories_path, self.folder / TOKENS

    @property
    def trajectories_path(self) -> Path:
        return self.folder / "trajectories.jsonl"

    def trajectories(self) -> Iterator[Trajectory]:
        """The stored trajectories: by question in a closed run, else in the order in which they ended."""
        path = self.trajectories_path
        if not path.exists():
            return
        try:
            yield from parse_rows(path, Trajectory.from_json)
        except DataError as error:
            if path.is_file() and _ends_in_half_a_row(path):
                raise DataError(
                    f"{path} ends in half a row; complete the run: the same command with --resume"
                ) from error
            raise

    def by_question(self) -> Iterator[list[Trajectory]]:
        """The stored trajectories of each question, by seed; questions in the order in which they first appear."""
        spans: dict[str, list[tuple[RowKey, int, int]]] = {}
        for span in _spans(self.trajectories_path):
            spans.setdefault(span[0][0], []).append(span)
        for group in spans.values():
            lines = _lines_at(self.trajectories_path, sorted(group))
            where = f"{self.trajectories_path}, question {group[0][0][0]!r}"
            yield [parse_row(parse_line(line, where), Trajectory.from_json, where) for line in lines]

    def finished_keys(self, with_faults: bool = True) -> set[RowKey]:
        """The keys of all stored trajectories, or only of those without a fault."""
        trajectories = self.trajectories()
        return {(stored.question.id, stored.seed) for stored in trajectories if with_faults or stored.fault is None}

    def absorb(self, other: "Run") -> None:
        """Append the missing trajectories of another run with the same identities. Partial lines are skipped."""
        recorded = other.record.get(KEY)
        with self.open_for_append(cast(Identities, recorded) if isinstance(recorded, dict) else None) as file:
            own_keys = {key for key, _, _ in _spans(self.trajectories_path)}
            missing_spans = [span for span in _spans(other.trajectories_path) if span[0] not in own_keys]
            file.writelines(_lines_at(other.trajectories_path, missing_spans))

    def sent(self) -> RunRows:
        """The rows and identities, to send to another process."""
        identities = cast(Identities, self.record.get(KEY, {}))
        return RunRows(identities, self.trajectories_path.read_text(encoding="utf-8"))

    def append_rows(self, file: IO[str], rows: RunRows) -> None:
        """Append the rows of another process. Raises `SettingError` if other parts made them."""
        self.bind(rows.identities)
        file.write(rows.lines)
        file.flush()

    def arrange(self, question_ids: Iterable[str]) -> None:
        """Sort the trajectories, which are stored as they end, by question in this order, then by seed. Other questions
        go last."""
        position = {ident: number for number, ident in enumerate(question_ids)}
        with lock_folder(self.folder):
            drop_partial_line(self.trajectories_path)
            spans = _spans(self.trajectories_path)
            ordered_spans = sorted(spans, key=lambda span: (position.get(span[0][0], len(position)), span[0][1]))
            if ordered_spans != spans:
                with replacing(self.folder, self.files), atomic_write(self.trajectories_path) as file:
                    file.writelines(_lines_at(self.trajectories_path, ordered_spans))

    def drop_faults(self) -> int:
        """Remove the trajectories with a fault, so that they are repeated. Returns their number."""
        with lock_folder(self.folder):
            path = self.trajectories_path
            drop_partial_line(path)
            faults = {(stored.question.id, stored.seed) for stored in self.trajectories() if stored.fault is not None}
            if faults:
                remove_digests(self.folder)
                remaining_spans = [span for span in _spans(path) if span[0] not in faults]
                with atomic_write(path) as file:
                    file.writelines(_lines_at(path, remaining_spans))
            return len(faults)

    @contextmanager
    def open_for_append(
        self, identities: Identities | None = None, order: Iterable[str] | None = None, repeat_faults: bool = False
    ) -> Iterator[IO[str]]:
        """Lock the folder and open the trajectories file for appending; drops a partial last line.

        Checks and stores `identities` (`bind`), then drops the trajectories with a fault if `repeat_faults`. At the end
        of the block, unless it raises, sorts the run by `order`, if any, and closes it.
        """
        with lock_folder(self.folder):
            if identities is not None:
                self.bind(identities)
            if self.is_closed:
                check_whole_rows(self.trajectories_path, Trajectory.from_json)  # before anything is changed
            if repeat_faults:
                self.drop_faults()
            drop_partial_line(self.trajectories_path)
            remove_digests(self.folder)
            with self.trajectories_path.open("a", encoding="utf-8") as file:
                yield file
            if order is not None:
                self.arrange(order)
            write_digests(self.folder, self.files)

    @staticmethod
    def append(file: IO[str], trajectory: Trajectory) -> None:
        file.write(json_line(trajectory.to_json()))
        file.flush()


def whole_lines(path: Path) -> Iterator[tuple[str, int, int, JsonObject]]:
    """Place, start, end and object of every whole line of a JSONL file, which may be missing. Skips what follows the
    last newline, since a kill may have cut it."""
    end = 0
    with path.open("rb") if path.exists() else nullcontext(()) as lines:
        for number, line in enumerate(lines, start=1):
            start, end = end, end + len(line)
            if line.endswith(b"\n"):
                where = f"{path}, line {number}"
                yield where, start, end, parse_line(line, where)


def _spans(path: Path) -> list[tuple[RowKey, int, int]]:
    """Key, start and end of every whole line of a trajectories file."""
    spans: list[tuple[RowKey, int, int]] = []
    for where, start, end, row in whole_lines(path):
        with parsing(where, "delete that line"):
            question = cast(JsonObject, row["question"])
            spans.append(((str(question["id"]), int(cast(int, row["seed"]))), start, end))
    return spans


def _lines_at(path: Path, spans: Iterable[tuple[RowKey, int, int]]) -> Iterator[str]:
    with path.open("rb") if path.exists() else nullcontext() as file:
        for _, start, end in spans:
            assert file is not None
            file.seek(start)
            yield file.read(end - start).decode()


def _explain_no_run(folder: Path) -> str:
    """Explain why a folder is not a run, and where runs may be."""
    if not folder.exists():
        return "there is no such folder; make a run with `coseek run`"
    if not (folder / "recipe.yaml").exists():
        return "it has no run.yaml; make one with `coseek run`"
    for name in ("table", "pairs", "rl/rollouts"):
        if runs := [str(path.parent) for path in sorted((folder / name).glob("*/run.yaml"))]:
            examples = " or ".join(runs[:2])
            return f"it is a training run, whose runs are in {folder / name}; name one of them, such as {examples}"
    return (
        "it is a training run, and holds no runs that could be scored; the training of an agent writes them into "
        "`table` at its end, so resume it with --resume"
    )


def check_whole_rows(path: Path, parse: Callable[[JsonObject], object]) -> None:
    """Parse the whole lines of a JSONL file, which may be missing. Raises `DataError`."""
    check_link(path)
    for where, _, _, row in whole_lines(path):
        parse_row(row, parse, where)


def drop_partial_line(path: Path) -> None:
    """Truncate a JSONL file to its last whole line. A last line that only lacks its newline is completed."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        start, last_line = _last_line(file)
        if last_line.strip(b"\0") and not last_line.startswith(b"{"):
            raise DataError(f"{path}: its last line is not the beginning of a row; mend or delete that line")
        if is_json(last_line):
            file.seek(0, 2)
            file.write(b"\n")
        elif last_line:
            file.truncate(start)


def _ends_in_half_a_row(path: Path) -> bool:
    with path.open("rb") as file:
        _, last_line = _last_line(file)
    return bool(last_line) and not is_json(last_line)


def _last_line(file: BinaryIO) -> tuple[int, bytes]:
    """Start and contents of the text after the last newline of a file."""
    start = file.seek(0, 2)
    tail = b""
    while start and b"\n" not in tail:  # from the end: the file may be larger than memory
        size = min(start, 2**20)
        start = file.seek(start - size)
        tail = file.read(size) + tail
    last_line = tail[tail.rfind(b"\n") + 1 :]
    return start + len(tail) - len(last_line), last_line


def provenance() -> JsonObject:
    """Time, library versions, and the commit of the checkout that this package runs from."""
    versions: JsonObject = {"python": platform.python_version(), **dict.fromkeys(RECORDED)}
    for library in RECORDED:
        with suppress(PackageNotFoundError):
            versions[library] = version(library)
    # The package may be in an environment inside the user's own repository, which does not track it.
    is_checkout = _git("ls-files", "--error-unmatch", "--", Path(__file__).name) is not None
    commit = _git("rev-parse", "HEAD") if is_checkout else None
    return {"created": datetime.now(UTC).isoformat(timespec="seconds"), "versions": versions, "commit": commit}


def _git(*words: str) -> str | None:
    """The output of git in the folder of this file; `None` if git fails or is missing."""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=5).strip()
    return None
