"""Kill campaign: every command that takes time is killed, stopped, starved and run twice, and ends as undisturbed.

    python -m bench.kills --kills 300 [--commands run,index-dense] [--faults SIGKILL,twins] [--seed 0]

A trial disturbs one command, starts it a second time as its messages say (`--resume`, or the same words), and compares
every file with those of an undisturbed run, without times. Half of the signals come at a random moment, half before a
random change of the file system. First, each command is run undisturbed twice, which must be the same. A full disk is a
small file system in memory (without root a limit on the size of files); a read-only folder is one without the right to
write, for a process without root's powers; a jumping clock is `time.time` and the dates of files.

Counted: trials, those that were disturbed before their end, second starts that failed, differences, what stays behind
(hidden files, parts, locks, temporary files, processes), tracebacks, messages without a way out. Exits 1 at any.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from bench.kill_commands import COMMANDS, Command, stock
from bench.kill_faults import FAULTS, SERVED, SERVERS, WAYS_OUT, Fault, Trial, Whole, mounted, served
from bench.kill_place import Done, Place
from bench.processes import FORKS

COUNTED = ("trials", "disturbed", "not resumed", "different", "left behind", "tracebacks", "no way out")
PRELOADED = ["coseek.pipelines.agent", "coseek.pipelines.encoder", "transformers.models.bert", "coseek.cli.main",
             "coseek.cli.commands.label", "coseek.cli.commands.score", "coseek.cli.commands.train"]  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What a trial came to; every text is a fault that the campaign counts."""

    command: str
    fault: str
    disturbed: bool
    not_resumed: str = ""
    different: str = ""
    left_behind: str = ""
    tracebacks: str = ""
    no_way_out: str = ""

    @property
    def faults(self) -> dict[str, str]:
        named = {"not resumed": self.not_resumed, "different": self.different, "left behind": self.left_behind}
        named |= {"tracebacks": self.tracebacks, "no way out": self.no_way_out}
        return {name: text for name, text in named.items() if text}


def words_of(command: Command, words: Sequence[str]) -> list[str]:
    return [word.replace("URL", SERVERS[-1].url) if "URL" in word else word for word in words]


def undisturbed(command: Command, place: Place, times: int) -> Whole:
    """Run a command twice; the second time says how long it takes, now that its modules are warm. Once is enough for
    few trials: each of them is a second time."""
    outcomes = []
    for _ in range(times):
        prepare(command, place)
        size = place.size()
        done = place.run(words_of(command, command.first))
        if done.code or place.left_behind():
            raise RuntimeError(f"{command.name} failed: {done.code}, {place.left_behind()}, {done.said[-2000:]}")
        outcomes.append(place.outcome())
    if names := differing(outcomes[0], outcomes[-1]):
        raise RuntimeError(f"{command.name} is not the same when it is run twice: {', '.join(names[:8])}")
    return Whole(done.seconds, done.writes, max(0, place.size() - size), outcomes[0])


def prepare(command: Command, place: Place) -> None:
    place.fresh()
    if command.before and (done := place.run(command.before.split())).code:
        raise RuntimeError(f"before {command.name}: {done.said[-2000:]}")


def differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def tried(command: Command, fault: str, act: Fault, place: Place, whole: Whole, rng: random.Random) -> Verdict:
    """One trial: disturb, start again, compare."""
    prepare(command, place)
    first, second = words_of(command, command.first), words_of(command, command.second)
    ends = act(Trial(command, place, whole, rng, first, second))
    again = place.run(words_of(command, command.second))
    names = differing(place.outcome(), whole.outcome)
    refused = again.code != 0 and (names or again.code != 2)  # it was complete, and is not overwritten
    orphans = sum(done.orphans for done in (*ends, again))
    left = [*place.left_behind(), *([f"{orphans} processes"] if orphans else [])]
    return Verdict(
        command.name,
        fault,
        any(done.code for done in ends),
        f"exit {again.code}: {again.said[-300:]}" if refused else "",
        ", ".join(names[:6]),
        ", ".join(left[:6]),
        next((done.said[-1500:] for done in (*ends, again) if done.traceback), ""),
        next((why for done in ends if (why := without_way_out(done))), ""),
    )


def without_way_out(done: Done) -> str:
    """Why the end of a disturbed command is no message with a way out; empty if it is one."""
    if done.code in (0, -9):
        return ""
    return (
        ""
        if WAYS_OUT.search(done.said) or WAYS_OUT.search(done.printed)
        else f"exit {done.code}: {done.said[-300:].strip() or 'nothing said'}"
    )


def campaign(
    commands: Sequence[Command], faults: Iterable[str], kills: int, seed: int, base: Path, undisturbed_runs: int = 2
) -> list[Verdict]:
    """Spread the trials evenly over commands and their faults; print a line for each that is not fine."""
    FORKS.set_forkserver_preload(PRELOADED)
    place, found = Place(base, base / "pantry"), []
    stock(place, commands)
    wanted = set(faults)
    with mounted(place), served(place.pantry / "bm25") if any(c.asks_a_server for c in commands) else nullcontext():
        for number, command in enumerate(commands):
            rng = random.Random(f"{seed}/{command.name}")
            try:
                whole = undisturbed(command, place, undisturbed_runs)
            except RuntimeError as error:
                if "is not installed" in str(error):
                    print(f"{command.name}: left out, since a library is not installed", flush=True)
                    continue
                found.append(Verdict(command.name, "undisturbed", False, different=str(error)))
                print(f"{command.name}: {error}", flush=True)
                continue
            own = [*FAULTS.items(), *(SERVED.items() if command.asks_a_server else ())]
            own = [(name, act) for name, act in own if name in wanted]
            rng.shuffle(own)
            share = kills * (number + 1) // len(commands) - kills * number // len(commands)
            drawn = [own[n % len(own)] for n in range(share if own else 0)]
            rows = [tried(command, name, act, place, whole, rng) for name, act in drawn]
            found += rows
            bad = sum(bool(row.faults) for row in rows)
            print(f"{command.name}: {whole.seconds:.1f} s, {whole.writes} writes, {len(whole.outcome)} files; "
                  f"{len(rows)} trials, {bad} bad", flush=True)  # fmt: skip
            for row in rows:
                for name, text in row.faults.items():
                    print(f"  {row.fault}, {name}: {text}", flush=True)
    return found


def table(rows: Sequence[Verdict]) -> str:
    """Counts by command, by fault, and of all."""
    lines = ["| | " + " | ".join(COUNTED) + " |", "|---|" + "---|" * len(COUNTED)]
    names = [*dict.fromkeys(row.command for row in rows), *dict.fromkeys(row.fault for row in rows), "all"]
    for name in names:
        some = [row for row in rows if name in (row.command, row.fault, "all")]
        counts = [len(some), sum(row.disturbed for row in some)]
        counts += [sum(column in row.faults for row in some) for column in COUNTED[2:]]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def chosen(names: str) -> list[Command]:
    """The commands with these names, or whose names begin so."""
    found = [one for one in COMMANDS if not names or one.name.startswith(tuple(names.split(",")))]
    if not found:
        raise SystemExit(f"no command {names!r}; known: {', '.join(one.name for one in COMMANDS)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="trials, over all commands")
    parser.add_argument("--commands", default="", help="comma-separated names, or their beginnings")
    parser.add_argument("--faults", default=",".join((*FAULTS, *SERVED)), help="comma-separated")
    parser.add_argument("--seed", type=int, default=0, help="chooses faults and moments")
    given = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        rows = campaign(chosen(given.commands), given.faults.split(","), given.kills, given.seed, base)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(table(rows))
    return int(any(row.faults for row in rows))


if __name__ == "__main__":
    sys.exit(main())
