"""Tables: print the scores of runs."""

from collections.abc import Mapping

from coseek.cli.terminal import stdout_console
from coseek.measure.score import Scores
from coseek.measure.table import Table, abstention_tables, comparison_table, grouped_tables, main_table


def show_tables(tables: Mapping[str, Table]) -> None:
    """Print tables, without headings."""
    console = stdout_console()
    for table in tables.values():
        console.print(table.rich())


def print_tables(scores: Scores, metrics: list[str], main: Table | None = None) -> None:
    """Print the main table, the first metric by group, and the differences from the first run."""
    tables = {"Runs": main or main_table(scores, metrics), **grouped_tables(scores, metrics[0])}
    tables |= abstention_tables(scores)
    if scores.comparisons:
        tables["Run against run"] = comparison_table(scores, metrics)
    show_tables(tables)
