"""Bring public question-answering data, and documents, into the ordinary files of a data set."""

from pathlib import Path
from typing import Annotated, cast

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from coseek.cli.terminal import AsJson, assignments, new_app, print_json, stdout_console
from coseek.core.files import JsonObject
from coseek.data.imports import format_names, import_data, parse_shares
from coseek.data.imports._published import Deal

app = new_app()
MOST_UNREAD = 20
"""Unread documents that are printed one by one."""


@app.callback()
def data() -> None:
    """Bring public question-answering data, and documents, into the ordinary files of a data set."""


@app.command("import")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(format_names())}.")],
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC",
            help="The files to read, plain or .gz, or a folder of them; for documents also settings, such as size=300.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The data-set folder to write.")],
    split: Annotated[
        str | None,
        typer.Option(help="The split that all questions go to [default: test, unless the format has its own]."),
    ] = None,
    shares: Annotated[
        str | None,
        typer.Option(help="Deal the questions out instead: train=.7,dev=.1,test=.2 (by a hash of their ids)."),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(help="Deal published sets instead: those whose training questions to take, such as nq,hotpotqa."),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="The published sets whose test questions to take; dev where a set has no test.")
    ] = None,
    dev_share: Annotated[float, typer.Option(help="Share of the questions of --train that becomes dev.")] = 0.01,
    as_json: AsJson = False,
) -> None:
    """Read public files, or documents, and write `corpus.jsonl` and `questions.SPLIT.jsonl`.

    A folder that holds the same corpus keeps its other splits. Nothing is written when anything is wrong. A document
    that cannot be read is reported, and the others are read.
    """
    paths = [Path(source) for source in sources if not _is_setting(source)]
    settings = assignments(source for source in sources if _is_setting(source))
    deal = None if train is None and test is None else Deal(split_names(train), split_names(test), dev_share)
    dealt = parse_shares(shares) if shares else None
    made = import_data(format_name, paths, out, split=split, shares=dealt, deal=deal, settings=settings)
    if as_json:
        counted: JsonObject = {"questions": {**made.questions}, "notes": {**made.notes}}
        print_json({"folder": str(out), "passages": made.passages, **counted, **made.report})
        return
    if made.report:
        show_report(made.report)
    counts = ", ".join(f"{count:,} {name} questions" for name, count in made.questions.items())
    notes = "".join(f"; {name.replace('_', ' ')}: {count:,}" for name, count in made.notes.items())
    print(f"{out}: {made.passages:,} passages{counts and ', '}{counts}{notes}.")
    print(f"Next: coseek index {out} --out {out}-bm25")


def show_report(report: JsonObject) -> None:
    """Print what came of each kind of document, and why some were not read. Names of files are untrusted text."""
    console = stdout_console()
    kinds = cast(dict[str, dict[str, int]], report["kinds"])
    table = Table("kind", *next(iter(kinds.values())), box=box.MARKDOWN)
    for kind, counts in kinds.items():
        table.add_row(kind, *(f"{count:,}" if count else "" for count in counts.values()))
    console.print(table)
    unread = cast(list[dict[str, str | list[str]]], report["unread"])
    for row in unread[:MOST_UNREAD]:
        console.print(Text(f"{row['outcome']}: {row['path']}: {'; '.join(row['reasons'])}"))
    if len(unread) > MOST_UNREAD:
        console.print(Text(f"… and {len(unread) - MOST_UNREAD:,} more; source.json lists all"))


def _is_setting(source: str) -> bool:
    name, equals, _ = source.partition("=")
    return bool(equals) and name.isidentifier() and not Path(source).exists()


def split_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
