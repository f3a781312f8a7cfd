"""A task that can be solved in seconds: answer with the token that the prompt shows."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from tests.training.tiny import agent, environment, tiny_model

from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.rewards.reward import Reward
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.callbacks import Callback
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.loop import train_rl
from coseek.training.rl.rollout import RolloutFunction, score
from coseek.training.rl.settings import RlSettings

QUESTIONS = [Question(str(ident), f"say {ident}", (str(ident),)) for ident in range(4, 8)]
LEARNER = LearnerSettings(optimizer=OptimizerSettings(lr=1e-2))


def sampling(policy: Policy) -> RolloutFunction:
    """A rollout of two agent tokens with an observation between them, drawn from the policy by each row's own seed."""

    def draw(rows: list[list[int]], generators: list[torch.Generator]) -> list[tuple[int, float]]:
        with torch.no_grad():
            ids_BT = torch.tensor(rows, device=policy.device)
            logprobs_BV = policy.whole_model()(input_ids=ids_BT).logits[:, -1].log_softmax(1).cpu()
        drawn = [
            int(torch.multinomial(logprobs_V.exp(), 1, generator=generator))
            for logprobs_V, generator in zip(logprobs_BV, generators, strict=True)
        ]
        return [(token, float(logprobs_BV[row, token])) for row, token in enumerate(drawn)]

    def run(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        segments = [[environment(1, int(question.id))] for question in questions]
        for turn in range(2):
            rows = [[ident for segment in row for ident in segment.ids] for row in segments]
            for row, (token, logprob) in zip(segments, draw(rows, generators), strict=True):
                row.append(Segment(Author.AGENT, "answer", str(token), (token,), (logprob,)))
                if turn == 0:
                    row.append(environment(2, 3))
        return [
            Trajectory(question, "test", tuple(row), (), StopReason.ANSWERED, row[-1].text, True, seed=seed)
            for question, row, seed in zip(questions, segments, seeds, strict=True)
        ]

    return run


def reward(run: Trajectory) -> Reward:
    right = float(run.answer == run.question.id)
    return Reward(right, {"exact_match": right})


def settings_of(algorithm: str, **changes: object) -> RlSettings:
    tree = {"algorithm": algorithm, "questions_per_step": 4, "group_size": 8, "steps": 15, "policy": LEARNER} | changes
    return RlSettings.model_validate(tree)


def train(
    folder: Path,
    settings: RlSettings,
    seed: int = 3,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    workers: Workers = ALONE,
) -> tuple[Policy, list[dict[str, float]]]:
    policy = Policy(tiny_model(seed), settings.policy, settings.total_updates, workers=workers)
    backend, runs = LocalBackend(policy, settings), sampling(policy)
    train_rl(backend, QUESTIONS, runs, reward, settings, folder, resume=resume, callbacks=callbacks)
    return policy, [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def fixed(question: Question, stop: StopReason = StopReason.ANSWERED, right: bool = True) -> Trajectory:
    answer = question.id if right else "other"
    return Trajectory(question, "test", (environment(1), agent(2, 3)), (), stop, answer, True)


def experience_of(
    runs: Sequence[Trajectory], groups: Sequence[int], settings: RlSettings, reference: Policy | None = None
) -> Experience:
    backend = LocalBackend(Policy(tiny_model(), settings.policy, 1), settings)
    backend.reference = reference
    return make_experience(score(groups, runs, reward), settings, open_algorithm(settings), backend)
