"""Report: one self-contained HTML page without scripts or network requests; all text from outside is escaped.

The page's content security policy forbids scripts and requests, as a second defence against text of passages.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import yaml

from coseek.core.files import JsonObject, atomic_write, write_json, write_jsonl
from coseek.core.text import as_written
from coseek.data.trajectory import Author, Call, Search, Segment, Trajectory
from coseek.measure.abstention import ended_right
from coseek.measure.plots import Svg, with_id_prefix
from coseek.measure.score import ScoredRun
from coseek.measure.table import Table


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a report under one heading; `html` is its body, escaped."""

    title: str
    html: str


def text_section(title: str, text: str) -> ReportSection:
    """Paragraphs, separated by empty lines."""
    return ReportSection(title, _paragraphs(text))


def table_section(title: str, table: Table, text: str = "") -> ReportSection:
    """Paragraphs, and a table with its notes."""
    head = "".join(f"<th>{clean(column)}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    notes = "".join(f'<p class="note">{clean(note)}</p>' for note in table.notes)
    kind = ' class="many"' if len(table.columns) > 5 else ""
    html = f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    return ReportSection(title, _paragraphs(text) + html + notes)


def plot_section(title: str, plot: Svg, caption: str = "") -> ReportSection:
    """A plot with a caption."""
    figcaption = f"<figcaption>{clean(caption)}</figcaption>" if caption else ""
    return ReportSection(title, f"<figure>{with_id_prefix(plot, _PREFIX)}{figcaption}</figure>")


def settings_section(title: str, settings: JsonObject) -> ReportSection:
    """Settings as YAML, collapsed."""
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return ReportSection(title, f"<details><summary>show</summary><pre>{clean(text)}</pre></details>")


def files_section(title: str, files: Mapping[str, str]) -> ReportSection:
    """Path and description of each file."""
    rows = "".join(f"<dt><code>{clean(path)}</code></dt><dd>{clean(about)}</dd>" for path, about in files.items())
    return ReportSection(title, f"<dl>{rows}</dl>")


def trajectory_section(title: str, trajectories: Iterable[Trajectory], text: str = "") -> ReportSection:
    """Whole trajectories, coloured and labelled by author."""
    return ReportSection(title, _paragraphs(text) + "".join(map(trajectory_html, trajectories)))


def write_report(path: Path, title: str, sections: Sequence[ReportSection]) -> None:
    """Write the page atomically."""
    page = report_html(title, sections)
    with atomic_write(path) as file:
        file.write(page)


def report_html(title: str, sections: Sequence[ReportSection]) -> str:
    """The whole page as text."""
    contents = "".join(f'<li><a href="#s{n}">{clean(section.title)}</a></li>' for n, section in enumerate(sections, 1))
    bodies = "".join(
        f'<section id="s{n}"><h2>{clean(section.title)}</h2>{section.html.replace(_PREFIX, f"plot{n}")}</section>\n'
        for n, section in enumerate(sections, 1)
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{clean(title)}</title><style>{_CSS}</style></head>\n<body><h1>{clean(title)}</h1>\n"
        f"<nav><ul>{contents}</ul></nav>\n{bodies}</body></html>\n"
    )


def trajectory_html(trajectory: Trajectory) -> str:
    """A trajectory: question, outcome, and every segment in order."""
    question = trajectory.question
    facts = [
        f"gold: {' | '.join(map(as_written, question.answers)) or ('–' if question.answerable else 'unanswerable')}",
        f"answer: {as_written(trajectory.answer) if trajectory.answer is not None else '–'}",
        f"stop: {trajectory.stop}",
        "valid form" if trajectory.valid else f"not valid: {trajectory.format_error}",
        *(() if question.hops is None else (f"{question.hops} hop" + "s" * (question.hops != 1),)),
        *((trajectory.stop_detail,) if trajectory.stop_detail else ()),
    ]
    verdict = '<b class="right">right</b>' if ended_right(trajectory) else '<b class="wrong">not right</b>'
    searches = [_search_html(search, question.gold_ids) for search in trajectory.searches]
    calls = [_call_html(call) for call in trajectory.calls]
    return (
        f'<article class="run"><h3>{clean(as_written(question.question).strip())}</h3>'
        f'<p class="facts">{verdict} · {" · ".join(map(clean, facts))}</p>'
        f"{''.join(map(_segment_html, trajectory.segments))}"
        f"{_details('searches', searches)}{_details('tool calls', calls)}</article>"
    )


def _details(title: str, rows: Sequence[str]) -> str:
    items = "".join(f"<li>{row}</li>" for row in rows)
    return f"<details><summary>{title}: {len(rows)}</summary><ol>{items}</ol></details>" if rows else ""


def clean(text: str) -> str:
    """Text escaped for HTML text and quoted attributes; unpaired surrogates become `?`."""
    return escape(text.encode("utf-8", "replace").decode(), quote=True)


def _cell(text: str) -> str:
    """A table cell; the interval after a mean is in small type."""
    mean, bracket, rest = text.partition(" [")
    interval = f" <small>[{clean(rest)}</small>" if bracket else ""
    return f"<td>{clean(mean)}{interval}</td>"


def _segment_html(segment: Segment) -> str:
    author = "agent" if segment.author is Author.AGENT else "environment"
    label = f"{author} · {segment.tag or '(no action)'} · {len(segment.ids)} tokens"
    return f'<div class="{author}"><span class="by">{clean(label)}</span>{clean(as_written(segment.text))}</div>'


def _search_html(search: Search, gold_ids: Sequence[str]) -> str:
    if search.fault is not None:
        return f"{clean(search.query)} — failed: {clean(search.fault)}"
    hit_names = [(hit.passage.id in gold_ids, as_written(hit.passage.title) or hit.passage.id) for hit in search.hits]
    titles = ", ".join(f"<b>{clean(name)} (gold)</b>" if is_gold else clean(name) for is_gold, name in hit_names)
    return f"{clean(as_written(search.query))} → {titles or 'nothing'}"


def _call_html(call: Call) -> str:
    arguments, result = (json.dumps(value, ensure_ascii=False) for value in (call.arguments, call.result))
    outcome = f"→ {result}" if call.fault is None else f"— failed: {call.fault}"
    return clean(f"{call.tool} {arguments} {outcome}")


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{clean(paragraph.strip())}</p>" for paragraph in text.split("\n\n") if paragraph.strip())


_PREFIX = "<plot>"
"""In front of the ids of a plot until a page numbers its sections; escaped text does not hold it."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

_CSS = """
:root { color-scheme: light dark; --page: #fff; --ink: #1d2126; --soft: #5c6670; --line: #d5dae0;
  --agent: #e7f1fb; --agent-edge: #3f8fd2; --env: #f4f3ef; --env-edge: #b3a98a; --right: #1d7d4f; --wrong: #b3432b; }
@media (prefers-color-scheme: dark) { :root { --page: #15181c; --ink: #e3e6e9; --soft: #98a2ad; --line: #343b43;
  --agent: #14283a; --agent-edge: #3f8fd2; --env: #23221d; --env-edge: #7d755c; --right: #5cc48f; --wrong: #e58a70; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; }
a { color: inherit; } .wide { overflow-x: auto; } figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
figcaption, .note, .facts, .by { color: var(--soft); font-size: .87rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
small { color: var(--soft); font-size: .8rem; } .many small { display: block; }
.many td { vertical-align: top; } .many :is(th, td) { padding: .3rem .5rem; }
th:first-child, td:first-child { text-align: left; }
pre { overflow-x: auto; font-size: .85rem; } dt { margin-top: .5rem; overflow-wrap: anywhere; }
.run { border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; margin: 1rem 0; }
.agent, .environment { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; margin: .35rem 0;
  padding: .4rem .7rem; border-left: 4px solid; font: .87rem/1.45 ui-monospace, monospace; }
.agent { background: var(--agent); border-color: var(--agent-edge); }
.environment { background: var(--env); border-color: var(--env-edge); }
.by { display: block; font-family: system-ui, sans-serif; font-size: .75rem; }
.right { color: var(--right); } .wrong { color: var(--wrong); }
"""


# Score files: a folder with scores by question and their summary.
#
# questions.jsonl   one line per run and question: metrics, number of trajectories, faults
# scores.json       means, intervals, paired tests, generator and judge
# scores.md, .html  the tables

ROWS, SUMMARY = "questions.jsonl", "scores.json"
"""Scores by question, and the summary, which identifies a folder of scores."""


def write_scores(folder: Path, runs: Sequence[ScoredRun], summary: JsonObject, tables: Mapping[str, Table]) -> None:
    """Write the folder's four files atomically. `tables` are by heading."""
    write_jsonl(folder / ROWS, (row for run in runs for row in question_rows(run)))
    write_json(folder / SUMMARY, summary)
    with atomic_write(folder / "scores.md") as file:
        file.write("\n".join(["# Scores\n", *(f"## {name}\n\n{table.markdown()}" for name, table in tables.items())]))
    write_report(folder / "scores.html", "Scores", [table_section(name, table) for name, table in tables.items()])


def question_rows(run: ScoredRun) -> Iterator[JsonObject]:
    """One row per question, in the order of the run. A question with only faults has no metrics."""
    for ident, row in run.questions.items():
        question: JsonObject = {
            "run": run.name,
            "id": ident,
            "dataset": row.question.dataset,
            "hops": row.question.hops,
        }
        yield {**question, "trajectories": row.rows, "faults": row.faults, "metrics": dict(row.metrics)}


def write_values(
    out: Path, values: Mapping[str, Mapping[str, Mapping[str, float]]], table: Table, name: str
) -> JsonObject:
    """Write row → question → metric as rows of `questions.jsonl`, and the table as `name`; returns what that holds."""
    rows = [(row, ident, metrics) for row, questions in values.items() for ident, metrics in questions.items()]
    write_jsonl(out / ROWS, ({"run": row, "id": ident, "metrics": {**metrics}} for row, ident, metrics in rows))
    tree = table_json(table)
    write_json(out / name, tree)
    return tree


def table_json(table: Table) -> JsonObject:
    """A table's rows by column, and its notes."""
    return {"rows": [{**dict(zip(table.columns, row, strict=True))} for row in table.rows], "notes": list(table.notes)}
