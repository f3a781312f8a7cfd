"""Score turn credits: how well training signals agree with continuations of the agent."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.options import Count, DeviceName, split_names
from coseek.cli.terminal import AsJson, new_app, note, output, progress_bar, resumable
from coseek.core.files import check_output_folder
from coseek.core.lock import lock_folder
from coseek.core.text import counted
from coseek.measure.credit import DECISIVE, CreditScores
from coseek.measure.report import ROWS, write_values
from coseek.measure.table import Table, show

GROUP = "Results"
TURNS = 4
"""Number of first turns whose bias is printed."""
app = new_app()


@app.command(epilog="Example: `coseek credit runs/sampled --continuations 32 --out runs/credit`")
def credit(
    run: Annotated[Path, Argument(metavar="RUN", help="The agent's run: `coseek run … --samples 4 --temperature 1`.")],
    out: Annotated[Path, Option(help="The folder to write; the same command resumes it.")],
    continuations: Annotated[int, Option(min=2, help="Continuations per turn, K; standard errors ≤ √(1/2K).")] = 32,
    signals: Annotated[str, Option(help="Comma-separated names or YAML files. [default: all shipped ones]")] = "",
    decisive: Annotated[float, Option(help="The minimum value of a decisive turn.")] = DECISIVE,
    count: Count = None,
    device: DeviceName = None,
    as_json: AsJson = False,
) -> None:
    """Measure the value of each turn of an agent, and which training signals agree with it.

    The agent continues from the end of every turn that searched, and from the beginning: a turn's value is the gain in
    correct answers. A signal is what an algorithm gives the turn's tokens. `auc` is the probability that it ranks a
    decisive turn above another one, over all turns and within a question; half of the continuations, scored by the
    other half, are the upper bound.
    """
    from coseek.pipelines.credit import load_signals, measure_credit  # torch

    check_output_folder(out, "credit.json", own=(ROWS, *(path.name for path in out.glob("*.*.jsonl"))))  # its caches
    chosen = load_signals(split_names(signals) if signals else [])
    with lock_folder(out), resumable("the same command"), progress_bar() as bars:
        result = measure_credit(run, chosen, continuations, out, decisive, count, device, bars.report, note)
        table = table_of(result, decisive)
        idents = sorted({question for question, _, _ in result.values})
        rows = {
            name: {ident: {"auc": aucs[ident]} if ident in aucs else {} for ident in idents}
            for name, aucs in result.within.items()
        }
        tree = write_values(out, rows, table, "credit.json")
    output(as_json, tree, [table])


def table_of(result: CreditScores, decisive: float) -> Table:
    """Make the table, one row per signal."""
    names = ("signal", "auc", "auc in a question", "rank correlation", "precision", "bias by turn", "tokens a turn")
    rows = [
        (
            name,
            show(scores.auc),
            show(scores.within),
            show(scores.correlation),
            "–" if scores.precision is None else f"{scores.precision:.3f}",
            " ".join(f"{rank:+.2f}" for _, rank in sorted(scores.bias.items())[:TURNS]),
            f"{result.tokens.get(name, 0.0):,.0f}",
        )
        for name, scores in result.scores.items()
    ]
    share = sum(value >= decisive for value in result.values.values()) / len(result.values)
    notes = [f"{counted(len(result.values), 'turn')}, {share:.0%} of them decisive (value of {decisive:g} or more)."]
    if result.faults:
        notes.append(f"{counted(result.faults, 'continuation')} with a fault, tried again by the same command.")
    return Table(names, tuple(rows), tuple(notes))
