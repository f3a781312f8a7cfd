"""Form: does a reward for the form make an agent write it sooner than the outcome alone (paper 002, its base models)?

    python bench/format.py [--seeds 0 1 2] [--out runs/format] [--steps 200]

A laptop policy is taught so little that it writes the protocol's form in a third of its runs. From these weights it is
trained by GRPO twice, paid for exact match alone, and as 002's equation 3 pays (`search-r1-format`). Printed are the
first step at which 95 % of the runs are valid (mean of three steps), and exact match and validity at either end. Every
run is one of `coseek train agent` in a small world of one-hop questions; what is there already is kept.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from coseek.core.files import read_jsonl
from coseek.core.progress import NoProgress
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe

SMALL = (
    "data.world={seed: 7, size: tiny, train: 400, dev: 60, test: 20, hop_mix: [1.0], comparison: 0, constraint: 0}",
    "data.unseen=null",
    "limits={max_turns: 3, passages_per_search: 1, max_turn_tokens: 48, max_observation_tokens: 96, max_tokens: 320}",
    "policy.laptop={hidden: 96, feed_forward: 256, vocabulary: 1500}",
    "table={dev_questions: 60}",
)
WARM = (
    "learn=demonstrations",
    "reward={valid: 1.0}",  # so that the reading at the gate is the share of valid runs
    "warm_start.world={size: tiny, train: 200, dev: 0, test: 0, hop_mix: [1.0], comparison: 0, constraint: 0}",
    "warm_start.worlds=10",
    "warm_start.one_shot=0",
    "warm_start.sft={steps: 80, later_steps: 20, later_lr: 1.0, rounds: 30, gate: 0.3, gate_metric: reward, "
    "repeat_steps: 120, tokens_per_step: 2000, evaluate_every: 0, curriculum: [{until: 1.0, hops: {0: 0.3, 1: 0.7}}]}",
)
LEARN = (
    "warm_start=null",
    "rl={questions_per_step: 16, group_size: 8, checkpoint_every: 10, evaluate_every: 0}",
)
ARMS = {"outcome": "reward={exact_match: 1.0}", "outcome and form": "reward={preset: search-r1-format}"}
VALID, WINDOW = 0.95, 3
"""The share of valid runs that is to be reached, and the steps that it is the mean of."""


class Loud(NoProgress):
    """Says what a run says, on standard error."""

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Curve:
    """A run, step by step."""

    valid: tuple[float, ...]
    right: tuple[float, ...]

    @classmethod
    def read(cls, metrics: Path) -> "Curve":
        rows = [row for _, row in read_jsonl(metrics)]
        return cls(
            tuple(float(str(row["valid"])) for row in rows), tuple(float(str(row["exact_match"])) for row in rows)
        )

    @property
    def reached(self) -> int | None:
        """The first step, from 1, with which so many steps have the wanted mean; `None` for never."""
        ends = range(WINDOW, len(self.valid) + 1)
        return next((end for end in ends if fmean(self.valid[end - WINDOW : end]) >= VALID), None)


def ends(values: Sequence[float]) -> str:
    return f"{fmean(values[:WINDOW]):.3f} → {fmean(values[-WINDOW:]):.3f}"


def run(folder: Path, settings: Sequence[str]) -> AgentTraining:
    training = AgentTraining(load_recipe("from-nothing", settings), folder, Loud())
    training.begin(resume=True)
    training.train()
    return training


def compare(out: Path, seed: int, steps: int) -> dict[str, Curve]:
    """Both arms of a seed, from the same weights."""
    warm = run(out / f"seed-{seed}" / "warm", [*SMALL, *WARM, f"seed={seed}"])
    start = f"policy.folder={warm.policy_folder('warm').absolute()}"
    curves = {}
    for arm, reward in ARMS.items():
        folder = out / f"seed-{seed}" / arm.replace(" ", "-")
        run(folder, [*SMALL, *LEARN, reward, start, f"seed={seed}", f"rl.steps={steps}"])
        curves[arm] = Curve.read(folder / "rl" / "metrics.jsonl")
    return curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/format"))
    parser.add_argument("--steps", type=int, default=200, help="steps of each run")
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.steps} steps")
    print("| paid for | seed | step with 95 % valid | valid, first → last steps | exact match, first → last |")
    print("|---|---|---|---|---|", flush=True)
    sooner = 0
    for seed in given.seeds:
        curves = compare(given.out, seed, given.steps)
        for arm, curve in curves.items():
            cells = (arm, str(seed), str(curve.reached or "never"), ends(curve.valid), ends(curve.right))
            print(f"| {' | '.join(cells)} |", flush=True)
        outcome, form = (curves[arm].reached for arm in ARMS)
        sooner += form is not None and (outcome is None or form < outcome)
    print(f"the form is there sooner where it is paid: {sooner} of {len(given.seeds)} seeds")
    return 0 if sooner == len(given.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
