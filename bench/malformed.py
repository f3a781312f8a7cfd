"""Malformed inputs: whether every command refuses broken files with one sentence and exit 2, and changes nothing.

    python -m bench.malformed --inputs 2000          some five minutes on one core

Makes a small real file of every kind (`malformed_home`), breaks one of them in one way (`malformed_changes`), and runs
a command that reads it in a forked process with limits of time and memory. Before, the same command is run twice on the
whole files: an input is *harmless* if the command ends with the same output and the same files as then, or puts a whole
file in its place. *As another* one is a well-formed file with other content, which no reader can tell from an intended
one. *Reported* are inputs that `audit` calls not sound, and documents and logs that an import reports as unread. Exits
with 1 below the bar: .995 of the others refused with one sentence and exit 2, no traceback, no hang, no file of the
user changed by a refused command. Ctrl-C prints the table of the inputs until then.
"""

import argparse
import contextlib
import hashlib
import importlib
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.malformed_changes import BROKEN, OTHER, TYPED, break_file
from bench.malformed_home import KINDS, Kind, Words, files_of, make_home

import coseek
from coseek.cli.main import QUIET
from coseek.cli.main import main as coseek_main
from coseek.core.errors import MissingExtra
from coseek.core.files import JsonObject, write_json
from coseek.data.corpus_file import STAMP
from coseek.measure.table import Table

BAR = 0.995
LIMIT_S = 60.0
"""Seconds of a command that takes less than a tenth of it on whole files."""
MEMORY_BYTES = 6 << 30
"""Address space that a command may take beyond that of the process it is forked from."""
TRACEBACK = 70
"""Exit code of a command that an error of the program ended."""
REFUSED, REPORTED, HARMLESS, ANOTHER = "refused", "reported", "harmless", "as another"
TAKEN, ODD, TRACED, HUNG, CHANGED = "wrongly taken", "other exit", "traceback", "hang", "files changed"
OUTCOMES = (REFUSED, REPORTED, HARMLESS, ANOTHER, TAKEN, ODD, TRACED, HUNG, CHANGED)
BAD = (TAKEN, ODD, TRACED, HUNG, CHANGED)
_SPLITS = ("questions.train.jsonl", "questions.dev.jsonl", "questions.test.jsonl")
OPTIONAL = ("generation_config.json", "README.md", "sentence_bert_config.json", "verdict.jsonl", *_SPLITS)
"""Files without which a folder is whole."""
_NOTE = re.compile(r"…$|^\d{4}-\d\d-\d\d ")
"""A line about progress."""
_OWN = (".lock", STAMP)
"""Files that coseek keeps for itself: locks, and the stamp of a corpus, which is renewed when its time changes."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command left behind."""

    code: int | None
    """`None` for a command that was stopped after its time."""
    out: str
    err: str
    marks: Mapping[str, str]
    """Every line of stdout and every file written, by place."""

    @property
    def is_sentence(self) -> bool:
        """Whether the command refused with a sentence for each mistake, and nothing else but notes of its progress."""
        lines = self.err.splitlines()
        said = [line for line in lines if line.startswith("coseek: ")]
        notes = {*lines} - {*said}
        return self.code == 2 and bool(said) and not self.out and all(map(_NOTE.search, notes))


@dataclass
class Figures:
    """Counts by kind and outcome."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)
    """What was taken as another input."""
    unfit: int = 0
    """Inputs left out, since their command fails on whole files."""
    several: int = 0
    """Inputs refused with more than one sentence, one for each mistake."""

    def of(self, outcome: str) -> int:
        return sum(count for (_, one), count in self.counts.items() if one == outcome)

    @property
    def judged(self) -> int:
        """Inputs that had to be refused."""
        return self.of(REFUSED) + sum(map(self.of, BAD))

    @property
    def share(self) -> float:
        return self.of(REFUSED) / max(1, self.judged)

    @property
    def good(self) -> bool:
        return self.share >= BAR and not self.unfit and not any(map(self.of, (TRACED, HUNG, CHANGED)))

    def table(self) -> Table:
        names = dict.fromkeys(kind for kind, _ in self.counts)
        rows = {kind: [self.counts[kind, outcome] for outcome in OUTCOMES] for kind in names}
        rows["all"] = [self.of(outcome) for outcome in OUTCOMES]
        shown = tuple((kind, str(sum(counts)), *map(str, counts)) for kind, counts in rows.items())
        left_out = f"{self.unfit} inputs left out, whose commands fail on whole files." if self.unfit else ""
        note = f"{left_out} {self.several} of the refused have several sentences, one for each mistake."
        return Table(("kind", "inputs", *OUTCOMES), shown, (note,))


@dataclass
class Place:
    """A copy of the user's folder, in which inputs are broken and mended."""

    whole: Path
    home: Path
    out: Path
    usual: dict[Words, tuple[Mapping[str, str], int, float]] = field(default_factory=dict)
    """Command → what it always leaves behind, its number of lines, and its seconds."""
    unfit: set[Words] = field(default_factory=set)
    """Commands that fail on whole files, and say nothing about broken ones."""
    old: dict[str, str] = field(default_factory=dict)
    """The snapshot of `whole`."""

    def mend(self) -> None:
        """Bring everything back to what it was."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        self.old = self.old or snapshot(self.whole)
        for stamp in self.whole.rglob(STAMP):  # no part of a snapshot
            remove(self.home / stamp.relative_to(self.whole))
            shutil.copy2(stamp, self.home / stamp.relative_to(self.whole))
        old, now = self.old, snapshot(self.home)
        for name in now.keys() - old.keys():
            remove(self.home / name)
        for name, mark in old.items():
            if now.get(name) != mark:
                remove(self.home / name)
                (self.home / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self.whole / name, self.home / name, follow_symlinks=False)

    def run(self, words: Words) -> Ended:
        """One command in the user's folder, with the limit that it usually keeps."""
        known = self.usual.get(words)
        return run_forked(words, self.home, self.out, max(LIMIT_S, 10 * known[2]) if known else 10 * LIMIT_S)

    def learn(self, words: Words) -> None:
        """Run a command twice on whole files, to know what it leaves behind."""
        if words in self.usual:
            return
        began = time.monotonic()
        first = self.run(words)
        seconds = time.monotonic() - began
        self.mend()
        time.sleep(max(0.0, 1.1 - (time.monotonic() - began)))  # records name the second in which they were written
        second = self.run(words)
        self.mend()
        if first.code != 0:
            print(f"coseek {' '.join(words)} ends with {first.code} on whole files: {first.err[-900:]}", flush=True)
            self.unfit.add(words)
        same = {place: mark for place, mark in first.marks.items() if second.marks.get(place) == mark}
        self.usual[words] = same, len(first.marks), seconds

    def is_usual(self, words: Words, ended: Ended) -> bool:
        """Whether a command left behind what it leaves on whole files."""
        same, count, _ = self.usual[words]
        return len(ended.marks) == count and all(ended.marks.get(place) == mark for place, mark in same.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="comma-separated: only these")
    parser.add_argument("--only", type=int, help="one input of them, with all that its command said")
    parser.add_argument("--others", action="store_true", help="name what was taken as another input, too")
    parser.add_argument("--out", type=Path, help="a .json file for the figures")
    args = parser.parse_args()
    chosen = [kind for kind in KINDS if not args.kinds or kind.name in args.kinds.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch).resolve(), chosen, args.inputs, args.seed, args.only)
    print(figures.table().markdown())
    for line in figures.others if args.others else ():
        print(line)
    print(f"refused: {figures.share:.4f} of {figures.judged} malformed inputs")
    if args.out is not None:
        counts: JsonObject = {}
        for (kind, outcome), count in sorted(figures.counts.items()):
            counts[f"{kind}: {outcome}"] = count
        write_json(args.out, {"share": figures.share, "judged": figures.judged, "good": figures.good, "counts": counts})
    return 0 if figures.good else 1


def measure(base: Path, kinds: Sequence[Kind], inputs: int, seed: int, only: int | None = None) -> Figures:
    """Break `inputs` files, the kinds in turn, and run a command on each."""
    settle(base)
    if in_fork(lambda: make_home(base / "whole"), base / "made") != 0:
        raise RuntimeError((base / "made" / "err").read_text(encoding="utf-8"))
    shutil.copytree(base / "whole", base / "home", symlinks=True)
    place = Place(base / "whole", base / "home", base / "out")
    place.mend()
    figures = Figures()
    with contextlib.suppress(KeyboardInterrupt):  # the table is that of the inputs until then
        for number in range(inputs) if only is None else [only]:
            kind = kinds[number % len(kinds)]
            one_input(figures, kind, place, number, random.Random(f"{seed}/{number}"), only is not None)
            place.mend()
    return figures


def one_input(figures: Figures, kind: Kind, place: Place, number: int, rng: random.Random, whole: bool) -> None:
    """Break one file and run a command that reads it. With `whole` all that it said is printed."""
    words, said, broken = attempt_of(kind, place, rng)
    if words in place.unfit:
        figures.unfit += 1
        return
    before = snapshot(place.home)
    ended = place.run(words)
    outcome = judged(kind, words, ended, before, snapshot(place.home), broken, place)
    figures.counts[kind.name, outcome] += 1
    figures.several += outcome == REFUSED and ended.err.count("\ncoseek: ") > 0
    line = f"{number}. {outcome}: {said}; coseek {' '.join(words)[:160]}"
    if outcome in BAD or whole:
        print(f"{line}\n{told(ended, whole)}", flush=True)
    elif outcome == ANOTHER:
        figures.others.append(line)


def attempt_of(kind: Kind, place: Place, rng: random.Random) -> tuple[Words, str, bool]:
    """Break one input of a kind: the command that reads it, what was done, and whether no reader may take it."""
    file = rng.choice(list(files_of(kind, place.home)))
    words = rng.choice(readers_of(kind, file.relative_to(place.home) if file.is_absolute() else file))
    if kind.name == "typed values":
        value = rng.choice(TYPED).encode("utf-8", "replace").decode().replace("\x00", "")
        return tuple(word.replace("VALUE", value) for word in words), f"typed {value[:20]!r}", OTHER
    place.learn(words)
    real = Path(os.path.realpath(file))
    name = file.relative_to(place.home)
    said, broken = break_file(real, rng)
    # A hub lists no empty folders: a file in whose place there is one is not in the repository.
    if (said == "gone" or (said == "folder_there" and name.parts[0] == "hub")) and file.name in OPTIONAL:
        broken = OTHER
    return words, f"{name}: {said}", broken


def readers_of(kind: Kind, file: Path) -> Sequence[Words]:
    """The commands that name a file, its folder or its namesake; all of the kind where none does."""
    names = {*file.parts, file.stem} - {"hub"}
    return [words for words in kind.commands if any(Path(word).stem in names for word in words)] or kind.commands


def judged(
    kind: Kind,
    words: Words,
    ended: Ended,
    before: Mapping[str, str],
    after: Mapping[str, str],
    broken: bool,
    place: Place,
) -> str:
    """The outcome of one input."""
    if ended.code is None:
        return HUNG
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    allowed = kind.writes if ended.code == 0 else ()
    if ended.code == 0 and broken is OTHER:
        changed &= before.keys()  # settings that name another output
    if any(not name.startswith(allowed or "\0") for name in changed):
        return CHANGED
    if ended.code == TRACEBACK or ended.code < 0:
        return TRACED
    if ended.is_sentence:
        return REFUSED
    if ended.code == 1 and words[0] == "audit" and "not sound" in ended.out:
        return REPORTED
    if ended.code != 0:
        return ODD
    if (words in place.usual and place.is_usual(words, ended)) or after == place.old:
        return HARMLESS
    if words[:3] in (("data", "import", "documents"), ("data", "import", "traces")):
        return REPORTED
    return TAKEN if broken is BROKEN else ANOTHER


def told(ended: Ended, whole: bool) -> str:
    """The end of what a command said; all of it for one input."""
    lines = [f"    {line[:300]}" for line in (ended.out + ended.err).splitlines()]
    return "\n".join(lines if whole else lines[-4:])


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and link below a folder with the digest of its content, and empty folders."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {os.readlink(path)}"
        elif path.is_file():
            if not name.endswith(_OWN):
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if os.access(path, os.R_OK) else "closed"
        elif not any(path.iterdir()):
            found[name] = "empty folder"
    return found


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, which may be missing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def settle(base: Path) -> None:
    """Make this process ready to be forked: everything imported, nothing fetched, one thread, caches of its own."""
    os.environ |= QUIET | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "XDG_CACHE_HOME": str(base / "cache"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    warnings.simplefilter("ignore")
    for module in pkgutil.walk_packages(coseek.__path__, "coseek."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError, MissingExtra):
                importlib.import_module(module.name)
    import torch

    torch.set_num_threads(1)


def run_forked(words: Words, home: Path, out: Path, limit_s: float) -> Ended:
    """`coseek WORDS` in a forked process whose working folder is `home`, killed after `limit_s` seconds."""
    os.chdir(home)
    terminal = out.with_name("terminal")
    code = in_fork(lambda: coseek_main(list(words)), terminal, limit_s)
    said, complained = (terminal / name for name in ("out", "err"))
    text = said.read_text(encoding="utf-8", errors="replace")
    marks = {f"line {number}": line for number, line in enumerate(text.splitlines())}
    marks |= {f"file {name}": mark for name, mark in snapshot(out).items()}
    return Ended(code, text, complained.read_text(encoding="utf-8", errors="replace"), marks)


def in_fork(do: Callable[[], int | None], terminal: Path, limit_s: float = 3600.0) -> int | None:
    """Call a function in a child; its exit code, minus its signal, or `None` where it was stopped after its time. What
    it prints goes to files in `terminal`."""
    terminal.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        _be_child(do, terminal)
    until = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.003)


def _be_child(do: Callable[[], int | None], terminal: Path) -> None:
    code = TRACEBACK
    try:
        with _redirected(terminal):
            try:
                code = do() or 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else TRACEBACK
            except BaseException:  # noqa: BLE001 (a traceback is what is counted)
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(code)


@contextlib.contextmanager
def _redirected(terminal: Path) -> Iterator[None]:
    pages = sum(int(line.split()[0]) for line in Path("/proc/self/statm").read_text().splitlines())
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES,) * 2)
    for number, name in ((0, os.devnull), (1, "out"), (2, "err")):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(terminal / name if number else name, flags), number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    yield


if __name__ == "__main__":
    sys.exit(main())
