"""Kill test: a training run that is killed and resumed ends with the same weights, to the byte, as one that was not.

    python bench/kill.py --runs 20

Makes a tiny world and a tiny policy, trains it once to the end by GRPO and once by PPO, then starts the same runs
again, kills each with SIGKILL at a random moment, resumes it to the end and compares the final weights and metrics.
Every run is a process of its own. Exits 1 when any of them differs.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.agents.scripted.expert import ExpertAgent
from coseek.agents.scripted_model import ScriptedAgentModel
from coseek.core.progress import NoProgress
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.pretrained import load_model
from coseek.models.sampler import SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.rewards.reward import make_reward
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.curriculum import draw_any
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import SftSettings
from coseek.training.trainer.policy import Policy
from coseek.world.settings import WorldSettings
from coseek.world.world import World, make_world

ALGORITHMS = ("grpo", "ppo")
LIMITS = Limits(max_turns=3, passages_per_search=1, max_turn_tokens=40, max_observation_tokens=80, max_tokens=256)
WORLD = WorldSettings(size="tiny", train=200, dev=0, test=0, hop_mix=(1.0,), comparison=0.0, constraint=0.0)
REWARD = make_reward({"exact_match": 1.0, "gold_recall": 0.5, "valid": 0.3, "searches": -0.05})
"""Parts that even a barely trained policy gets now and then, so that groups differ and weights move."""
STARTED = "training"


def protocol() -> Protocol:
    return load_protocol("search-r1", "laptop")


def prepare(base: Path, sft_steps: int = 60) -> None:
    """`base/policy`: a tiny policy after a short warm start, enough to write the protocol's form."""
    world, spoken = make_world(WORLD), protocol()
    texts = [passage.contents for passage in world.corpus] + [
        question.question for question in world.questions["train"]
    ]
    shape = LaptopSettings(hidden=64, layers=("conv", "full_attention"), feed_forward=128, vocabulary=1200)
    make_policy(shape, texts, spoken.grammar.special_tokens, base / "untrained", seed=0)
    tokenizer = HfTokenizer.load(base / "untrained")
    model = load_model(base / "untrained", FLOAT32)
    runs = demonstrations(world, spoken, tokenizer)
    settings = SftSettings(steps=sft_steps, repeat_steps=0, tokens_per_step=2000, checkpoint_every=1000)
    policy = Policy(model, settings.learner, 0)
    train_sft(policy, draw_any(runs), settings, base / "sft")
    policy.save(base / "policy", tokenizer.save)


def demonstrations(world: World, spoken: Protocol, tokenizer: HfTokenizer) -> list[Trajectory]:
    agent = Agent(spoken, ScriptedAgentModel(ExpertAgent(), spoken, tokenizer))
    questions = world.questions["train"]
    runs = rollout(agent, Bm25.over(world.corpus), questions, range(len(questions)), LIMITS)
    return [run for run in runs if not run.stop.is_fault]


def settings_for(algorithm: str, steps: int) -> RlSettings:
    return RlSettings.model_validate(
        {
            "algorithm": algorithm,
            "steps": steps,
            "questions_per_step": 8,
            "group_size": 4,
            "checkpoint_every": 1,
            "kl": 0.01,
            "kl_in": "loss" if algorithm == "grpo" else "reward",
            "policy": {"optimiser": {"lr": 1e-3, "decay": "cosine"}},
        }
    )


class Stopwatch(NoProgress):
    """Says on standard output when training proper begins, so that the other process can time its kill."""

    def stage(self, name: str, total: int) -> None:
        print(STARTED, flush=True)


def train(base: Path, folder: Path, algorithm: str, steps: int, resume: bool) -> None:
    """One run, through the real sampler and driver; its weights end up in `folder/policy`."""
    world, spoken = make_world(WORLD), protocol()
    tokenizer, model = HfTokenizer.load(base / "policy"), load_model(base / "policy", FLOAT32)
    retriever = Bm25.over(world.corpus)
    settings = settings_for(algorithm, steps)
    policy = Policy(model, settings.policy, settings.updates, settings.temperature)
    agent = Agent(spoken, policy.sampler(tokenizer, spoken.grammar.stops, SamplerSettings()))

    def runs(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        return rollout(agent, retriever, questions, seeds, LIMITS)

    train_rl(
        LocalBackend(policy, settings),
        world.questions["train"],
        runs,
        REWARD,
        settings,
        folder,
        resume=resume,
        progress=Stopwatch(),
    )
    policy.save(folder / "policy", tokenizer.save)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind."""

    weights: str
    """sha256 of the weights' file."""
    metrics: str
    """sha256 of the metrics without the times in them."""


def weights_sum(policy: Path) -> str:
    return hashlib.sha256((policy / "model.safetensors").read_bytes()).hexdigest()


def outcome(folder: Path) -> Outcome:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{name: value for name, value in row.items() if not name.endswith("_s")} for row in rows]
    return Outcome(weights_sum(folder / "policy"), hashlib.sha256(json.dumps(timeless).encode()).hexdigest())


def start(base: Path, folder: Path, algorithm: str, steps: int, resume: bool) -> "subprocess.Popen[str]":
    """A child process that trains; it has said that training begins when this returns."""
    command = [sys.executable, __file__, "--child", algorithm, str(base), str(folder), "--steps", str(steps)]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    child = subprocess.Popen(
        [*command, "--resume"] if resume else command, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    if STARTED not in child.stdout.readline():
        child.communicate()
        raise RuntimeError(f"the {algorithm} run in {folder} ended with {child.returncode} before it trained")
    return child


def finish(child: "subprocess.Popen[str]") -> None:
    child.communicate()
    if child.returncode:
        raise RuntimeError(f"a training run ended with {child.returncode}")


def whole_run(base: Path, folder: Path, algorithm: str, steps: int) -> float:
    """A run that nobody disturbs; returns its seconds of training."""
    child = start(base, folder, algorithm, steps, resume=False)
    began = time.perf_counter()
    finish(child)
    return time.perf_counter() - began


def killed_run(base: Path, folder: Path, algorithm: str, steps: int, kill_after_s: float) -> int:
    """A run that is killed after so many seconds of training and resumed; returns the step it had logged by then."""
    child = start(base, folder, algorithm, steps, resume=False)
    time.sleep(kill_after_s)
    child.kill()
    child.communicate()
    metrics = folder / "metrics.jsonl"
    logged = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    finish(start(base, folder, algorithm, steps, resume=True))
    return logged


def compare(base: Path, algorithm: str, steps: int, runs: int, rng: random.Random) -> bool:
    """Print one line a kill; True when every outcome is that of the undisturbed run."""
    whole = base / algorithm / "whole"
    seconds = whole_run(base, whole, algorithm, steps)
    expected = outcome(whole)
    if expected.weights == weights_sum(base / "policy"):
        raise RuntimeError(f"the {algorithm} run changed no weight, so comparing weights would say nothing")
    print(f"{algorithm}: {steps} steps in {seconds:.1f} s undisturbed, weights {expected.weights[:12]}", flush=True)
    same = 0
    for number in range(runs):
        folder = base / algorithm / f"killed-{number}"
        kill_after_s = rng.uniform(0.0, seconds)
        logged = killed_run(base, folder, algorithm, steps, kill_after_s)
        found = outcome(folder)
        same += found == expected
        verdict = "same" if found == expected else "DIFFERENT"
        line = f"  {number + 1:>3}  killed after {kill_after_s:6.2f} s, {logged:>3} steps logged"
        print(f"{line}  weights {found.weights[:12]}  {verdict}", flush=True)
    print(f"{algorithm}: {same} of {runs} byte-identical", flush=True)
    return same == runs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="kills for each algorithm")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run")
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments")
    parser.add_argument("--child", nargs=3, metavar=("ALGORITHM", "BASE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        algorithm, base, folder = given.child
        train(Path(base), Path(folder), algorithm, given.steps, given.resume)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        prepare(Path(scratch))
        print(f"{given.runs} kills each, torch {torch.__version__}, {torch.get_num_threads()} threads", flush=True)
        rng = random.Random(given.seed)
        fine = [compare(Path(scratch), algorithm, given.steps, given.runs, rng) for algorithm in ALGORITHMS]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
