"""Check stored runs and labels, or what a corpus lacks."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from coseek.cli.options import Split
from coseek.cli.terminal import AsJson, new_app, note, output, say
from coseek.core.errors import DataError
from coseek.core.files import JsonObject, parse_rows, write_json, write_jsonl
from coseek.data.dataset import Dataset
from coseek.data.digests import check_output_file
from coseek.data.passage import Passage
from coseek.data.question import load_questions
from coseek.measure.corpus_coverage import corpus_coverage
from coseek.pipelines.agent_run import split_at
from coseek.pipelines.audit import Audit, audits_of

PROGRESS_EVERY = 1_000_000
"""Passages between two lines of progress."""
RUNS = "runs"
"""The default command: `coseek audit RUN`."""


class RunsByDefault(typer.core.TyperGroup):
    """A group with a default command."""

    # typer hides the base class of its context, which the overridden method takes.
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        is_command = args[:1] and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if is_command else [RUNS, *args])


GROUP = "Results"
app = new_app()


@app.callback(cls=RunsByDefault)
def audit() -> None:
    """Check stored runs and labels (`coseek audit PATH…`), or what a corpus lacks (`coseek audit corpus DATA`)."""


@app.command(epilog="Example: `coseek audit corpus DATA`")
def corpus(
    data: Annotated[Path, Argument(metavar="DATA", help="The data-set folder.")],
    split: Split = None,
    out: Annotated[Path | None, Option(help="Write unreachable questions (.jsonl) or everything (.json).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find questions whose gold passages or answers are not in the corpus.

    Counts them by data set, with the largest loss in recall and EM that this can cause. Streams the corpus once.
    """
    check_output_file(out, ".jsonl", ".json")
    dataset = Dataset(data)
    if split is not None:
        split_at(data, split)
    splits = {name: load_questions(dataset.split_path(name)) for name in ([split] if split else dataset.splits)}
    if not splits:
        raise DataError(f"{data} has no questions; it needs at least one questions.SPLIT.jsonl")
    coverage = corpus_coverage(passages_of(dataset), splits)
    if out is not None and out.suffix == ".jsonl":
        write_jsonl(out, (question.to_json() for question in coverage.unreachable))
    elif out is not None:
        write_json(out, coverage.to_json())
    output(as_json, coverage.to_json(), [coverage.table()])


def passages_of(dataset: Dataset) -> Iterator[Passage]:
    """Stream the passages of the corpus file."""
    for number, passage in enumerate(parse_rows(dataset.corpus_path, Passage.from_json), start=1):
        if number % PROGRESS_EVERY == 0:
            note(f"{number:,} passages read")
        yield passage


@app.command(RUNS, epilog="Example: `coseek audit runs/mine --retriever INDEX`")
def runs_(
    paths: Annotated[list[Path], Argument(metavar="PATH", help="Folders of runs, labels or trainings, at any depth.")],
    retriever: Annotated[str | None, Option(help="The runs' retriever, to repeat and compare every search.")] = None,
    as_json: AsJson = False,
) -> int:
    """Derive tokens, masks, hits, answers, rewards and labels again, and report differences.

    Exits with 1 if something differs. Counts all violations, and prints the first hundred of each folder with file,
    line, question and segment. Names what could not be compared.
    """
    audits = [audit for path in paths for audit in audits_of(path, retriever)]
    output(as_json, [audit_json(audit) for audit in audits], chain.from_iterable(map(report, audits)))
    if not as_json:
        for audit in audits:
            for part, reason in audit.left_out.items():
                say(f"{audit.folder}: not compared: {part} ({reason})")
    return 1 if any(audit.count for audit in audits) else 0


def report(audit: Audit) -> Iterator[str]:
    """Describe a folder: sound, or its first violations; and how much was derived again."""
    share = f"{audit.derived / audit.rows:.0%}" if audit.rows else "0%"
    scope = f"{share} derived again, {'with' if audit.bound else 'without'} a digest file"
    if not audit.count:
        yield f"{audit.folder}: sound; {audit.rows:,} {audit.of} checked, {scope}"
    else:
        extent = "all of them" if len(audit.violations) == audit.count else f"the first {len(audit.violations)} of them"
        yield f"{audit.folder}: not sound; {audit.count:,} violations in {audit.rows:,} {audit.of}, {scope}, {extent}:"
        yield from (f"  {violation}" for violation in audit.violations)


def audit_json(audit: Audit) -> JsonObject:
    return {
        "folder": str(audit.folder),
        "of": audit.of,
        "rows": audit.rows,
        "derived": audit.derived,
        "digests": audit.bound,
        "not_compared": dict(audit.left_out),
        "violation_count": audit.count,
        "violations": [{**asdict(violation), "file": str(violation.file)} for violation in audit.violations],
    }
