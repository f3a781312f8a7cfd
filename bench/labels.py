"""Labels of a thousand trajectories, checked by a program that shares no code with the one that made them.

    python -m bench.labels [--runs 1000] [--size compact] [--ties code] [--exhaustive]

A laptop world, its BM25 index and the scripted agent with its deliberate faults (so that many turns have no positive);
`coseek label --method agentic-r --scorer oracle`; then tests/labels/checker.py reads the files and derives every rule
of Agentic-R anew. Ends with 1 when a rule is broken. Prints how many turns gave labels, and what that took.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.labels.checker import rows_of, violations

from coseek.cli.main import main as coseek
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="trajectories")
    parser.add_argument("--size", default="compact", help="of the world")
    parser.add_argument("--agent", default="faulty-expert")
    parser.add_argument("--ties", default="paper", choices=["paper", "code"])
    parser.add_argument("--exhaustive", action="store_true", help="continue the agent from every candidate")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = WorldSettings.model_validate({"size": given.size, "train": given.runs, "dev": 0, "test": 0})
        make_world(world).save(folder / "world")
        said = typed("index", folder / "world", "--out", folder / "index")
        who = ("--agent", given.agent, "--retriever", folder / "index")
        said = said or typed("run", folder / "world", *who, "--out", folder / "run")
        settings = (f"ties={given.ties}", f"exhaustive={str(given.exhaustive).lower()}")
        how = ("--method", "agentic-r", "--scorer", "oracle", *settings)
        said = said or typed("label", folder / "run", *how, "--out", folder / "labels")
        if said:
            return said
        wrong = violations(folder / "labels", folder / "run")
        trajectories, sets = (len(rows_of(folder / name)) for name in ("run/trajectories.jsonl", "labels/labels.jsonl"))
    print(f"{trajectories:,} trajectories, {sets:,} label sets, {len(wrong)} violations")
    for line in wrong[:20]:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def typed(*words: object) -> int:
    return coseek([str(word) for word in words])


if __name__ == "__main__":
    sys.exit(main())
