"""What one of several workers runs in `test_workers.py`: a short training run for every way of holding the weights."""

import sys
from pathlib import Path
from typing import Literal, TypeAlias

import torch
import torch.distributed as dist
from tests.training.echo import QUESTIONS, reward, sampling, settings_of
from tests.training.tiny import tiny_model

from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.settings import LearnerSettings, LoraSettings, OptimiserSettings
from coseek.training.trainer.workers import Workers, workers_here

Kind: TypeAlias = Literal["ddp", "fsdp2"]

ALGORITHMS = ("grpo", "ppo", "lora")
KINDS: tuple[Kind, ...] = ("ddp", "fsdp2")


def settings_for(algorithm: str, kind: Kind) -> RlSettings:
    """Two steps of one update, cut into many micro-batches of which the workers get unequal numbers."""
    learner = LearnerSettings(
        # Adam divides by the gradient's size: without `eps` the rounding of a gradient near 0 would be a whole step.
        optimiser=OptimiserSettings(lr=1e-2, eps=1e-4, weight_decay=0.1),
        micro_batch_tokens=30,
        workers=kind,
        checkpointing=algorithm == "ppo",
        lora=LoraSettings(rank=2) if algorithm == "lora" else None,
    )
    return settings_of(
        "ppo" if algorithm == "ppo" else "grpo",
        steps=2,
        minibatches=1,
        checkpoint_every=1,
        kl=0.01,
        kl_in="reward" if algorithm == "ppo" else "loss",
        policy=learner,
        critic=learner.model_copy(update={"lora": None}),
    )


def train(algorithm: str, kind: Kind, folder: Path, workers: Workers, steps: int = 2, resume: bool = False) -> Policy:
    settings = settings_for(algorithm, kind).model_copy(update={"steps": steps})
    policy = Policy(tiny_model(), settings.policy, settings.updates, workers=workers)
    train_rl(LocalBackend(policy, settings), QUESTIONS[:3], sampling(policy), reward, settings, folder, resume=resume)
    return policy


if __name__ == "__main__":
    torch.set_num_threads(1)
    here = workers_here()
    for kind in KINDS:
        for algorithm in ALGORITHMS:
            trained = train(algorithm, kind, Path(sys.argv[1]) / f"{algorithm}-{kind}", here)
            if here.first:
                torch.save(trained.module.state_dict(), Path(sys.argv[1]) / f"{algorithm}-{kind}.pt")
    dist.destroy_process_group()
