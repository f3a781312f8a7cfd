"""Bring public question-answering data into the ordinary files of a data set."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.terminal import AsJson, new_app, print_json
from coseek.core.files import JsonObject
from coseek.data.imports import format_names, import_data, parse_shares
from coseek.data.imports._published import Deal

app = new_app()


@app.callback()
def data() -> None:
    """Bring public question-answering data into the ordinary files of a data set."""


@app.command("import")
def import_(
    format_name: Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of {', '.join(format_names())}.")],
    sources: Annotated[
        list[Path], typer.Argument(metavar="SRC", help="The files to read, plain or .gz, or a folder of them.")
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
    """Read public files and write `corpus.jsonl` and `questions.SPLIT.jsonl`.

    A folder that holds the same corpus keeps its other splits. Nothing is written when anything is wrong.
    """
    deal = None if train is None and test is None else Deal(split_names(train), split_names(test), dev_share)
    made = import_data(
        format_name, sources, out, split=split, shares=parse_shares(shares) if shares else None, deal=deal
    )
    if as_json:
        counted: JsonObject = {"questions": {**made.questions}, "notes": {**made.notes}}
        print_json({"folder": str(out), "passages": made.passages, **counted})
        return
    counts = ", ".join(f"{count:,} {name} questions" for name, count in made.questions.items())
    notes = "".join(f"; {name.replace('_', ' ')}: {count:,}" for name, count in made.notes.items())
    print(f"{out}: {made.passages:,} passages, {counts}{notes}.")
    print(f"Next: coseek index {out} --out {out}-bm25")


def split_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
