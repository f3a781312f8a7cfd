"""The viewer's page: bytes an episode, and milliseconds until it is open and until a filter is drawn, in Chromium.

    python -m bench.view [--episodes 10000]

Two scripted agents answer questions of a small laptop world; their episodes are repeated under other ids and seeds. The
log-probabilities of scripted tokens are all 0, so they are replaced by drawn ones, which compress like a model's.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
    return [folder / agent for agent in AGENTS]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        runs = make_runs(folder, args.episodes)
        page = folder / "page.html"
        began = time.perf_counter()
        episodes = write_page(page, *open_sources(runs))
        written_s = time.perf_counter() - began
        stored = sum((run / "trajectories.jsonl").stat().st_size for run in runs)
        size = page.stat().st_size
        print(f"{episodes:,} episodes, {stored / 1e6:.0f} MB stored, {size / 1e6:.1f} MB written in {written_s:.1f} s")
        print(f"{size / episodes:,.0f} bytes an episode (base64 and the page included)")
        with Chromium() as browser:
            print(f"open: {statistics.median(open_ms(browser, page) for _ in range(3)):.0f} ms (median of 3)")
            for name, spent in filter_ms(browser).items():
                print(f"filter {name}={FILTERS[name]}: {spent:.0f} ms")
            asked = set(browser.requests) - {page.as_uri(), "about:blank"}
            print(f"requests but the page: {len(asked)}")


if __name__ == "__main__":
    main()
