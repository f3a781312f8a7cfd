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

from coseek.measure.table import Table, show
from coseek.studies.page import FOUND, result_path, stored
from coseek.studies.study import PAPERS, Study, load_study, study_names

PAGES = ROOT / "docs" / "papers"


def main() -> int:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/studies")
    FOUND.mkdir(exist_ok=True)
    for name in study_names():
        for road in ("laptop", "real"):
            if (path := result_path(runs, name, road, ".json")).exists():
                shutil.copy(path, FOUND)
    PAGES.mkdir(exist_ok=True)
    for paper, title in PAPERS.items():
        (PAGES / f"{paper}.md").write_text(page_of(paper, title), encoding="utf-8")
    return 0


def page_of(paper: str, title: str) -> str:
    """A paper's studies, and the numbers of those that were run."""
    names = [name for name in study_names() if name.startswith(f"{paper}/")]
    studies = {name: load_study(name) for name in names}
    rows = [(f"`{name}`", one.place, one.claim, verdicts(name, one) or "not run") for name, one in studies.items()]
    parts = [
        f"# {title}",
        "Written by `python -m bench.studies`. [How to run them](../how-to/run-a-study.md).",
        Table(("study", "place", "claim", "found here"), tuple(rows)).markdown(),
    ]
    for name, one in studies.items():
        for road in one.at:
            parts += numbers_of(name, one, road)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def verdicts(name: str, one: Study) -> str:
    return "; ".join(f"{known.verdict} ({road})" for road in one.at if (known := stored(FOUND, name, road)))


def numbers_of(name: str, one: Study, road: str) -> Iterator[str]:
    """The arms and comparisons of one result."""
    known = stored(FOUND, name, road)
    if known is None:
        return
    beside = one.printed.get("metric", "")
    rows = [
        (
            arm,
            *(show(metrics.get(metric)) for metric in one.metrics),
            *([str(one.printed.get(arm, "–"))] if beside else []),
        )
        for arm, metrics in known.arms.items()
    ]
    head = ("arm", *one.metrics, *([f"paper: {beside}"] if beside else []))
    compared = [
        (
            each.expected,
            f"{each.metric} {show(each.difference)}",
            ", ".join(f"{seed:+.3f}" for seed in each.seeds),
            each.verdict + (f"; {n:,} questions would" if (n := each.questions_that_would_tell) else ""),
        )
        for each in known.comparisons
    ]
    cost = f"seeds {', '.join(map(str, known.seeds))}, {known.minutes:.0f} minutes"
    yield f"{one.claim} ({one.place}). **{known.verdict.capitalize()}**; {cost}."
    yield from filter(None, [one.notes, *known.missing])
    yield Table(head, tuple(rows)).markdown()
    yield Table(("expected", "difference", "by seed", "verdict"), tuple(compared)).markdown()


if __name__ == "__main__":
    sys.exit(main())
