"""Mutation: the share of small changes to the arithmetic that the quick tests notice, by module. Exit 1 below the bar.

    make mutants                  run the mutants that are new or changed, then this report
    python -m bench.mutation      the report of the last run alone

mutmut (extra `mutation`) makes the mutants; `tool.mutmut` in pyproject.toml lists the modules. The survivors are
written with their diffs to `mutants/survivors.txt`. Among them are equivalent mutants, which no test can notice.
"""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

BAR = 0.92
"""Smallest share of noticed mutants over all modules."""
ALIVE = ("survived", "no tests", "suspicious")
"""Statuses of mutants that no test noticed."""
OPEN = ("not checked", "check was interrupted by user")
SKIPPED = "skipped"
SURVIVORS = Path("mutants/survivors.txt")
MUTMUT = str(Path(sys.executable).with_name("mutmut"))
_LINE = re.compile(r"\s+([\w.]+)\.(x[_ǁ]\w+__mutmut_\d+): ([a-z ]+)")


@dataclass(frozen=True)
class Mutant:
    """One mutant: its module, its name in that module, and mutmut's status."""

    module: str
    name: str
    status: str


@dataclass(frozen=True)
class Score:
    """Noticed mutants of a module, of those that were run."""

    killed: int
    run: int

    @property
    def share(self) -> float:
        return self.killed / self.run if self.run else 1.0


def mutants_in(listing: str) -> list[Mutant]:
    """Read the output of `mutmut results --all True`."""
    found = []
    for line in listing.splitlines():
        if line.strip():
            read = _LINE.fullmatch(line)
            if read is None:
                raise SystemExit(f"no line of a mutant: {line!r}")
            found.append(Mutant(read[1], read[2], read[3]))
    return found


def scores(mutants: Iterable[Mutant]) -> dict[str, Score]:
    """The score of every module."""
    run: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    for one in mutants:
        if one.status not in (*OPEN, SKIPPED):
            run[one.module] += 1
            alive[one.module] += one.status in ALIVE
    return {module: Score(count - alive[module], count) for module, count in run.items()}


def whole(by_module: Mapping[str, Score]) -> Score:
    """The score of all modules together."""
    return Score(sum(one.killed for one in by_module.values()), sum(one.run for one in by_module.values()))


def diff(mutant: Mutant) -> str:
    """What the mutant changed: the removed and added lines."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    path = Path("src", *mutant.module.split(".")).with_suffix(".py")
    lines = str(get_diff_for_mutant(f"{mutant.module}.{mutant.name}", path=path)).splitlines()
    return "\n".join(line for line in lines if re.match(r"[-+](?![-+])", line))


def main() -> int:
    listing = subprocess.run([MUTMUT, "results", "--all", "True"], check=True, capture_output=True, text=True).stdout
    mutants = mutants_in(listing)
    by_module = scores(mutants)
    for module, score in sorted(by_module.items(), key=lambda pair: pair[1].share):
        print(f"{score.share:5.2f}  {score.killed:4} of {score.run:4}  {module}")
    total, alive = whole(by_module), [one for one in mutants if one.status in ALIVE]
    SURVIVORS.write_text("\n".join(f"{one.module}.{one.name}: {one.status}\n{diff(one)}\n" for one in alive), "utf-8")
    print(f"{total.share:5.3f} {total.killed:4} of {total.run:4}  all modules; the bar is {BAR:.2f}")
    print(f"{len(alive)} survivors in {SURVIVORS}")
    if left := sum(one.status in OPEN for one in mutants):
        print(f"{left} mutants were not run; go on with `make mutants`")
    return 0 if total.run and not left and total.share >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
