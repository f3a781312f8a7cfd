"""A small run of the s3 recipe with its frozen generator, judge, baselines and cache, for tests and benches."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.digests import digest, timeless
from tests.pipelines.small_together import LENGTH

from coseek.core.files import read_jsonl
from coseek.core.progress import Progress
from coseek.lab.pipelines.reader import GeneratorTraining
from coseek.lab.pipelines.reader_recipes import GeneratorRecipe
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.pipelines.agent_results import measure, write_results
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
    f"reward={{gbr: 1.0, gold_recall: 0.5, valid: 0.3, {LENGTH}: 0.1}}",
    "rl={steps: 5, questions_per_step: 4, group_size: 3, checkpoint_every: 1, evaluate_every: 2}",
)
"""Sampled texts differ in length, so groups have a spread and weights move, whatever the policy has learnt."""


def small(generator: Path, *more: str) -> AgentRecipe:
    parts = (f"graders.generator.model={generator}", f"policy.folder={generator}")
    return load_recipe("s3-laptop", [*SMALL, *parts, *more])


def tiny_generator(folder: Path, **sft: object) -> Path:
    """A generator after a few steps; `sft` changes how many."""
    phases = [{"until": 1.0, "hops": {0: 1.0}}]
    recipe = GeneratorRecipe.model_validate(
        {
            "start": None,
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


def train(recipe: AgentRecipe, folder: Path, resume: bool, progress: Progress) -> None:
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
