"""The page of each paper: its tables and claims as commands, and what was found here.

    python -m bench.studies [RUNS]

Takes the results of `coseek study` in RUNS, `runs/studies` by default, into `src/coseek/studies/found`, which comes
with coseek, and writes docs/papers/*.md from all that are there.
"""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.real_sets import ROOT

from coseek.core.settings import load_settings
from coseek.measure.table import Table, show
from coseek.studies.page import FOUND, StudyResult, result_path, stored
from coseek.studies.study import PAPERS, Study, load_study, study_names
from coseek.studies.verdict import ArmComparison

PAGES = ROOT / "docs" / "papers"
MOST_COLUMNS = 3
"""Metrics of a table, besides those that are compared; the page of a study has all."""


def main() -> int:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/studies")
    FOUND.mkdir(exist_ok=True)
    for name in study_names():
        for road in ("laptop", "real"):
            if is_newer(path := result_path(runs, name, road, ".json"), stored(FOUND, name, road), load_study(name)):
                shutil.copy(path, FOUND)
    PAGES.mkdir(exist_ok=True)
    for paper, title in PAPERS.items():
        (PAGES / f"{paper}.md").write_text(page_of(paper, title), encoding="utf-8")
    return 0


def is_newer(path: Path, known: StudyResult | None, study: Study) -> bool:
    """Whether there is a result with every arm of the known one that the study still has; older runs may lack some."""
    if not path.exists():
        return False
    return known is None or known.arms.keys() & study.arms.keys() <= load_settings(StudyResult, path).arms.keys()


def page_of(paper: str, title: str) -> str:
    """A paper's studies, and the numbers of those that were run."""
    names = [name for name in study_names() if name.startswith(f"{paper}/")]
    studies = {name: load_study(name) for name in names}
    parts = [
        f"# {title}",
        "Written by `python -m bench.studies`. [How to run them](../how-to/run-a-study.md).",
        "\n".join(f"- `{name}` ({one.place}): {one.claim}{verdicts(name, one)}" for name, one in studies.items()),
    ]
    for name, one in studies.items():
        for road in one.at:
            parts += (text for text in numbers_of(name, one, road) if text not in parts)  # notes stand once
    return "\n\n".join(part.strip() for part in parts) + "\n"


def verdicts(name: str, one: Study) -> str:
    found = [f"{known.verdict} ({road})" for road in one.at if (known := stored(FOUND, name, road))]
    return f": **{'; '.join(found)}**" if found else ""


def numbers_of(name: str, one: Study, road: str) -> Iterator[str]:
    """The arms' means of one result, and its comparisons with intervals."""
    known = stored(FOUND, name, road)
    if known is None:
        return
    beside = one.printed.get("metric", "") if len(one.printed) > 1 else ""
    rows = []
    compared_in = {each.metric for each in known.comparisons}
    columns = [metric for metric in one.metrics if any(metrics.get(metric) for metrics in known.arms.values())]
    columns = [metric for at, metric in enumerate(columns) if at < MOST_COLUMNS or metric in compared_in]
    for arm, metrics in known.arms.items():
        means = ["–" if (mean := metrics.get(metric)) is None else f"{mean.mean:.3f}" for metric in columns]
        rows.append((arm, *means, *([str(one.printed.get(arm, "–"))] if beside else [])))
    cost = f"seed{'s' * (len(known.seeds) > 1)} {', '.join(map(str, known.seeds))}, {known.minutes:.0f} minutes"
    yield f"## {name.partition('/')[2]}: {known.verdict} ({road}, {cost})"
    yield " ".join(filter(None, [one.notes, *known.caveats]))
    yield Table(("arm", *columns, *([f"paper: {beside}"] if beside else [])), tuple(rows)).markdown()
    yield "\n".join(f"- {compared(each, one.metrics[0])}" for each in known.comparisons)


def compared(each: ArmComparison, headline: str) -> str:
    """A comparison as a sentence, in the headline metric unless it says another one."""
    metric = "" if headline == each.metric or each.expected.startswith(f"{each.metric}:") else f"{each.metric} "
    verdict = each.verdict.removesuffix(" here").removesuffix(" at this size")
    seeds = f" ({', '.join(f'{seed:+.3f}' for seed in each.seeds)} by seed)" if len(each.seeds) > 1 else ""
    needed = f" ({n:,} questions would)" if (n := each.questions_that_would_tell) else ""
    return f"{each.expected}: {metric}{show(each.difference)}{seeds}, {verdict}{needed}"


if __name__ == "__main__":
    sys.exit(main())
