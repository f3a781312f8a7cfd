"""Licences of everything in a CycloneDX SBOM, as a Markdown table.

python -m bench.licences build/sbom.json > build/licences.md        after `make sbom`, which does both
"""

import argparse
import json
import sys
from pathlib import Path

UNKNOWN = "unknown"
_CLASSIFIER = "License :: OSI Approved :: "


def licences(component: dict[str, object]) -> str:
    """The licences of a component: an SPDX expression or identifiers where it has some, else its own words."""
    given = component.get("licenses")
    found: dict[str, None] = {}
    for row in given if isinstance(given, list) else []:
        named = row.get("license", {})
        if said := row.get("expression") or named.get("id") or named.get("name"):
            found[str(said).removeprefix(_CLASSIFIER).splitlines()[0][:80]] = None
    return " · ".join(found) or UNKNOWN


def table(sbom: dict[str, object]) -> list[str]:
    """The lines of the table, by name."""
    components = sbom.get("components")
    rows = [
        (str(one["name"]), str(one.get("version", "")), licences(one).replace("|", "\\|"))
        for one in (components if isinstance(components, list) else [])
    ]
    if not rows:
        raise SystemExit("the SBOM lists no component; is the environment empty?")
    head = ["| package | version | licence |", "|---|---|---|"]
    return head + [f"| {' | '.join(row)} |" for row in sorted(rows, key=lambda row: row[0].lower())]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sbom", type=Path)
    lines = table(json.loads(parser.parse_args().sbom.read_text(encoding="utf-8")))
    print("\n".join(lines))
    unknown = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.endswith(f" {UNKNOWN} |")]
    print(f"{len(lines) - 2} packages; licence unknown: {', '.join(unknown) or 'none'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
