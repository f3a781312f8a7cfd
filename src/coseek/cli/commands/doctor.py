"""Show what is installed, what works, what is missing and how to get it."""

from rich.table import Table
from rich.text import Text

from coseek.cli.doctor import CHECKS, CheckStatus, Finding
from coseek.cli.terminal import AsJson, new_app, print_json, say, stdout_console

app = new_app()
_COLOURS = {CheckStatus.WORKS: "green", CheckStatus.MISSING: "yellow", CheckStatus.BROKEN: "red"}


@app.command()
def doctor(as_json: AsJson = False) -> int:
    """Show what is installed, what works, what is missing and how to get it.

    Every part is really tried: a file is written, three passages are searched, a matrix is multiplied, a small
    network is run. Ends with 1 when something that is installed does not work; what is merely missing is no failure.
    """
    if not as_json:
        say("trying every part; a few seconds …")
    findings = [check() for check in CHECKS]
    if as_json:
        print_json([finding.to_json() for finding in findings])
    else:
        stdout_console().print(as_table(findings))
    return 1 if any(finding.health is CheckStatus.BROKEN for finding in findings) else 0


def as_table(findings: list[Finding]) -> Table:
    """What was seen is text, square brackets and all: only the colour of the health is markup."""
    table = Table("part", "", "what was seen", "what to do", box=None, header_style="bold")
    for finding in findings:
        health = Text(finding.health, style=_COLOURS[finding.health])
        table.add_row(Text(finding.part), health, Text(finding.detail), Text(finding.remedy))
    return table
