"""The quickstart in `precision: auto` beside the same in float32, on this processor and as on an older one.

    OMP_NUM_THREADS=1 python bench/precision.py                 # --steps 40 --rl-steps 4 --repeats 3
    OMP_NUM_THREADS=1 python bench/precision.py --bfloat16      # also by name, where that may be very slow

Every measurement is a process of its own, which trains by the quickstart's recipe, cut short, and tells the processor
time of each step; the sides take turns. (Processor time, since a busy machine gives a process now more and now less of
the clock; hence one thread.) The bar: a step in `auto` takes at most 1.5 times as long as in float32, whatever the
instructions, of the warm start and of reinforcement learning. Exits 1 when it is missed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from coseek.core.progress import NoProgress

BAR = 1.5
OLDER = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
"""With these a newer processor computes as one that has AVX2 and nothing that came after it."""
STAGES = ("SFT", "GRPO")


class Side(NamedTuple):
    """What is measured."""

    switches: tuple[tuple[str, str], ...]
    precision: str


class Found(NamedTuple):
    """What a process tells."""

    seconds: dict[str, float]
    """Stage → median seconds of processor time of a step."""
    instructions: str
    taken: str
    """What it computed in."""


class Clock(NoProgress):
    """Notes the processor time of each step of a stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._name, self._last = "", 0.0

    def stage(self, name: str, total: int) -> None:
        self._name, self._last = name, time.process_time()
        self.seconds[name] = []

    def advance(self, done: int, note: str = "") -> None:
        now = time.process_time()
        self.seconds[self._name].append(now - self._last)
        self._last = now


def main() -> int:
    options = arguments()
    if options.one:
        print(json.dumps(one(options)._asdict()))
        return 0
    kinds = ["auto", "float32", *(["bfloat16"] if options.bfloat16 else [])]
    sides = [Side(switches, kind) for switches in ((), tuple(OLDER.items())) for kind in kinds]
    seconds: dict[Side, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    told: dict[Side, Found] = {}
    for repeat in range(options.repeats):
        for side in sides:
            found = told[side] = asked(side, options)
            for stage in STAGES:
                seconds[side][stage].append(found.seconds[stage])
            print(f"repeat {repeat + 1}, {side.precision}: {found}", file=sys.stderr, flush=True)
    return report(sides, seconds, told)


def report(sides: list[Side], seconds: dict[Side, dict[str, list[float]]], told: dict[Side, Found]) -> int:
    """The table and the bars."""
    print("| instructions | precision | computes in | warm start, CPU s a step | GRPO, CPU s a step |")
    print("|---|---|---|---|---|")
    for side in sides:
        cells = [
            f"{statistics.median(times):.3f} ({min(times):.3f} – {max(times):.3f})"
            for times in (seconds[side][stage] for stage in STAGES)
        ]
        print(f"| {told[side].instructions} | {side.precision} | {told[side].taken} | {' | '.join(cells)} |")
    missed = 0
    for side in sides:
        if side.precision == "auto":
            other = seconds[Side(side.switches, "float32")]
            for stage in STAGES:
                # Turn by turn: what else the machine did hit both.
                ratio = statistics.median(
                    mine / theirs for mine, theirs in zip(seconds[side][stage], other[stage], strict=True)
                )
                missed += ratio > BAR
                name = f"{stage}, {told[side].instructions}: auto over float32"
                print(f"{'ok    ' if ratio <= BAR else 'MISSED'} {name}: {ratio:.2f}, bar {BAR}")
    return 1 if missed else 0


def asked(side: Side, options: argparse.Namespace) -> Found:
    """What a process of this side tells."""
    command = [sys.executable, __file__, "--one", side.precision]
    command += ["--steps", str(options.steps), "--rl-steps", str(options.rl_steps)]
    environment = {**{name: value for name, value in os.environ.items() if name not in OLDER}, **dict(side.switches)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return Found(**json.loads(done.stdout))


def one(options: argparse.Namespace) -> Found:
    """Train, and tell the median processor time of a step of each stage."""
    from coseek.hardware.host import Host
    from coseek.pipelines.agent import AgentTraining
    from coseek.pipelines.agent_recipe import load_recipe

    overrides = [
        "data.unseen=null", "warm_start.worlds=2", "table.dev_questions=1", "rl.evaluate_every=0",
        f"warm_start.sft.learner.precision={options.one}", f"rl.policy.precision={options.one}",
        f"warm_start.sft.steps={options.steps}", "warm_start.sft.repeat_steps=0", "warm_start.sft.rounds=1",
        f"rl.steps={options.rl_steps}",
    ]  # fmt: skip
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        training = AgentTraining(load_recipe("quickstart", overrides), Path(folder) / "run", clock)
        training.begin(resume=False)
        training.train()
        taken = training.recipe.rl.policy.precision
    # The last step of a stage has a look at the dev split behind it, the first one starts threads.
    medians = {stage: statistics.median(clock.seconds[stage][1:-1]) for stage in STAGES}
    return Found(medians, Host.here().instructions, taken)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="of the warm start")
    parser.add_argument("--rl-steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bfloat16", action="store_true", help="measure bfloat16 by name, too")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
