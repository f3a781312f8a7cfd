"""Many workers make the update that one makes."""

import json
import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
import torch
from hypothesis import given, strategies as st
from tests.digests import timeless
from tests.processes import run_workers
from tests.training.echo import QUESTIONS, reward, sampling, settings_of
from tests.training.tiny import random_trajectories, tiny_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from coseek.models.lora import merged_state_dict
from coseek.training.learner import workers
from coseek.training.learner.batch import Batch
from coseek.training.learner.logprobs import Entropy
from coseek.training.learner.policy import ADAPTER, Policy
from coseek.training.learner.settings import LearnerSettings, LoraSettings, Offloaded, OptimizerSettings
from coseek.training.learner.workers import ALONE, Workers, workers_here
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import SftSettings, draw_any

# so that tiny models have large weights, and several messages of small ones
workers.MIN_OWN_MESSAGE, workers.BUCKET_SIZE = 300, 4
Kind: TypeAlias = Literal["ddp", "fsdp2"]

ALGORITHMS = ("ppo", "lora")
"""PPO with a critic and a reference; GRPO with adapters and its KL in the loss."""
KINDS: tuple[Kind, ...] = ("ddp", "fsdp2")
OFFLOADED: tuple[tuple[str, tuple[Offloaded, ...]], ...] = (
    ("ppo", ("moments", "reference")),
    ("ppo", ("weights", "reference")),
    ("lora", ("weights",)),
)
"""Algorithms, and what is offloaded. Each training stops after its first step and is resumed."""


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
        "ppo" if algorithm == "ppo" else "grpo", steps=2, num_minibatches=1, group_size=4, checkpoint_every=1,
        kl_coef=0.01, kl_location="reward" if algorithm == "ppo" else "loss", policy=learner,
        critic=learner.model_copy(update={"lora": None}),
    )  # fmt: skip


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

    def outputs(self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        self.passes += 1
        return super().outputs(batch, target_mask_BT, entropy)


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
    stop_and_go_on(folder, here)
    for algorithm, offload in OFFLOADED:
        path = folder / f"{algorithm}-{'-'.join(offload)}"
        train(algorithm, "fsdp2", path, here, steps=1, offload=offload)
        keep(train(algorithm, "fsdp2", path, here, resume=True, offload=offload), folder / f"{path.name}.pt")


def go_on(folder: Path, here: Workers) -> None:
    """Take a third step of every training in the folder."""
    for path in sorted(path for path in folder.iterdir() if (path / "checkpoints").is_dir()):
        algorithm, _, kind = path.name.rpartition("-")
        keep(
            train(algorithm, "ddp" if kind == "ddp" else "fsdp2", path, here, 3, resume=True),
            folder / f"{path.name}.pt",
        )


def stop_and_go_on(folder: Path, here: Workers) -> None:
    """Three steps without a stop, and the third of a run that stopped after two."""
    if here.is_main:
        shutil.copytree(folder / "ppo-fsdp2", folder / "parts")
    here.barrier()
    keep(train("ppo", "fsdp2", folder / "whole", here, 3), folder / "whole.pt")
    keep(train("ppo", "fsdp2", folder / "parts", here, 3, resume=True), folder / "parts.pt")


def in_worker(mode: Callable[[Path, Workers], None], folder: Path) -> None:
    """What `run_workers` is given."""
    mode(folder, workers_here())


TOLERANCE = 1e-5


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_the_strided_shares_of_all_workers_are_everything_once(items: list[int], world: int) -> None:
    shares = [list(Workers(rank, world).strided_share(items)) for rank in range(world)]
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two workers made."""
    folder = tmp_path_factory.mktemp("two")
    run_workers(2, in_worker, run_all, folder)
    return folder


def gap(weights: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The largest difference of two sets of weights."""
    assert weights.keys() == others.keys()
    return max(float((weight - others[name]).abs().max()) for name, weight in weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_two_workers_end_with_the_weights_of_one(two_workers: Path, tmp_path: Path, algorithm: str, kind: Kind) -> None:
    # A whole copy of a sharded module has its adapters merged.
    weights = merged_state_dict if kind == "fsdp2" else nn.Module.state_dict
    trained = train(algorithm, kind, tmp_path, ALONE)
    alone = weights(trained.module)
    before = weights(train(algorithm, kind, tmp_path / "before", ALONE, steps=0).module)
    moved, apart = gap(alone, before), gap(alone, torch.load(two_workers / f"{algorithm}-{kind}.pt"))
    print(f"{algorithm}, {kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
    assert apart < TOLERANCE < moved / 100
    rows, others = (_timeless(folder / "metrics.jsonl") for folder in (tmp_path, two_workers / f"{algorithm}-{kind}"))
    assert len(rows) == len(others) == 2
    for row, other in zip(rows, others, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    policy = two_workers / f"{algorithm}-{kind}-policy"
    saved = AutoModelForCausalLM.from_pretrained(policy)
    assert type(saved).__name__ == "Lfm2ForCausalLM" and (policy / ADAPTER).exists() == (algorithm == "lora")
    assert gap(merged_state_dict(trained.module), saved.state_dict()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_supervised_training_by_two_workers_is_that_of_one_and_both_work(
    two_workers: Path, tmp_path: Path, kind: Kind
) -> None:
    alone = imitate(kind, tmp_path, ALONE).module.state_dict()
    moved = gap(alone, tiny_model().state_dict())
    apart = gap(alone, torch.load(two_workers / f"sft-{kind}.pt"))
    print(f"sft, {kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
    assert apart < TOLERANCE < moved / 100
    passes = torch.load(two_workers / f"sft-{kind}-passes.pt")
    assert len(passes) == 2 and min(passes) > 0.7 * max(passes)
    for name in ("round-1", "round-2"):
        rows, others = (
            _timeless(folder / name / "metrics.jsonl") for folder in (tmp_path, two_workers / f"sft-{kind}")
        )
        for row, other in zip(rows, others, strict=True):
            assert {**row, "tokens_per_s": 0} == pytest.approx({**other, "tokens_per_s": 0}, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "offload"), OFFLOADED)
def test_offloaded_training_gives_the_same_weights(two_workers: Path, algorithm: str, offload: tuple[str, ...]) -> None:
    here, there = (torch.load(two_workers / f"{algorithm}-{kind}.pt") for kind in ("fsdp2", "-".join(offload)))
    assert gap(here, there) < 1e-6


@pytest.fixture(scope="module")
def gone_on_with_four(two_workers: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that two workers began, with a third step by four."""
    folder = tmp_path_factory.mktemp("four")
    for kind in KINDS:
        shutil.copytree(two_workers / f"ppo-{kind}", folder / f"ppo-{kind}")
    run_workers(4, in_worker, go_on, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_two_workers_began_goes_on_with_one_and_with_four(
    two_workers: Path, gone_on_with_four: Path, tmp_path: Path, kind: Kind
) -> None:
    """Moments of Adam, the critic and the reference are sharded again."""
    shutil.copytree(two_workers / f"ppo-{kind}", tmp_path / "began")
    alone = train("ppo", kind, tmp_path / "alone", ALONE, steps=3).module.state_dict()
    gone_on = train("ppo", kind, tmp_path / "began", ALONE, steps=3, resume=True).module.state_dict()
    four = torch.load(gone_on_with_four / f"ppo-{kind}.pt")
    print(f"{kind}: {gap(alone, gone_on):.1e} with one, {gap(alone, four):.1e} with four")
    assert gap(alone, gone_on) < TOLERANCE and gap(alone, four) < TOLERANCE


@pytest.mark.slow
def test_a_stop_changes_no_bit_of_what_the_same_number_of_workers_learns(two_workers: Path) -> None:
    assert gap(*(torch.load(two_workers / f"{name}.pt") for name in ("whole", "parts"))) == 0.0


@pytest.mark.slow
def test_no_worker_writes_more_of_a_sharded_checkpoint_than_its_share(two_workers: Path) -> None:
    for kind in KINDS:
        sizes = [file.stat().st_size for file in (two_workers / f"ppo-{kind}/checkpoints/step-000002").glob("shard-*")]
        assert len(sizes) == 2 and max(sizes) < 0.6 * sum(sizes)


def _timeless(path: Path) -> list[dict[str, float]]:
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()]


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 9))
def test_contiguous_shares_are_all_items_in_order_and_split_no_unit(workers: int, unit: int, units: int) -> None:
    items = range(units * unit)
    shares = [Workers(rank, workers).contiguous_share(items, unit) for rank in range(workers)]
    assert [item for share in shares for item in share] == [*items]
    assert all(len(share) % unit == 0 for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= unit
