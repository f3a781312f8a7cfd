"""Vulnerabilities: the pinned libraries against a stored list of advisories, without a network.

    make vulnerabilities        installs the list (safety-db) into the environment of the tools, and runs this

The list is a package of PyPI, and ends with the day that is printed: what became known later it does not hold. Exit 1
when a pin is named.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import TypedDict

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


class Advisory(TypedDict):
    """One entry of the list."""

    id: str
    cve: str | None
    advisory: str
    specs: list[str]


def named(pins: Mapping[str, str], known: Mapping[str, Sequence[Advisory]]) -> Iterator[tuple[str, Advisory]]:
    """The pins that an advisory names, with it."""
    for library, version in sorted(pins.items()):
        for one in known.get(library, ()):
            if any(SpecifierSet(spec).contains(version, prereleases=True) for spec in one["specs"]):
                yield f"{library} {version}", one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pins", type=Path, nargs="+", help="requirements.lock and others of the kind")
    args = parser.parse_args()
    # Not imported: the package looks for its files in the folder that it was built in.
    tree = json.loads(str(distribution("safety-db").read_text("../safety_db/insecure_full.json")))
    until = datetime.fromtimestamp(tree.pop("$meta")["timestamp"], UTC)
    known: dict[str, list[Advisory]] = {}
    for library, advisories in tree.items():
        known.setdefault(canonicalize_name(library), []).extend(advisories)
    text = "\n".join(path.read_text(encoding="utf-8") for path in args.pins)
    pins = {str(canonicalize_name(library)): version for library, version in PIN.findall(text)}
    found = list(named(pins, known))
    for pin, one in found:
        print(f"{pin}: {one['cve'] or one['id']}: {one['advisory'][:200]}")
    count = sum(map(len, known.values()))
    print(
        f"{len(pins)} pins, {len(found)} named by {count:,} advisories on {len(known):,} libraries to {until:%Y-%m-%d}"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
