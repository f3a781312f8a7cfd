"""Proof of reinforcement learning: rollouts, metrics and weights of GRPO and PPO, stopped and resumed."""

import pytest
from tests.proof.canonical import Proof, digest, metrics
from tests.proof.material import Material, json_lines, movement, recipe_file

import coseek
from coseek.core.progress import NoProgress

STEPS, CHECKPOINT_EVERY, STOPPED = 4, 2, 3
"""The third step is taken, lost, and taken again."""


class Killed(BaseException):
    """The end of the process, as far as the training can see."""


class Kills(NoProgress):
    """Ends the training after a step."""

    def advance(self, done: int, note: str = "") -> None:
        if done == STOPPED:
            raise Killed


def proof(material: Material) -> Proof:
    """Metrics of each step, a digest of the last step's rollouts, and how far each weight moved."""
    items: Proof = {}
    for algorithm in ("grpo", "ppo"):
        out = material.folder / algorithm
        recipe = str(recipe_file(material.folder / f"{algorithm}.yaml", recipe_of(material, algorithm)))
        with pytest.raises(Killed):
            coseek.train_agent(recipe, out=out, progress=Kills())
        assert len(json_lines(out / "rl" / "metrics.jsonl")) == STOPPED
        trained = coseek.train_agent(recipe, out=out, resume=True)
        for row in json_lines(out / "rl" / "metrics.jsonl"):
            items[f"{algorithm} · step {row['step']}"] = metrics(row)  # type: ignore[arg-type]
        (kept,) = (out / "rl" / "rollouts").iterdir()
        for number, trajectory in enumerate(coseek.Run(kept).trajectories(), start=1):
            items[f"{algorithm} · rollout {number:02}"] = digest(trajectory.to_json(), {"timings", "logprobs", "score"})
        items |= {f"{algorithm} · {name}": list(moved) for name, moved in movement(material.policy, trained).items()}
    return items


def recipe_of(material: Material, algorithm: str) -> dict[str, object]:
    """A recipe without a warm start. Adam divides by the gradient's size: `eps` keeps rounding from being a step."""
    learner = {"optimizer": {"lr": 0.001, "eps": 1e-4}, "precision": "float32"}
    return {
        "data": {"folder": str(material.data.folder), "index": str(material.index_folder("bm25"))},
        "policy": {"folder": str(material.policy)},
        "warm_start": None,
        "precision": "float32",
        "device": "cpu",
        "limits": {
            "max_turns": 3,
            "passages_per_search": 2,
            "max_turn_tokens": 24,
            "max_observation_tokens": 96,
            "max_tokens": 400,
        },
        "reward": {"exact_match": 1.0, "format": 0.2, "searches": -0.02},
        "rl": {
            "algorithm": algorithm,
            "steps": STEPS,
            "questions_per_step": 4,
            "group_size": 4,
            "checkpoint_every": CHECKPOINT_EVERY,
            "keep_rollouts": {"every": STEPS},
            "kl_coef": 0.01,
            "kl_location": "reward" if algorithm == "ppo" else "loss",
            "overlong": {"max_tokens": 200, "margin_tokens": 190},
            "policy": learner,
            "critic": learner,
        },
        "table": {"questions": 2, "dev_questions": 2, "dev": False, "sampled": False},
        "threads": 1,
    }
