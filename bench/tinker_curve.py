"""Tinker: the learning curve of an adapter that a SkyRL server samples and trains, beside the same one in this process.

    .venv-tinker/bin/python -m bench.tinker_curve --steps 30 --seeds 3

A tiny Llama learns from demonstrations to answer every question with one of four words, drawn at random. GRPO then
learns which question wants which word: the share of right answers begins at about .25. The adapters of this process
begin as the server's.
"""

import argparse
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch
from tests.serve.live import EchoRetriever
from tests.training.test_rollout_servers import LIMITS, PROTOCOL, Training
from tests.training.test_tinker import Served, copy_adapter, skyrl
from tests.training.test_vllm import tiny_llama
from torch import Tensor

from coseek.agents.rollout import Agent, rollout
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.models.pretrained import load_model, save_model
from coseek.models.scripted import ScriptedModel
from coseek.models.tokenizer import HfTokenizer
from coseek.rewards.reward import Reward
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.loop import train_rl
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings, OptimiserSettings
from coseek.training.trainer.workers import ALONE

WORDS = ("red", "blue", "cat", "ada")
QUESTIONS = [Question(f"q{number}", f"Which word is number {number} ?", (WORDS[number % 4],)) for number in range(6)]
DEMONSTRATIONS = 96
SIZE = 6
"""Runs of a question in a step."""


def right(run: Trajectory) -> Reward:
    value = float(run.answer is not None and run.answer.strip() in run.question.answers)
    return Reward(value, {"exact_match": value})


def make_policy(folder: Path, updates: int = 150) -> Path:
    """A policy that answers with one of the words, whatever is asked."""
    policy = tiny_llama(folder)
    network, tokenizer, rng = load_model(policy, FLOAT32), HfTokenizer.load(policy), random.Random(0)
    model = ScriptedModel(lambda _: f"<answer> {rng.choice(WORDS)} </answer>", tokenizer)
    asked = [rng.choice(QUESTIONS) for _ in range(DEMONSTRATIONS)]
    runs = rollout(Agent(PROTOCOL, model), EchoRetriever(), asked, range(len(asked)), LIMITS)
    batch, settings = make_batch(runs), LearnerSettings(optimiser=OptimiserSettings(lr=3e-3), micro_batch_tokens=8192)
    learner = Policy(network, settings, updates)

    def loss(logprobs_bt: Tensor, _: Tensor) -> Tensor:
        return -logprobs_bt.sum() / batch.agent_BT.sum()

    for _ in range(updates):
        last = learner.forward_backward(batch, batch.agent_BT, loss)
        learner.optim_step()
    print(f"demonstrations: {last:.3f} nats a token after {updates} updates, {len(batch.ids_BT[0])} tokens a row")
    save_model(network, tokenizer, policy)
    return policy


class Curve(Callback):
    """Keeps the mean reward of every step, and the largest gap of log-probabilities."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.gaps: list[float] = []

    def after_step(self, report: StepReport) -> None:
        self.rewards.append(report.row["reward"])
        self.gaps.append(report.row["logprob_gap_max"])


def curve_of(training: Training) -> Curve:
    curve = Curve()
    rollouts = training.rollout
    train_rl(training.backend, QUESTIONS, rollouts, right, training.settings, training.folder, callbacks=[curve])
    return curve


def pairs(work: Path, policy: Path, url: str, steps: int, seeds: int) -> Iterator[tuple[Curve, Curve]]:
    """The curves of the server and of this process, for each seed."""
    for seed in range(seeds):
        learner = {"optimiser": {"lr": 3e-3, "warmup_updates": 0, "clip_norm": 0.0}, "lora": {"rank": 8, "seed": seed}}
        changes: dict[str, object] = {"steps": steps, "seed": seed, "questions_per_step": 6, "group_size": SIZE}
        changes |= {"monitor": {"probe_runs": 0}, "policy": learner}
        there = Served(work / f"there-{seed}", policy, url, **changes)
        here = Training(work / f"here-{seed}", policy, ahead=0, workers=ALONE, **changes)
        copy_adapter(there.tinker, here.local)
        found = curve_of(there), curve_of(here)
        for name, curve in zip(("server", "here"), found, strict=True):
            print(f"seed {seed}, {name:<6}: {' '.join(f'{reward:.2f}' for reward in curve.rewards)}", flush=True)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        work = Path(folder)
        policy = make_policy(work / "policy")
        with skyrl(policy, work, samples=len(QUESTIONS) * SIZE) as url:
            began = time.monotonic()
            found = list(pairs(work, policy, url, given.steps, given.seeds))
            print(f"{time.monotonic() - began:.0f} s for {given.seeds} seeds of {given.steps} steps, twice")
    print("steps      server                  this process")
    width = max(1, given.steps // 5)
    for first in range(0, given.steps, width):
        shown = [
            " ".join(f"{mean(curve.rewards[first : first + width]):.2f}" for curve in curves)
            for curves in zip(*found, strict=True)
        ]
        print(f"{first + 1:>3}–{min(first + width, given.steps):<3}    " + "    ".join(f"{one:<20}" for one in shown))
    print(f"largest gap of a token: {max(max(there.gaps) for there, _ in found):.2g} at the server")


if __name__ == "__main__":
    main()
