"""Kill test of a whole recipe: s3 in small, with its frozen generator, judge, baselines and cache, killed anywhere.

    OMP_NUM_THREADS=1 python bench/kill_s3.py --runs 20 [--generator runs/generator/generator]

A tiny policy that has seen some demonstrations is trained once as `coseek train agent` does it (data, warm start,
baselines, reinforcement learning, table), undisturbed. Then the same run is started again and again, killed with
SIGKILL at a random moment of its time, and resumed. Compared are the weights after the warm start and at the end, all
metrics without their times, every baseline and verdict, every text in the frozen models' cache, and the table. Every
run is a process of its own. Exits 1 when any of them differs.

Without `--generator` one is trained in small; it is wrong so often that few runs gain anything.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeAlias

import torch

from coseek.data.files import JsonObject, read_jsonl
from coseek.training.agent import AgentTraining
from coseek.training.frozen import CACHE
from coseek.training.generator import GeneratorTraining
from coseek.training.generator_recipe import GeneratorRecipe
from coseek.training.recipe import AgentRecipe, load_recipe
from coseek.training.results import measure, write_results

SMALL = (
    "data.world={seed: 3, size: tiny, train: 80, dev: 8, test: 8, hop_mix: [0.5, 0.5]}",
    "data.unseen=null",
    "limits={max_turns: 2, passages_per_search: 3, max_turn_tokens: 40, max_tokens: 512}",
    "warm_start.world={size: tiny, train: 40, dev: 0, test: 0}",
    "warm_start.worlds=2",
    "frozen.baseline.passages=1",
    "select.most=24",
    "table={questions: 6, dev_questions: 6, rag_passages: 3, wide_rag: 6}",
    "threads=1",
)
LEARN = (
    "warm_start.sft={steps: 6, repeat_steps: 0, rounds: 1, tokens_per_step: 1500, checkpoint_every: 2, log_every: 1}",
    "reward={gbr: 1.0, gold_recall: 0.5, valid: 0.3}",
    "rl={steps: 5, questions_per_step: 4, group_size: 3, checkpoint_every: 1, evaluate_every: 2}",
)
"""Parts beside the gain that even a barely trained policy gets now and then, so that groups differ and weights move."""
Mark: TypeAlias = tuple[float, str]
"""Seconds since the run began, and what it had just done."""


def small(generator: Path, *more: str) -> AgentRecipe:
    parts = (f"frozen.generator.model={generator}", f"policy.folder={generator}")
    return load_recipe("s3-laptop", [*SMALL, *parts, *more])


def tiny_generator(folder: Path) -> Path:
    """A generator after a few lessons."""
    recipe = GeneratorRecipe.model_validate(
        {
            "worlds": 2,
            "world": {"size": "tiny", "train": 60, "dev": 0, "test": 0},
            "held_out": {"seed": 8, "size": "tiny", "train": 0, "dev": 8, "test": 8},
            "laptop": {"hidden": 64, "layers": ["conv", "full_attention"], "feed_forward": 128, "vocabulary": 1500},
            "sft": {"steps": 60, "repeat_steps": 20, "rounds": 1, "curriculum": [{"until": 1.0, "hops": {0: 1.0}}]},
            "max_answer_tokens": 24,
            "threads": 1,
            "table": {"dev_questions": 4},
        }
    )  # fmt: skip
    training = GeneratorTraining(recipe, folder)
    training.begin(resume=True)
    training.train()
    return training.generator_folder


def prepare(base: Path, generator: Path | None, steps: int) -> AgentRecipe:
    """The recipe of every run: it starts from a policy that has seen demonstrations for so many steps."""
    named = generator or tiny_generator(base / "generator")
    sft = f"warm_start.sft={{steps: {steps}, repeat_steps: 20, rounds: 1, tokens_per_step: 2000, gate: null}}"
    first = AgentTraining(small(named, "learn=demonstrations", "reward={gold_recall: 1.0}", sft), base / "first")
    first.begin(resume=True)
    first.train()
    return small(named, *LEARN, f"policy.folder={first.policy_folder('warm')}")


class Told:
    """Writes down on a pipe what the run does, so that the other process can time its kill."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._stage = pipe, ""

    def stage(self, name: str, total: int) -> None:
        self._stage = name
        self.advance(0)

    def advance(self, done: int, note: str = "") -> None:
        os.write(self._pipe, f"{self._stage} {done}\n".encode())

    def say(self, line: str) -> None:
        self.advance(-1)


def train(recipe: AgentRecipe, folder: Path, resume: bool, progress: Told) -> None:
    """What `coseek train agent` does, without a terminal."""
    training = AgentTraining(recipe, folder, progress)
    training.begin(resume)
    training.train()
    write_results(training, measure(training))


@dataclass
class Child:
    """A run in a process of its own: a fork, which saves bringing torch twenty times."""

    pid: int
    marks: TextIO
    began: float

    @classmethod
    def start(cls, work: Callable[[Told], None]) -> "Child":
        reading, writing = os.pipe()
        began, pid = time.perf_counter(), os.fork()
        if pid == 0:
            os.close(reading)
            code = 1
            try:
                work(Told(writing))
                code = 0
            except Exception:  # noqa: BLE001 (said here: a fork must not go on with what its parent was doing)
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(writing)
        return cls(pid, os.fdopen(reading), began)

    def end(self) -> int:
        """Wait for it; returns its exit status, below 0 for a signal."""
        with self.marks:
            for _ in self.marks:
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def whole_run(recipe: AgentRecipe, folder: Path) -> list[Mark]:
    """A run that nobody disturbs; returns what it did when, its end included."""
    child = Child.start(lambda told: train(recipe, folder, False, told))
    marks = [(time.perf_counter() - child.began, line.strip()) for line in child.marks]
    if child.end():
        raise RuntimeError("the undisturbed run failed")
    return [*marks, (time.perf_counter() - child.began, "the end")]


def killed_run(recipe: AgentRecipe, folder: Path, marks: list[Mark], rng: random.Random, until: str = "") -> str | None:
    """A run that is killed at a random moment and resumed; returns what it had done by then, `None` if it was over.

    The moment is drawn from the time of the undisturbed run, or of its stages before `until`, and found again by what
    the run has done: the machine may be busier now.
    """
    at = rng.uniform(0.0, next((time for time, what in marks if what.startswith(f"{until} ")), marks[-1][0]))
    before = [mark for mark in marks if mark[0] <= at]
    child = Child.start(lambda told: train(recipe, folder, False, told))
    for _ in before:
        next(child.marks, None)
    time.sleep(at - (before[-1][0] if before else 0.0))
    os.kill(child.pid, signal.SIGKILL)
    if child.end() != -signal.SIGKILL:
        shutil.rmtree(folder)
        return None
    resumed = Child.start(lambda told: train(recipe, folder, True, told))
    if resumed.end():
        raise RuntimeError(f"the run in {folder} did not go on")
    return before[-1][1] if before else "nothing"


def outcome(folder: Path) -> dict[str, str]:
    """What a run left behind → a digest of it, times left out."""
    found = {
        f"weights of {name}": digest((folder / "policy" / name / "model.safetensors").read_bytes())
        for name in ("warm", "trained")
    }
    for path in sorted(folder.glob("warm-start/round-*/metrics.jsonl")) + [folder / "rl" / "metrics.jsonl"]:
        rows = [timeless(row) for _, row in read_jsonl(path)]
        found[f"metrics of {path.parent.name}"] = digest(json.dumps(rows).encode())
    for path in (folder / "baselines.jsonl", *folder.glob("verdict.*.jsonl")):
        # `by` is for people; of the oracle it says the folder of its world.
        lines = sorted(json.dumps({**row, "by": None}) for _, row in read_jsonl(path))
        found[path.name.partition(".")[0]] = digest("\n".join(lines).encode())
    found["cache"] = digest(json.dumps(texts_of(folder / CACHE)).encode())
    found["table"] = digest((folder / "table.md").read_bytes())
    return found


def timeless(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if not name.endswith("_s")}


def texts_of(cache: Path) -> list[tuple[str, str]]:
    """What the frozen models wrote, by key."""
    with closing(sqlite3.connect(cache)) as database:
        return sorted(database.execute("SELECT key, text FROM texts"))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def check_moved(folder: Path, expected: dict[str, str]) -> None:
    """Comparing weights that never moved would say nothing."""
    gains = [row.get("reward/gbr/agent", 0.0) for _, row in read_jsonl(folder / "rl" / "metrics.jsonl")]
    if expected["weights of warm"] == expected["weights of trained"]:
        raise RuntimeError("reinforcement learning changed no weight")
    right = ", ".join(f"{gain:.2f}" for gain in gains)
    print(f"the generator is right in {right} of a step's runs; {len(texts_of(folder / CACHE))} texts in its cache")


def compare(recipe: AgentRecipe, base: Path, runs: int, rng: random.Random, until: str = "") -> int:
    """Print one line a kill; returns how many runs ended as the undisturbed one."""
    marks = whole_run(recipe, base / "whole")
    expected = outcome(base / "whole")
    print(f"torch {torch.__version__}, undisturbed {marks[-1][0]:.1f} s; compared: {', '.join(expected)}", flush=True)
    check_moved(base / "whole", expected)
    killed = same = 0
    while killed < runs:
        folder = base / f"killed-{killed}"
        reached = killed_run(recipe, folder, marks, rng, until)
        if reached is None:  # it was over before the kill
            continue
        found = outcome(folder)
        other = sorted(name for name in expected if found.get(name) != expected[name])
        same += not other
        killed += 1
        verdict = f"DIFFERENT: {', '.join(other)}" if other else "same"
        print(f"{killed:>3}  killed after {reached:<24} {verdict}", flush=True)
        if not other:
            shutil.rmtree(folder)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="kills")
    parser.add_argument("--generator", type=Path, help="a folder that `coseek train generator` made")
    parser.add_argument("--steps", type=int, default=200, help="steps of demonstrations before every run")
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments")
    parser.add_argument(
        "--until", default="", help="kill only before this stage, such as table: it is half of the time"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the runs, of which those that differ are kept")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        base = (given.keep or Path(scratch)).absolute()
        recipe = prepare(base, given.generator.absolute() if given.generator else None, given.steps)
        same = compare(recipe, base, given.runs, random.Random(given.seed), given.until)
    print(f"{same} of {given.runs} identical")
    return 0 if same == given.runs else 1


if __name__ == "__main__":
    sys.exit(main())
