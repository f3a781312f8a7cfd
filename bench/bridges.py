"""Where an agent loses the second passage of a question: did it name the bridge?

    python -m bench.bridges RUN [RUN …]     # run folders over questions with gold paths

A bridge is the name that one step of a gold path leads to and the next begins with. Counts those whose next passage is
missing although the passage before was found, how many of these a query names, and the runs of a wrong form.
"""

import argparse
from itertools import pairwise
from pathlib import Path

from coseek.core.errors import UserError
from coseek.data.gold_path import gold_path, plain_name
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.measure.table import Table

COLUMNS = ("run", "questions", "bridges lost", "named in a query", "wrong form")


def lost_bridges(run: Trajectory) -> list[str]:
    """The names of the bridges behind which the passage is missing, although the one before was found."""
    found = {hit.passage.id for search in run.searches for hit in search.hits}
    path = gold_path(run.question)
    return [
        plain_name(after.source)
        for before, after in pairwise(path)
        if before.target == after.source and before.passage in found and after.passage not in found
    ]


def named(run: Trajectory, name: str) -> bool:
    return any(name.casefold() in search.query.casefold() for search in run.searches)


def row_of(folder: Path) -> tuple[str, ...]:
    runs = list(Run(folder).trajectories())
    lost = [(run, name) for run in runs for name in lost_bridges(run)]
    counts = len(runs), len(lost), sum(named(*one) for one in lost), sum(not run.valid for run in runs)
    return (str(folder), *map(str, counts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    try:
        rows = tuple(row_of(folder) for folder in parser.parse_args().runs)
    except UserError as error:
        raise SystemExit(str(error)) from None
    print(Table(COLUMNS, rows).markdown())


if __name__ == "__main__":
    main()
