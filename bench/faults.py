"""A retriever and a generator that fail in 5 % of their calls while an agent learns: what that costs.

    OMP_NUM_THREADS=1 python -m bench.faults [--seeds 3] [--share 0.05] [--generator runs/generator/generator]

The under-trained policy of `bench/format.py` learns by GRPO in a small world, paid for form, for its own answers and
for those that a frozen generator gives from its passages: from the same weights and seeds once with parts that work and
once with parts that fail. Printed are the reward at the beginning and at the end, the reward on dev questions with
parts that work (paired by question, all seeds together), the faults that the metrics count, and, from a line for every
run, how many runs were paid in which a part had failed. Exits 1 when there is one, when a fault was not counted, or
when what was learnt with faults is another reward (p < .05).
"""

import argparse
import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from bench.format import LEARN, SMALL, WARM
from bench.format import run as train_recipe
from bench.small_s3 import tiny_generator

from coseek.agents.rollout import Agent, rollout
from coseek.core.errors import ModelError, RetrieverError
from coseek.core.files import JsonObject, json_line, read_jsonl
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import GeneratedAnswer
from coseek.data.passage import Corpus, Hit
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import open_generator
from coseek.graders.generator import Generator, GeneratorSettings
from coseek.graders.scoring import EpisodeScorer
from coseek.hardware.placement import FLOAT32
from coseek.measure.intervals import Difference, paired_difference
from coseek.models.local_text import TextModelSettings
from coseek.models.pretrained import load_model
from coseek.models.text_model import TextModel
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import Reward, RewardFault, make_reward
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.trainer.policy import Policy

REWARD = make_reward({"preset": "search-r1-format", "component": {"weight": 0.5, "accuracy": "cover_match"}})
ENDS = 5
"""Steps at either end of a run that its rewards are read from."""


@dataclass
class Fate:
    """Which calls fail. The n-th time that something is asked has a fate of its own, by a hash, so that a batch
    which is asked again in parts finds the same ones failing."""

    share: float
    seed: int
    failed: int = 0
    """Single calls that failed."""
    _asked: Counter[str] = field(default_factory=Counter)

    def strikes(self, asked: Sequence[str]) -> bool:
        """Whether this call fails because one of what it asks does."""
        now = Counter[str]()
        struck = 0
        for one in asked:
            struck += self._dice(one, self._asked[one] + now[one]) < self.share
            now[one] += 1
        if struck and len(asked) > 1:
            return True
        self._asked += now
        self.failed += struck
        return bool(struck)

    def _dice(self, asked: str, number: int) -> float:
        digest = hashlib.sha256(f"{self.seed}/{number}/{asked}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


@dataclass
class FailingRetriever:
    """A retriever that cannot be reached now and then."""

    over: Retriever
    fate: Fate
    name: str = "failing"

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.over.identity)

    @property
    def corpus(self) -> Corpus | None:
        return self.over.corpus

    def seen(self, query: QueryLike) -> str:
        return self.over.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if self.fate.strikes([self.seen(query) for query in queries]):
            raise RetrieverError("the retriever is away, as it was asked to be")
        return self.over.search(queries, k)


@dataclass
class FailingModel:
    """A model that cannot be reached now and then."""

    over: TextModel
    fate: Fate

    @property
    def identity(self) -> str:
        return self.over.identity

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        if self.fate.strikes(prompts):
            raise ModelError("the generator is away, as it was asked to be")
        return self.over.write(prompts, max_tokens)


@dataclass(frozen=True)
class WrittenDown(EpisodeScorer):
    """Scoring that leaves a line for every run."""

    path: Path = Path()
    _failed: set[int] = field(default_factory=set)
    """Places of the runs from whose passages the generator could not answer."""

    def _replies(self, runs: Sequence[Trajectory]) -> dict[int, GeneratedAnswer]:
        replies = super()._replies(runs)
        self._failed.clear()
        self._failed.update(place for place, reply in replies.items() if reply.fault is not None)
        return replies

    def __call__(self, runs: Sequence[Trajectory]) -> list[Reward | RewardFault]:
        found = super().__call__(runs)
        with self.path.open("a", encoding="utf-8") as file:
            for place, (run, one) in enumerate(zip(runs, found, strict=True)):
                failed = run.stop.is_fault or place in self._failed or any(search.fault for search in run.searches)
                row: JsonObject = {"question": run.question.id, "stop": str(run.stop), "failed": failed}
                row |= {"fault": one.part} if isinstance(one, RewardFault) else {"reward": one.value, **one.parts}
                file.write(json_line(row))
        return found


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    training: AgentTraining
    """The run that the policy comes from, with its world, tokenizer, limits and settings."""
    generator: Generator
    steps: int

    def settings(self, seed: int) -> RlSettings:
        return load_recipe("from-nothing", [*SMALL, *LEARN, f"rl.steps={self.steps}", f"rl.seed={seed}"]).rl

    def run(self, name: str, seed: int, share: float) -> "Outcome":
        """Train once; the parts fail in this share of their calls."""
        training, settings = self.training, self.settings(seed)
        folder = training.folder.parent / f"{name}-{seed}"
        folder.mkdir()
        model = load_model(training.policy_folder("warm"), FLOAT32)
        policy = Policy(model, settings.policy, settings.updates, settings.temperature)
        agent = Agent(training.protocol, training.sampler(model, training.protocol, settings.temperature))
        engine = training.retrievers["data"]
        fates = Fate(share, seed), Fate(share, seed + 1000)
        failing = FailingRetriever(engine, fates[0])
        generator = replace(self.generator, model=FailingModel(self.generator.model, fates[1]))

        def ask(retriever: Retriever) -> Callable[[Sequence[Question], Sequence[int]], list[Trajectory]]:
            return lambda questions, seeds: rollout(agent, retriever, questions, seeds, training.recipe.limits)

        def look() -> dict[str, float]:
            questions = training.questions("dev")
            paid = EpisodeScorer(REWARD, self.generator)(ask(engine)(questions, range(len(questions))))
            return {
                one.id: reward.value for one, reward in zip(questions, paid, strict=True) if isinstance(reward, Reward)
            }

        before = look()
        scoring = WrittenDown(REWARD, generator, path=folder / "rows.jsonl")
        train_rl(LocalBackend(policy, settings), training.questions("train"), ask(failing), scoring, settings, folder)
        return Outcome.read(name, seed, folder, before, look(), fates)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    name: str
    seed: int
    rewards: tuple[float, ...]
    """Mean reward by step."""
    before: dict[str, float]
    after: dict[str, float]
    """Reward by dev question, with parts that work."""
    runs: int
    faults: dict[str, int]
    """Runs that the metrics count as faults, by what failed."""
    excluded: Counter[str]
    """The same, counted from the line of every run."""
    wrongly_paid: int
    """Runs with a reward in which a part had failed."""
    calls: tuple[int, int]
    """Calls of the retriever and of the generator that failed."""

    @classmethod
    def read(
        cls,
        name: str,
        seed: int,
        folder: Path,
        before: dict[str, float],
        after: dict[str, float],
        fates: tuple[Fate, Fate],
    ) -> "Outcome":
        metrics = [row for _, row in read_jsonl(folder / "metrics.jsonl")]
        rows = [row for _, row in read_jsonl(folder / "rows.jsonl")]
        faults = Counter[str]()
        for step in metrics:
            faults.update({key[7:]: int(str(n)) for key, n in step.items() if key.startswith("faults/")})
        return cls(
            name,
            seed,
            tuple(float(str(row["reward"])) for row in metrics if "reward" in row),
            before,
            after,
            len(rows),
            dict(faults),
            Counter(str(row["fault"]) for row in rows if "fault" in row),
            sum("reward" in row and row["failed"] is True for row in rows),
            (fates[0].failed, fates[1].failed),
        )

    @property
    def sound(self) -> bool:
        """Every fault is counted, and none is paid."""
        return not self.wrongly_paid and dict(self.excluded) == self.faults and bool(self.faults) == any(self.calls)

    def line(self) -> str:
        first, last = fmean(self.rewards[:ENDS]), fmean(self.rewards[-ENDS:])
        dev = f"{fmean(self.before.values()):.3f} → {fmean(self.after.values()):.3f}"
        faults = ", ".join(f"{part} {count}" for part, count in sorted(self.faults.items())) or "none"
        cells = [self.name, self.seed, f"{first:.3f} → {last:.3f}", dev, self.runs, faults]
        cells += [f"{self.calls[0]} + {self.calls[1]}", self.wrongly_paid]
        return f"| {' | '.join(map(str, cells))} |"


def difference(found: Sequence[Outcome], seeds: int) -> Difference:
    """Reward on dev questions with faults in training minus without, each question's mean over the seeds."""

    def means(name: str) -> dict[str, float]:
        some = [one.after for one in found if one.name == name]
        return {ident: fmean(one[ident] for one in some) for ident in some[0]}

    paired = paired_difference(means("working"), means("failing"), np.random.default_rng(seeds))
    assert paired is not None
    return paired


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.05, help="calls that fail")
    parser.add_argument("--steps", type=int, default=40, help="steps of a run")
    parser.add_argument("--out", type=Path, help="a folder for the runs; the policy there is kept")
    parser.add_argument("--generator", type=Path, help="a folder that `coseek train generator` made")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        base = given.out or Path(scratch)
        training = train_recipe(base / "warm", [*SMALL, *WARM])
        named = given.generator or tiny_generator(base / "generator")
        generator = open_generator(GeneratorSettings(model=str(named)), writing=TextModelSettings(max_rows=64))
        bench = Bench(training, generator, given.steps)
        print(
            "| parts | seed | reward, first → last steps | dev, before → after | runs | faults | calls failed | paid |"
        )
        print("|---|---|---|---|---|---|---|---|", flush=True)
        found = []
        for seed in range(given.seeds):
            for name, share in (("working", 0.0), ("failing", given.share)):
                found.append(bench.run(name, seed, share))
                print(found[-1].line(), flush=True)
    paired = difference(found, given.seeds)
    print(f"failing − working, dev: {paired.difference}, p = {paired.p:.3f}")
    return int(not all(one.sound for one in found) or paired.p < 0.05)


if __name__ == "__main__":
    sys.exit(main())
