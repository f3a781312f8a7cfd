"""Check stored runs, labels and trainings, or what a corpus lacks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.options import Split
from coseek.cli.terminal import AsJson, new_app, note, print_json, say, stdout_console, tell
from coseek.core.errors import DataError
from coseek.core.files import JsonObject, check_output_file, parse_rows, write_json, write_jsonl
from coseek.data.audit import Audit
from coseek.data.dataset import Dataset
from coseek.data.passage import Passage
from coseek.data.question import load_questions
from coseek.measure.corpus_coverage import corpus_coverage
from coseek.pipelines.agent_run import check_questions
from coseek.pipelines.folder_audit import audits_of

TOLD = 1_000_000
"""Passages between two lines of progress."""
RUNS = "runs"
"""The command of everything that is not the name of another one: `coseek audit RUN`."""


class RunsByDefault(typer.core.TyperGroup):
    """A group whose first command is taken where none is named."""

    # typer hides the base class of its context, which the overridden method takes.
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        named = args[:1] and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if named else [RUNS, *args])


GROUP = "Results"
app = new_app()


@app.callback(cls=RunsByDefault)
def audit() -> None:
    """Check stored runs, labels and trainings: `coseek audit FOLDER…`. Or what a corpus lacks: `coseek audit corpus
    DATA`."""


@app.command(epilog="Example: `coseek audit corpus DATA`")
def corpus(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="The data-set folder.")],
    split: Split = None,
    out: Annotated[
        Path | None, typer.Option(help="A .jsonl file for the unreachable questions, or a .json file for everything.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the questions whose gold passages or answers the corpus does not hold, which no retriever can reach.

    Counts them by data set, with the most that this costs in recall and EM. Reads the corpus once, without holding it.
    """
    check_output_file(out, ".jsonl", ".json")
    dataset = Dataset(data)
    if split is not None:
        check_questions(data, split)
    splits = {name: load_questions(dataset.split_path(name)) for name in ([split] if split else dataset.splits)}
    if not splits:
        raise DataError(f"{data} has no questions; it needs at least one questions.SPLIT.jsonl")
    found = corpus_coverage(passages_of(dataset), splits)
    if out is not None and out.suffix == ".jsonl":
        write_jsonl(out, (row.to_json() for row in found.unreachable))
    elif out is not None:
        write_json(out, found.to_json())
    if as_json:
        print_json(found.to_json())
    else:
        stdout_console().print(found.table().rich())


def passages_of(dataset: Dataset) -> Iterator[Passage]:
    """The passages of the corpus file, one at a time."""
    for number, passage in enumerate(parse_rows(dataset.corpus_path, Passage.from_json), start=1):
        if number % TOLD == 0:
            note(f"{number:,} passages read")
        yield passage


@app.command(RUNS, epilog="Example: `coseek audit runs/mine --retriever INDEX`")
def runs_(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Folders of runs, labels or trainings; all that lies below is checked."),
    ],
    retriever: Annotated[
        str | None, typer.Option(help="The retriever of the runs, to search every query again and compare.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model folder of the runs, to compute every log-probability again and compare."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Check stored runs, their grades, labels, metrics and checkpoints: what follows from other files is worked out
    again, and digests bind the rest.

    Ends with 1 when something is not sound. All violations are counted, and the first hundred of each folder are named
    with their file, line, question and segment. Says what could not be compared.
    """
    audits = {inner: audit for folder in folders for inner, audit in audits_of(folder, retriever, model)}
    if as_json:
        print_json([as_object(folder, found) for folder, found in audits.items()])
    else:
        for folder, found in audits.items():
            report(folder, found)
    return 1 if any(found.count for found in audits.values()) else 0


def report(folder: Path, found: Audit) -> None:
    """Print one line for a sound folder, else the first violations; and how much could be compared."""
    if not found.count:
        tell(f"{folder}: sound; {found.rows:,} {found.of} checked")
    else:
        shown = len(found.violations)
        which = "all of them" if shown == found.count else f"the first {shown} of them"
        tell(f"{folder}: not sound; {found.count:,} violations in {found.rows:,} {found.of}, {which}:")
        for violation in found.violations:
            tell(f"  {violation}")
    closed = "sealed" if found.sealed else "not sealed"
    tell(f"  {_share(found.derived, found.rows)} worked out again, {_share(found.bound, found.rows)} bound; {closed}")
    for one in found.shares:
        if one.rows:
            again, bound = _share(one.derived, one.rows), _share(one.bound, one.rows)
            tell(f"  {one.rows:,} {one.of}: {again} worked out again, {bound} bound")
    for what, why in found.left_out.items():
        say(f"{folder}: not compared: {what} ({why})")


def _share(part: int, whole: int) -> str:
    return f"{min(part, whole) / whole:.0%}" if whole else "0%"  # a row that cannot be read is bound and not counted


def as_object(folder: Path, found: Audit) -> JsonObject:
    return {
        "folder": str(folder),
        "of": found.of,
        "rows": found.rows,
        "decoded": found.decoded,
        "derived": found.derived,
        "bound": found.bound,
        "sealed": found.sealed,
        "shares": [
            {"of": one.of, "rows": one.rows, "derived": one.derived, "bound": one.bound} for one in found.shares
        ],
        "not_compared": dict(found.left_out),
        "violation_count": found.count,
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
