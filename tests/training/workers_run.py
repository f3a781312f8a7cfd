"""What one of several workers runs in `test_workers.py`: each mode is a function of this module."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from tests.training.echo import QUESTIONS, reward, sampling, settings_of
from tests.training.tiny import random_trajectories, tiny_model
from torch import Tensor, nn

from coseek.training.learner import workers
from coseek.training.learner.batch import Batch
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, LoraSettings, Offloaded, OptimizerSettings
from coseek.training.learner.workers import Workers, workers_here
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.trainer import train_rl
from coseek.training.sft.settings import SftSettings, draw_any
from coseek.training.sft.trainer import train_sft

# so that tiny models have large weights, and several messages of small ones
workers.MIN_OWN_MESSAGE, workers.BUCKET_SIZE = 300, 4
Kind: TypeAlias = Literal["ddp", "fsdp2"]

ALGORITHMS = ("ppo", "lora")
"""PPO with a critic and a reference of its own; GRPO with adapters and its KL in the loss."""
KINDS: tuple[Kind, ...] = ("ddp", "fsdp2")
OFFLOADED: tuple[tuple[str, tuple[Offloaded, ...]], ...] = (
    ("ppo", ("moments", "reference")),
    ("ppo", ("weights", "reference")),
    ("lora", ("weights",)),
)
"""Algorithms, and what lies in the host's memory. Each run stops after its first step and goes on."""


def settings_for(algorithm: str, kind: Kind) -> RlSettings:
    """Two steps of one update, cut into many micro-batches of which the workers get unequal numbers."""
    learner = LearnerSettings(
        # Adam divides by the gradient's size: without `eps` the rounding of a gradient near 0 would be a whole step.
        optimizer=OptimizerSettings(lr=1e-2, eps=1e-4, weight_decay=0.1),
        micro_batch_tokens=30,
        strategy=kind,
        gradient_checkpointing=algorithm == "ppo",
        lora=LoraSettings(rank=2) if algorithm == "lora" else None,
    )
    return settings_of(
        "ppo" if algorithm == "ppo" else "grpo",
        steps=2,
        num_minibatches=1,
        checkpoint_every=1,
        kl_coef=0.01,
        kl_location="reward" if algorithm == "ppo" else "loss",
        policy=learner,
        critic=learner.model_copy(update={"lora": None}),
    )


def train(
    algorithm: str, kind: Kind, folder: Path, workers: Workers, steps: int = 2, resume: bool = False,
    offload: tuple[Offloaded, ...] = (),
) -> Policy:  # fmt: skip
    settings = settings_for(algorithm, kind)
    own = {name: getattr(settings, name).model_copy(update={"offload": offload}) for name in ("policy", "critic")}
    settings = settings.model_copy(update={"steps": steps, **own})
    policy = Policy(tiny_model(), settings.policy, settings.total_updates, workers=workers)
    train_rl(LocalBackend(policy, settings), QUESTIONS[:3], sampling(policy), reward, settings, folder, resume=resume)
    return policy


def keep(policy: Policy, path: Path) -> None:
    """The first worker writes the whole weights."""
    weights = policy.whole_model().state_dict()
    if policy.workers.is_main:
        torch.save(weights, path)


class CountedPolicy(Policy):
    """A policy that counts its passes."""

    passes = 0

    def outputs(self, entry: nn.Module, part: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        self.passes += 1
        return super().outputs(entry, part, target_mask_BT, entropy)


def imitate(kind: Kind, folder: Path, workers: Workers, steps: int = 6) -> CountedPolicy:
    """Two rounds of supervised training; every worker evaluates, with the weights of the moment."""
    runs = random_trajectories(12, random.Random(0))
    learner = settings_for("grpo", kind).policy
    tree = {"steps": steps, "tokens_per_step": 90, "repeat_steps": 2, "repeat_tokens": 64, "repeat_length": 8,
            "learner": learner, "log_every": 1, "gate": 2.0, "rounds": 2}  # fmt: skip
    policy = CountedPolicy(tiny_model(), learner, 0, workers=workers)
    model = policy.whole_model()

    def evaluate(step: int) -> Mapping[str, float]:
        with torch.no_grad():
            return {"exact_match": float(model(input_ids=torch.arange(2, 8)[None]).logits.mean())}

    train_sft(policy, draw_any(runs), SftSettings.model_validate(tree), folder, resume=True, evaluate=evaluate)
    policy.refresh()
    return policy


def run_all(folder: Path, here: Workers) -> None:
    """Every algorithm with every way of holding the weights; the policies are saved as folders, too."""
    for kind in KINDS:
        taught = imitate(kind, folder / f"sft-{kind}", here)
        keep(taught, folder / f"sft-{kind}.pt")
        torch.save(here.gather(taught.passes), folder / f"sft-{kind}-passes.pt")
        for algorithm in ALGORITHMS:
            trained = train(algorithm, kind, folder / f"{algorithm}-{kind}", here)
            keep(trained, folder / f"{algorithm}-{kind}.pt")
            trained.save(folder / f"{algorithm}-{kind}-policy")
        stop_and_go_on(kind, folder, here)
    for algorithm, offload in OFFLOADED:
        path = folder / f"{algorithm}-{'-'.join(offload)}"
        train(algorithm, "fsdp2", path, here, steps=1, offload=offload)
        keep(train(algorithm, "fsdp2", path, here, resume=True, offload=offload), folder / f"{path.name}.pt")


def go_on(folder: Path, here: Workers) -> None:
    """A third step of every run that lies in the folder."""
    for path in sorted(path for path in folder.iterdir() if (path / "checkpoints").is_dir()):
        algorithm, _, kind = path.name.rpartition("-")
        keep(
            train(algorithm, "ddp" if kind == "ddp" else "fsdp2", path, here, 3, resume=True),
            folder / f"{path.name}.pt",
        )


def stop_and_go_on(kind: Kind, folder: Path, here: Workers) -> None:
    """Three steps without a stop, and the third of a run that stopped after two."""
    if here.is_main:
        shutil.copytree(folder / f"ppo-{kind}", folder / f"parts-{kind}")
    here.barrier()
    keep(train("ppo", kind, folder / f"whole-{kind}", here, 3), folder / f"whole-{kind}.pt")
    keep(train("ppo", kind, folder / f"parts-{kind}", here, 3, resume=True), folder / f"parts-{kind}.pt")


def in_worker(mode: Callable[[Path, Workers], None], folder: Path) -> None:
    """What `run_workers` is given."""
    mode(folder, workers_here())
