"""Kill test of a whole recipe: s3 in small, with its frozen generator, judge, baselines and cache, killed anywhere.

    OMP_NUM_THREADS=1 python -m bench.kill_s3 --runs 20 [--generator runs/generator/generator]

A tiny policy that has seen some demonstrations is trained once as `coseek train agent` does it (data, warm start,
baselines, reinforcement learning, table), undisturbed. Then the same run is started again and again, killed with
SIGKILL at a random moment of its time, and resumed. Compared are the weights after the warm start and at the end, all
metrics without their times, every baseline and verdict, every text in the frozen models' cache, and the table. Every
run is a process of its own. Exits 1 when any of them differs.

Without `--generator` one is trained in small; it is wrong so often that few runs gain anything.
"""

import argparse
import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
from bench.killing import Kills, Told, digest, timeless

from coseek.core.files import read_jsonl
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import measure, write_results
from coseek.pipelines.generator import GeneratorTraining
from coseek.pipelines.generator_recipe import GeneratorRecipe
from coseek.pipelines.grader_settings import CACHE

SMALL = (
    "data.world={seed: 3, size: tiny, train: 80, dev: 8, test: 8, hop_mix: [0.5, 0.5]}",
    "data.unseen=null",
    "limits={max_turns: 2, passages_per_search: 3, max_turn_tokens: 40, max_tokens: 512}",
    "warm_start.world={size: tiny, train: 40, dev: 0, test: 0}",
    "warm_start.worlds=2",
    "graders.baseline.passages=1",
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


def small(generator: Path, *more: str) -> AgentRecipe:
    parts = (f"graders.generator.model={generator}", f"policy.folder={generator}")
    return load_recipe("s3-laptop", [*SMALL, *parts, *more])


def tiny_generator(folder: Path, **sft: object) -> Path:
    """A generator after a few steps; `sft` changes how many."""
    phases = [{"until": 1.0, "hops": {0: 1.0}}]
    recipe = GeneratorRecipe.model_validate(
        {
            "worlds": 2,
            "world": {"size": "tiny", "train": 60, "dev": 0, "test": 0},
            "held_out": {"seed": 8, "size": "tiny", "train": 0, "dev": 8, "test": 8},
            "laptop": {"hidden": 64, "layers": ["conv", "full_attention"], "feed_forward": 128, "vocabulary": 1500},
            "sft": {"steps": 60, "repeat_steps": 20, "varied_steps": 0, "rounds": 1, "curriculum": phases, **sft},
            "max_answer_tokens": 24,
            "threads": 1,
            "table": {"dev_questions": 4},
        }
    )  # fmt: skip
    training = GeneratorTraining(recipe, folder)
    training.begin(resume=True)
    training.train()
    return training.trained_folder


def prepare(base: Path, generator: Path | None, steps: int) -> AgentRecipe:
    """The recipe of every run: it starts from a policy that has seen demonstrations for so many steps."""
    named = generator or tiny_generator(base / "generator")
    sft = f"warm_start.sft={{steps: {steps}, repeat_steps: 20, rounds: 1, tokens_per_step: 2000, gate: null}}"
    first = AgentTraining(small(named, "learn=demonstrations", "reward={gold_recall: 1.0}", sft), base / "first")
    first.begin(resume=True)
    first.train()
    return small(named, *LEARN, f"policy.folder={first.policy_folder('warm')}")


def train(recipe: AgentRecipe, folder: Path, resume: bool, progress: Told) -> None:
    """What `coseek train agent` does, without a terminal."""
    training = AgentTraining(recipe, folder, progress)
    training.begin(resume)
    training.train()
    write_results(training, measure(training))


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


def texts_of(cache: Path) -> list[tuple[str, str]]:
    """What the frozen models wrote, by key."""
    with closing(sqlite3.connect(cache)) as database:
        return sorted(database.execute("SELECT key, text FROM texts"))


def check_moved(folder: Path, expected: dict[str, str]) -> None:
    """Comparing weights that never moved would say nothing."""
    gains = [row.get("reward/gbr/agent", 0.0) for _, row in read_jsonl(folder / "rl" / "metrics.jsonl")]
    if expected["weights of warm"] == expected["weights of trained"]:
        raise RuntimeError("reinforcement learning changed no weight")
    right = ", ".join(f"{gain:.2f}" for gain in gains)
    print(f"the generator is right in {right} of a step's runs; {len(texts_of(folder / CACHE))} texts in its cache")


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
        kills = Kills(partial(train, recipe), outcome, check_moved)
        same = kills.same(base, given.runs, given.seed, given.until)
    print(f"{same} of {given.runs} identical")
    return 0 if same == given.runs else 1


if __name__ == "__main__":
    sys.exit(main())
