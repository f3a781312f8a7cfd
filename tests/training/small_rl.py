"""A small run of reinforcement learning, through the real sampler and driver, for tests."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.digests import digest, timeless
from tests.pipelines.small_together import LENGTH

from coseek.agents.drivers import Agent, Limits, rollout
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.files import read_jsonl
from coseek.core.progress import Progress
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.hardware.placement import FLOAT32
from coseek.lab.agents.expert import ExpertAgent
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import World, make_world
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.pretrained import load_model
from coseek.models.sampler import SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.rewards.reward import make_reward
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.loop import train_rl
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import SftSettings, draw_any
from coseek.training.trainer.policy import Policy

ALGORITHMS = ("grpo", "ppo")
LIMITS = Limits(max_turns=3, passages_per_search=1, max_turn_tokens=40, max_observation_tokens=80, max_tokens=256)
WORLD = WorldSettings(size="tiny", train=200, dev=0, test=0, hop_mix=(1.0,), comparison=0.0, constraint=0.0)
REWARD = make_reward({"exact_match": 1.0, "gold_recall": 0.5, "valid": 0.3, str(LENGTH): 0.1})
"""Sampled texts differ in length, so groups have a spread and weights move, whatever the policy has learnt."""


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
            "kl_coef": 0.01,
            "kl_in": "loss" if algorithm == "grpo" else "reward",
            "policy": {"optimizer": {"lr": 1e-3, "decay": "cosine"}},
        }
    )


def train(base: Path, algorithm: str, steps: int, folder: Path, resume: bool, progress: Progress) -> None:
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
        progress=progress,
    )
    policy.save(folder / "policy", tokenizer.save)


def weights_sum(policy: Path) -> str:
    return digest((policy / "model.safetensors").read_bytes())


def outcome(folder: Path) -> dict[str, str]:
    """Digests of what a run left behind, times left out."""
    rows = [timeless(row) for _, row in read_jsonl(folder / "metrics.jsonl")]
    return {"weights": weights_sum(folder / "policy"), "metrics": digest(json.dumps(rows).encode())}
