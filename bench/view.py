"""The viewer's page in Chromium: size, milliseconds, requests, findings of axe-core, and pictures to be looked at.

    python -m bench.view [--episodes 10000]
    python -m bench.view runs/quickstart --pictures DIR    every view at 400, 800 and 1,600 pixels
    python -m bench.view --axe axe.min.js                  another version of axe-core than the installed one

Without a run two scripted agents answer questions of a small laptop world; their episodes are repeated under other ids
and seeds. The log-probabilities of scripted tokens are all 0, so they are replaced by drawn ones, which compress like a
model's; the curves are drawn, too. Exit 1 when a bar is missed.
"""

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.view.accessibility import TALL, WIDTHS, axe_script, findings, shape, views
from tests.view.chromium import Chromium

import coseek
from coseek.data.run import Run
from coseek.data.trajectory import Segment, Trajectory
from coseek.view.page import write_page
from coseek.view.run_source import open_sources

AGENTS = ("faulty-expert", "expert")
PLAYED = 250
"""Episodes that an agent really plays."""
MEAN_NATS = 0.3
"""Mean of the drawn −log p (exponential)."""
MOST_BYTES, MOST_OPEN_MS, MOST_FILTER_MS = 2048, 3000, 200
FILTERS = {
    "outcome": "wrong",
    "text": "year",
    "flip": AGENTS[1],
    "hops": "2",
    "searches": "2",
    "sort": "tokens",
}


def make_runs(folder: Path, episodes: int) -> list[Path]:
    """A run of each agent, `episodes` in all."""
    data = coseek.make_world(folder / "world", size="small", train=PLAYED, dev=1, test=1)
    coseek.build_index(data.folder, "bm25", folder / "index")
    played = {agent: coseek.rollout(agent, data.questions("train"), folder / "index") for agent in AGENTS}
    rng = random.Random(0)
    for agent, trajectories in played.items():
        run = Run.create(
            folder / agent, {"agent": {"name": agent, "protocol": "search-r1", "prompt_template": "laptop"}}
        )
        with run.open_for_append() as file:
            for one in repeated(trajectories, episodes // len(AGENTS), rng):
                run.append(file, one)
        (folder / agent / "metrics.jsonl").write_text("".join(map(curve_row, range(1, 201))), encoding="utf-8")
    return [folder / agent for agent in AGENTS]


def curve_row(step: int) -> str:
    """A step's numbers as a training logs them."""
    reward, entropy = 0.7 - 0.5 * math.exp(-step / 60), 0.3 + math.exp(-step / 90)
    wave = 0.05 * math.sin(step)
    row = {"step": step, "reward": reward + wave, "kl_reference": step / 3000, "entropy": entropy, "alarms": 0}
    return json.dumps(row) + "\n"


def repeated(trajectories: Sequence[Trajectory], count: int, rng: random.Random) -> Iterator[Trajectory]:
    """`count` episodes with ids, seeds and log-probabilities of their own."""
    for at in range(count):
        one = trajectories[at % len(trajectories)]
        question = replace(one.question, id=f"{one.question.id}-{at // len(trajectories)}")
        segments = tuple(with_logprobs(part, rng) for part in one.segments)
        yield replace(one, question=question, segments=segments, seed=rng.getrandbits(53))


def with_logprobs(segment: Segment, rng: random.Random) -> Segment:
    return replace(segment, logprobs=tuple(-rng.expovariate(1 / MEAN_NATS) for _ in segment.logprobs))


def open_ms(browser: Chromium, page: Path) -> float:
    """Milliseconds from navigation until the list is drawn."""
    browser.open(page.as_uri())
    return float(str(browser.ask("document.documentElement.dataset.openMs")))


def filter_ms(browser: Chromium) -> dict[str, float]:
    """Milliseconds of every filter, set as a user would, layout included."""
    found = {}
    for name, value in FILTERS.items():
        control = "#text" if name == "text" else f'#search [name="{name}"]'
        for wanted in ("", value):
            browser.ask(
                f"(() => {{ const control = document.querySelector({control!r}); control.value = {wanted!r};"
                f" control.dispatchEvent(new Event({'input' if name == 'text' else 'change'!r})); return 0; }})()"
            )
        found[name] = float(str(browser.ask("document.documentElement.dataset.filterMs")))
        browser.ask("location.hash = ''; 0")
        browser.until("location.hash === ''")
    return found


def accessibility(browser: Chromium, page: Path, script: str) -> tuple[set[str], set[str], int]:
    """Findings that are sure, contrasts that are not, and how many times the page was looked at."""
    browser.open(page.as_uri())
    sure, unsure, looks = set[str](), set[str](), 0
    for fragment in views(browser).values():
        for width in WIDTHS:
            for dark in (False, True):
                shape(browser, width, TALL, dark)
                browser.open(page.as_uri() + fragment)
                looks += 1
                for found, certain in findings(browser, script):
                    (sure if certain else unsure).add(found)
    return sure, unsure, looks


def pictures(browser: Chromium, page: Path, folder: Path) -> None:
    """A picture of every view at every width, and a dark one at the middle width."""
    folder.mkdir(parents=True, exist_ok=True)
    browser.open(page.as_uri())
    for name, fragment in views(browser).items():
        for width in WIDTHS:
            browser.open(page.as_uri() + fragment)
            for dark in (False, True) if width == WIDTHS[1] else (False,):
                browser.picture(folder / f"{name}-{width}{'-dark' if dark else ''}.png", width, 1000, dark)


def measured(page: Path, episodes: int, script: str, folder: Path | None) -> list[tuple[bool, str]]:
    """Each bar: whether it is reached, and a sentence."""
    each = page.stat().st_size / episodes
    bars = [(each <= MOST_BYTES, f"{each:,.0f} bytes an episode (base64 and the page included), bar {MOST_BYTES:,}")]
    with Chromium() as browser:
        took = statistics.median(open_ms(browser, page) for _ in range(3))
        bars.append((took < MOST_OPEN_MS, f"open: {took:.0f} ms (median of 3), bar {MOST_OPEN_MS:,}"))
        for name, spent in filter_ms(browser).items():
            said = f"filter {name}={FILTERS[name]}: {spent:.0f} ms, bar {MOST_FILTER_MS}"
            bars.append((spent < MOST_FILTER_MS, said))
        sure, unsure, looks = accessibility(browser, page, script)
        for one in sorted(sure):
            print(one)
        about = f"in {looks} looks; {len(unsure)} contrasts undecided"
        bars.append((not sure, f"axe-core: {len(sure)} serious or critical findings {about}, bar 0"))
        if folder is not None:
            pictures(browser, page, folder)
        asked = {one.partition("#")[0] for one in browser.requests} - {page.as_uri(), "about:blank"}
        bars.append((not asked, f"requests but the page: {len(asked)}, bar 0"))
    return bars


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory() as place:
        runs = args.runs or make_runs(Path(place), args.episodes)
        page = Path(place) / "page.html"
        began = time.perf_counter()
        episodes = write_page(page, *open_sources(runs))
        written_s = time.perf_counter() - began
        print(f"{episodes:,} episodes, {page.stat().st_size / 1e6:.1f} MB written in {written_s:.1f} s")
        bars = measured(page, episodes, axe_script(args.axe), args.pictures)
    for reached, sentence in bars:
        print(f"{'ok    ' if reached else 'MISSED'} {sentence}")
    return 0 if all(reached for reached, _ in bars) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="folders of runs and trainings")
    parser.add_argument("--episodes", type=int, default=10_000, help="that are made where no RUN is named")
    parser.add_argument("--pictures", type=Path, help="the folder for pictures of every view")
    parser.add_argument("--axe", type=Path, help="another axe.min.js")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
