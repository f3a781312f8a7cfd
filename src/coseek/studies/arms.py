"""The commands of studies: each runs once for all studies that need the same, in a folder named after its content."""

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

from coseek.core.errors import RunError, SettingError
from coseek.core.files import make_folder, read_json_object, write_json
from coseek.core.fingerprint import digest_of
from coseek.core.lock import lock_beside
from coseek.studies.study import ARM, NAME, Commands, as_words

RESUMED = ("train agent", "train retriever", "train together", "train generator", "run", "label")
"""Commands that take `--resume`."""
LINES = 12
"""Last lines of a failed command's log that its error shows."""
_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class StudyStep:
    """One command of a study under one seed, with every name in it resolved."""

    name: str
    words: tuple[str, ...]
    folder: Path
    needs: tuple["StudyStep", ...]
    seed: int | None
    """Of its command, or of one that it needs; `None` where no seed counts."""

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def record(self) -> Path:
        """Written once the command has ended well: `{"command", "seconds"}`."""
        return self.folder.with_name(self.folder.name + ".json")

    @property
    def is_done(self) -> bool:
        return self.record.exists()

    @property
    def seconds(self) -> float:
        """What its last attempt took."""
        return float(str(read_json_object(self.record)["seconds"])) if self.is_done else 0.0

    def line(self) -> str:
        """As it is typed."""
        return shlex.join(("coseek", *self.words))


@dataclass
class StudyPlan:
    """The steps of a study on its road, in folders below `root`."""

    commands: Commands
    root: Path
    readable: bool = False
    """Name folders after arms, not after content: for commands that are written down and not run."""
    _steps: dict[tuple[str, int], StudyStep] = field(default_factory=dict, init=False)

    def step(self, name: str, seed: int, around: tuple[str, ...] = ()) -> StudyStep:
        """The step that makes `name`. Raises `SettingError` where commands need each other in a circle."""
        if name in around:
            raise SettingError(f"these need each other: {', '.join((*around, name))}")
        if (name, seed) not in self._steps:
            self._steps[name, seed] = self._make(name, seed, around)
        return self._steps[name, seed]

    def _make(self, name: str, seed: int, around: tuple[str, ...]) -> StudyStep:
        command = self.commands.of(name)
        if "{out}" not in command:
            command += " --out {out}"
        needs = {
            other: self.step(self.commands.key(other), seed, (*around, name)) for other in self.commands.needed(command)
        }
        folders = {other: shlex.quote(str(step.folder)) for other, step in needs.items()} | {"seed": str(seed)}
        resolved = NAME.sub(lambda match: folders.get(match[1], match[0]), command)
        needed_seeds = [step.seed for step in needs.values() if step.seed is not None]
        used_seed = seed if "{seed}" in command or needed_seeds else None
        folder_name = self._readable_name(name, used_seed) if self.readable else _content_name(command, resolved)
        folder = self.root / folder_name
        words = as_words(resolved.replace("{out}", shlex.quote(str(folder))))
        return StudyStep(name.removeprefix(ARM), tuple(words), folder, tuple(needs.values()), used_seed)

    def _readable_name(self, name: str, seed: int | None) -> str:
        """The name as a path. That of an arm ends with `-arm` if `make` has the same name."""
        words = slug(name.removeprefix(ARM))
        if name.startswith(ARM) and words in map(slug, self.commands.made()):
            words += "-arm"
        return words if seed is None else f"{words}-{seed}"

    def steps(self, names: Sequence[str], seeds: Sequence[int]) -> list[StudyStep]:
        """All steps that make these names under these seeds, each behind what it needs, once for each folder."""
        ordered: dict[Path, StudyStep] = {}

        def add(step: StudyStep) -> None:
            for need in step.needs:
                add(need)
            ordered.setdefault(step.folder, step)

        for seed in seeds:
            for name in names:
                add(self.step(name, seed))
        return list(ordered.values())


def _content_name(command: str, resolved: str) -> str:
    """The same for equal commands over equal needs."""
    head = [word for word in as_words(command)[:3] if word.isprintable() and "{" not in word and "=" not in word]
    return f"{slug(' '.join(head))}-{digest_of(' '.join(as_words(resolved)))[:10]}"


def slug(text: str) -> str:
    """A name as a path of lower-case ASCII words."""
    plain = text.lower().replace("λ", "lambda-").replace("=", "-")
    return _SLUG.sub("-", plain).strip("-") or "arm"


def run_steps(steps: Sequence[StudyStep], say: Callable[[str], None], jobs: int = 1) -> None:
    """Run the commands that have not ended well before, `jobs` at once, each behind what it needs. Raises `RunError`
    for one that fails, when those that have begun have ended."""
    waiting = {step.folder: step for step in steps if not step.is_done}
    order = TopologicalSorter(
        {folder: [need.folder for need in step.needs if need.folder in waiting] for folder, step in waiting.items()}
    )
    order.prepare()
    numbers = itertools.count(1)

    def run(step: StudyStep) -> None:
        say(f"{next(numbers)}/{len(waiting)} {step.name}: {step.line()}")
        make_folder(step.folder.parent)
        with lock_beside(step.record):  # the command locks its folder itself
            run_step(step, jobs)

    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[None], Path] = {}
        try:
            while order.is_active():
                running |= {pool.submit(run, waiting[folder]): folder for folder in order.get_ready()}
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    ended.result()
                    order.done(running.pop(ended))
        finally:  # after a failure or Ctrl-C, which the running commands get, too, no other begins
            pool.shutdown(cancel_futures=True)


def run_step(step: StudyStep, jobs: int = 1) -> None:
    """Run one command to its end; its output goes to its log. It has its share of the cores beside other `jobs`."""
    words = [*step.words]
    if step.folder.exists() and any(step.line().startswith(f"coseek {head} ") for head in RESUMED):
        words.append("--resume")
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    before = time.monotonic()
    with step.log.open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "coseek", *words]
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=threads | os.environ, check=False)
    if code := ended.returncode:
        lines = step.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
        raise RunError(f"`{step.line()}` ended with {code}; its log is {step.log}:\n" + "\n".join(lines))
    write_json(step.record, {"command": step.line(), "seconds": round(time.monotonic() - before, 1)})


def trainings(steps: Sequence[StudyStep]) -> Iterator[StudyStep]:
    """Those that train, whose dry run tells whether they fit."""
    yield from (step for step in steps if step.words[0] == "train" and step.words[1] in ("agent", "together"))
