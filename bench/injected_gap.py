"""Injected gap: what a sampler costs whose probabilities are not the trainer's, with and without importance correction.

    python -m bench.injected_gap [--run runs/quickstart] [--steps 30] [--seeds 0 1 2] [--gaps .05 .1 .2]

The warm policy of a quickstart is trained by its own recipe, and sampled from a copy with noise: every weight is
multiplied by 1 + s·n, n ~ N(0, 1), drawn anew after every step. So samples and reported log-probabilities are the
copy's, and s is set so that they differ from the trainer's by the gap, in nats a sampled token (mean absolute value, at
the warm policy). Old log-probabilities are the trainer's (`rl.old_logprobs=recompute`) in all arms, which differ in
`rl.importance`; gap 0 is the trainer's own sampler. Printed is the strict exact match of the trained policy on the dev
questions, greedy. Arms that are there are kept, one that was stopped goes on; a missing warm policy is trained first.
"""

import argparse
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import cast

import torch
import yaml
from transformers import PreTrainedModel

from coseek.agents.agent_card import CARD
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, rollout
from coseek.core.files import JsonObject, read_json, read_jsonl, write_json
from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.data.selection import draw
from coseek.data.trajectory import Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.measure.answers import exact_match
from coseek.models.model import Model, Tokenizer
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe, load_recipe
from coseek.retrieval.index import open_index
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import make_reward
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import logprob_gap
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.data_order import derive_seed
from coseek.training.trainer.policy import Policy

CORRECTIONS = ("off", "truncate", "mask")
FIRST_NOISE, TRIALS, CLOSE = 0.01, 10, 0.1
"""The first s that is tried, the most trials between two, and the relative error of the gap that ends them."""
TRIAL_RUNS, DRAWS = 64, 3
"""Runs of a trial, and draws of the noise."""


class GapBackend(LocalBackend):
    """A local backend whose rollouts are sampled from a copy of the policy with noise in its weights."""

    def __init__(self, policy: Policy, settings: RlSettings, noise: float) -> None:
        super().__init__(policy, settings)
        self.noise, self.seed = noise, settings.seed
        self.copy: PreTrainedModel = copy.deepcopy(policy.model).requires_grad_(False)

    def sampler(
        self, tokenizer: Tokenizer, stops: Sequence[str], settings: SamplerSettings, *, on_policy: bool = True
    ) -> Sampler:
        own = super().sampler(tokenizer, stops, settings, on_policy=on_policy)
        return Sampler(self.copy, tokenizer, stops, settings) if on_policy else own

    @torch.no_grad()
    def refresh(self) -> None:
        super().refresh()
        draws = torch.Generator().manual_seed(derive_seed(self.seed, "noise", self.policy.updates_done))
        for noisy, weight in zip(self.copy.parameters(), self.policy.model.parameters(), strict=True):
            factors = 1.0 + self.noise * torch.randn(weight.shape, generator=draws)
            noisy.copy_(weight * factors.to(weight.device))


@dataclass
class GapStudy:
    """The warm policy of a run, and everything that it takes to train it further."""

    run: Path

    @cached_property
    def recipe(self) -> AgentRecipe:
        text = (self.run / "recipe.yaml").read_text(encoding="utf-8")
        return AgentRecipe.model_validate(yaml.safe_load(text)["recipe"])

    @cached_property
    def dev(self) -> list[Question]:
        table = self.recipe.table
        return draw(Dataset(self.run / "data").questions(self.recipe.data.dev), table.dev_questions, table.seed)

    def settings(self, importance: str, seed: int, steps: int) -> RlSettings:
        changes = {"steps": steps, "seed": seed, "importance": importance, "old_logprobs": "recompute"}
        return RlSettings.model_validate(self.recipe.rl.model_dump() | changes)

    def backend(self, settings: RlSettings, noise: float) -> GapBackend:
        network = load_model(self.run / "policy" / "warm", FLOAT32)
        policy = Policy(network, settings.policy, settings.updates, settings.temperature)
        return GapBackend(policy, settings, noise)

    def sampler(self, backend: GapBackend, temperature: float) -> Model:
        tokenizer = HfTokenizer.load(self.run / "policy" / "warm")
        settings = SamplerSettings(
            temperature=temperature, max_tokens=self.recipe.limits.max_tokens, dtype="float32", max_rows=256
        )
        return backend.sampler(tokenizer, self.protocol.grammar.stops, settings, on_policy=temperature > 0.0)

    def roll_out(self, sampler: Model, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        return rollout(Agent(self.protocol, sampler), self.retriever, questions, seeds, self.recipe.limits)

    def noise_of(self, gap: float) -> float:
        """The s of a gap, by halving the interval of its logarithm: where texts begin to break, the gap leaps."""
        low, high = FIRST_NOISE / 2, FIRST_NOISE
        while self.gap_of(high) < gap:
            low, high = high, 2 * high
        for _ in range(TRIALS):
            noise = math.sqrt(low * high)
            found = self.gap_of(noise)
            if abs(found - gap) <= CLOSE * gap:
                return noise
            low, high = (noise, high) if found < gap else (low, noise)
        raise SystemExit(f"no noise gives a gap of {gap:g}: at s = {noise:.4g} it is {found:.4g}; name another gap")

    def gap_of(self, noise: float) -> float:
        """The mean gap of the warm policy over some draws of the noise, the same for all s."""
        settings = self.settings("off", 0, 1)
        questions = (self.dev * TRIAL_RUNS)[:TRIAL_RUNS]
        backend = self.backend(settings, noise)
        sampler = self.sampler(backend, settings.temperature)
        found = []
        for seed in range(DRAWS):
            backend.seed = seed
            backend.refresh()
            runs = self.roll_out(sampler, questions, range(TRIAL_RUNS))
            found.append(logprob_gap(backend.policy, make_batch(runs), TRIAL_RUNS)["logprob_gap"])
        return fmean(found)

    def train(self, folder: Path, settings: RlSettings, noise: float) -> JsonObject:
        """Train one arm; returns what it came to."""
        backend = self.backend(settings, noise)
        sampled, greedy = (self.sampler(backend, temperature) for temperature in (settings.temperature, 0.0))

        def run(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
            return self.roll_out(sampled, questions, seeds)

        questions = Dataset(self.run / "data").questions(self.recipe.data.train)
        train_rl(backend, questions, run, make_reward(self.recipe.reward), settings, folder, resume=True)
        runs = self.roll_out(greedy, self.dev, range(len(self.dev)))
        rows = [row for _, row in read_jsonl(folder / "metrics.jsonl")]

        def mean(name: str) -> float:
            return fmean([float(str(row[name])) for row in rows if name in row] or [0.0])

        right = fmean(exact_match(one.answer, one.question.answers) for one in runs)
        names = ("logprob_gap", "importance", "importance_cut")  # 0 without a correction
        return {"exact_match": right, "noise": noise, **{name: mean(name) for name in names}}

    @cached_property
    def protocol(self) -> Protocol:
        return load_protocol(self.recipe.protocol, self.recipe.prompt_template)

    @cached_property
    def retriever(self) -> Retriever:
        return open_index(self.run / "data.index")


def warm_run(folder: Path, settings: Sequence[str] = ()) -> Path:
    """Bring the quickstart in a folder to its warm policy, if it is not there."""
    if not (folder / "policy" / "warm" / CARD).exists():
        training = AgentTraining(load_recipe("quickstart", settings), folder)
        training.begin(resume=True)
        training.prepare_data()
        training.make_policy()
        training.warm_start()
    return folder


def compare(run: Path, out: Path, gaps: Sequence[float], seeds: Sequence[int], steps: int) -> None:
    """Make the arms that are missing, and print all of them."""
    study, arms = GapStudy(run), [(0.0, "off"), *product(gaps, CORRECTIONS)]
    print(f"{steps} steps, torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"| gap | importance | measured gap | tokens cut | EM of seeds {', '.join(map(str, seeds))} | mean |")
    print("|---|---|---|---|---|---|", flush=True)
    for gap, importance in arms:
        found = [_arm(study, out / f"steps-{steps}" / f"gap-{gap:g}", gap, importance, seed, steps) for seed in seeds]
        right = [arm["exact_match"] for arm in found]
        cells = (f"{fmean(arm[name] for arm in found):.3f}" for name in ("logprob_gap", "importance_cut"))
        scores = (" ".join(f"{one:.3f}" for one in right), f"{fmean(right):.3f}")
        print(f"| {' | '.join((f'{gap:g}', importance, *cells, *scores))} |", flush=True)


def _arm(study: GapStudy, folder: Path, gap: float, importance: str, seed: int, steps: int) -> dict[str, float]:
    """What an arm came to; made if it is missing."""
    ready, calibrated = folder / importance / f"seed-{seed}" / "arm.json", folder / "noise.json"
    if not ready.exists():
        if not calibrated.exists():
            write_json(calibrated, {"noise": study.noise_of(gap) if gap else 0.0})
        noise = numbers(calibrated)["noise"]
        write_json(ready, study.train(ready.parent, study.settings(importance, seed, steps), noise))
    return numbers(ready)


def numbers(path: Path) -> dict[str, float]:
    """The numbers of a file that this command wrote."""
    return cast(dict[str, float], read_json(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--out", type=Path, default=Path("runs/injected-gap"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--gaps", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="of the recipe, where --run is made")
    given = parser.parse_args()
    compare(warm_run(given.run, given.settings), given.out, given.gaps, given.seeds, given.steps)


if __name__ == "__main__":
    main()
