"""Check every invariant of stored runs, and name what is broken."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.agents.factory import decoder_of
from coseek.cli.terminal import AsJson, new_app, print_json, say
from coseek.core.files import JsonObject
from coseek.data.audit import Audit, audit_run
from coseek.data.run import Run

app = new_app()


@app.command()
def audit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that `coseek run` made.")],
    as_json: AsJson = False,
) -> int:
    """Check every invariant of stored runs: ids against text, authors, log-probabilities, budgets, endings.

    Ends with 1 when a run is not sound; the first violation is named with its file, line, question and segment.
    """
    audits = {run: audit_run(run, decoder_of(Run(run))) for run in runs}
    if as_json:
        print_json([as_object(run, found) for run, found in audits.items()])
    else:
        for run, found in audits.items():
            report(run, found)
    return 1 if any(found.violations for found in audits.values()) else 0


def report(run: Path, found: Audit) -> None:
    """Print one line for a sound run, else the first violations."""
    if not found.decoded:
        say(f"{run}: the agent's tokenizer is missing, so ids were not compared with text")
    if not found.violations:
        print(f"{run}: sound; {found.rows:,} trajectories checked")
        return
    print(f"{run}: not sound; {len(found.violations)} violations in {found.rows:,} trajectories, the first of them:")
    for violation in found.violations[:5]:
        print(f"  {violation}")


def as_object(run: Path, found: Audit) -> JsonObject:
    return {
        "run": str(run),
        "trajectories": found.rows,
        "decoded": found.decoded,
        "violations": [
            {
                "file": str(one.file),
                "line": one.line,
                "question": one.question,
                "segment": one.segment,
                "what": one.what,
            }
            for one in found.violations
        ],
    }
