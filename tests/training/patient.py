"""A tiny policy that was taught to search for one word and to answer: the network, the loop, the metrics and the alarms
are the real ones. For test_monitor.
"""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from tests.training.tiny import seeded
from torch import Tensor
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedModel

from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.training.learner.batch import make_batch
from coseek.training.learner.learner import Loss
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings
from coseek.training.rl.losses import loss_weights
from coseek.training.rl.rollout import RolloutFunction
from coseek.training.rl.settings import RlSettings
from coseek.training.sft.trainer import weighted_nll

Rows: TypeAlias = list[dict[str, float]]

VOCABULARY, PROMPT, SEARCH, FOUND, SHRUG = 24, 1, 2, 3, 4
"""`SHRUG` and whatever else is no search and no word ends a run without an answer."""
WORDS, SHORT, KEYS = range(8, 16), range(8, 12), range(16, 24)
"""What can be an answer; the answers whose form is valid, half of them; what a question names."""
MOST_SEARCHES = 3


@dataclass(frozen=True)
class Patient:
    """A policy that was taught to search and answer, and all that it takes to train it further."""

    fresh: Callable[[RlSettings], tuple[Policy, RolloutFunction]]
    questions: Sequence[Question]
    settings: RlSettings


def questions() -> list[Question]:
    """Every key with every word: the key alone says nothing of the answer, so it has to be searched for."""
    return [Question(f"{key}-{word}", str(key), (str(word),)) for word in WORDS for key in KEYS]


def network(seed: int) -> PreTrainedModel:
    config = Lfm2Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    return seeded(Lfm2ForCausalLM, config, seed)


class Run:
    """One run under way. A turn is one token: a search, a word that answers, or anything else, which ends it."""

    def __init__(self, question: Question, seed: int) -> None:
        self.question, self.seed = question, seed
        self.draws = random.Random(seed)
        self.segments = [Segment(Author.ENVIRONMENT, "prompt", "", (PROMPT, int(question.question)))]
        self.searches: list[Search] = []
        self.stop: StopReason | None = None
        self.answer: str | None = None

    @property
    def ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.ids]

    def take(self, token: int, logprob: float) -> None:
        self.segments.append(Segment(Author.AGENT, "", str(token), (token,), (logprob,)))
        if token in WORDS:
            self.stop, self.answer = StopReason.ANSWERED, str(token)
        elif token != SEARCH:
            self.stop = StopReason.INVALID
        elif len(self.searches) == MOST_SEARCHES:
            self.stop = StopReason.TURN_LIMIT
        else:
            self.searches.append(Search(self.question.question, turn=len(self.searches) + 1))
            self.segments.append(Segment(Author.ENVIRONMENT, "found", "", (FOUND, int(self.question.answers[0]))))

    def finished(self) -> Trajectory:
        assert self.stop is not None
        valid = self.answer is not None and int(self.answer) in SHORT
        segments, searches = tuple(self.segments), tuple(self.searches)
        return Trajectory(self.question, "tiny", segments, searches, self.stop, self.answer, valid, seed=self.seed)


def sampling(model: PreTrainedModel) -> RolloutFunction:
    """Rollouts from the network as it is now, each row by its own seed."""

    def run(asked: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        runs = [Run(question, seed) for question, seed in zip(asked, seeds, strict=True)]
        while rows := [one for one in runs if one.stop is None]:
            # Every turn adds the same number of tokens to every row that goes on, so they are all of one length.
            with torch.no_grad():
                logprobs_BV = model(input_ids=torch.tensor([one.ids for one in rows])).logits[:, -1].log_softmax(1)
            levels_B1 = torch.tensor([[one.draws.random()] for one in rows])
            drawn_B = torch.searchsorted(logprobs_BV.exp().cumsum(1), levels_B1)[:, 0].clamp(max=VOCABULARY - 1)
            for row, (one, token) in enumerate(zip(rows, drawn_B.tolist(), strict=True)):
                one.take(token, float(logprobs_BV[row, token]))
        return [one.finished() for one in runs]

    return run


def lesson(question: Question, rng: random.Random) -> Trajectory:
    """A demonstration with faults: some search again or not at all, some read wrongly, some give up."""
    run = Run(question, 0)
    while run.stop is None:
        searched = len(run.searches)
        search = rng.random() < (0.9 if searched == 0 else 0.15)
        word = int(question.answers[0]) if searched and rng.random() < 0.7 else rng.choice(WORDS)
        run.take(SEARCH if search else SHRUG if rng.random() < 0.04 else word, 0.0)
    return run.finished()


def imitation(weights_BT: Tensor) -> Loss:
    def loss(new_bt: Tensor, rows_b: Tensor) -> Tensor:
        return weighted_nll(new_bt, weights_BT[rows_b, : new_bt.shape[1]])

    return loss


def tiny(seed: int = 0, lessons: int = 200, lr: float = 3e-3) -> Patient:
    """The patient that takes seconds."""
    asked, rng = questions(), random.Random(seed)
    learner = LearnerSettings(optimizer=OptimizerSettings(lr=1e-2), micro_batch_tokens=1 << 14)
    taught = Policy(network(seed), learner, lessons)
    for _ in range(lessons):
        batch = make_batch([lesson(question, rng) for question in rng.choices(asked, k=64)])
        taught.forward_backward(batch, batch.agent_BT, imitation(loss_weights(batch.agent_BT, "token-mean")))
        taught.optim_step()
    weights = {name: weight.clone() for name, weight in taught.module.state_dict().items()}

    def fresh(settings: RlSettings) -> tuple[Policy, RolloutFunction]:
        model = network(seed)
        model.load_state_dict(weights)
        return Policy(model, settings.policy, settings.total_updates), sampling(model)

    learner = LearnerSettings(optimizer=OptimizerSettings(lr=lr), micro_batch_tokens=1 << 14)
    return Patient(fresh, asked, RlSettings(policy=learner, seed=seed, checkpoint_every=1000))


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
