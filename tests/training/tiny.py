"""Small real things that the tests of this folder share: hand-made trajectories and a tiny network."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Lfm2Config, Lfm2ForCausalLM, PretrainedConfig, PreTrainedModel

from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.training.learner.policy import Policy
from coseek.training.rl.policy_loss import LossBatch, open_policy_loss
from coseek.training.rl.settings import RlSettings

VOCABULARY = 24


def agent(*ids: int, logprob: float = -1.0) -> Segment:
    return Segment(Author.AGENT, "search", "".join(map(chr, ids)), ids, (logprob,) * len(ids))


def environment(*ids: int) -> Segment:
    return Segment(Author.ENVIRONMENT, "information", "".join(map(chr, ids)), ids)


def trajectory(
    *segments: Segment,
    question: str = "q",
    stop: StopReason = StopReason.ANSWERED,
    answer: str | None = "a",
    hops: int | None = None,
    seed: int = 0,
) -> Trajectory:
    full_question = Question(question, "?", ("Ada",), hops=hops)
    return Trajectory(full_question, "search-r1", segments, (), stop, answer, valid=answer is not None, seed=seed)


def random_trajectories(count: int, rng: random.Random) -> list[Trajectory]:
    """Prompt, then one to three turns with environment text between them."""

    def ids(low: int, high: int) -> list[int]:
        return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]

    runs = []
    for number in range(count):
        segments = [environment(*ids(1, 5))]
        for _ in range(rng.randint(1, 3)):
            segments += [agent(*ids(1, 4), logprob=-rng.uniform(2.5, 3.5)), environment(*ids(0, 4))]
        runs.append(trajectory(*segments, question=f"q{number}"))
    return runs


def clipped_losses(new_BT: Tensor, old_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, **clips: float) -> Tensor:
    """The loss of every token under the default policy loss; shape BT."""
    settings = RlSettings.model_validate(clips)
    return open_policy_loss(settings)(LossBatch.of(new_BT, old_BT, advantages_BT, mask_BT, settings))


def tiny_model(seed: int = 0, layers: Sequence[str] = ("conv", "full_attention")) -> PreTrainedModel:
    """A network of the laptop policy's architecture with a few thousand weights."""
    config = Lfm2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=len(layers),
        num_attention_heads=2, num_key_value_heads=1, layer_types=list(layers), block_auto_adjust_ff_dim=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=1, initializer_range=0.3,
    )  # fmt: skip
    return seeded(Lfm2ForCausalLM, config, seed)


def same_weights(policy: Policy, other: Policy) -> bool:
    """To the last bit."""
    weights, others = policy.module.state_dict(), other.module.state_dict()
    return weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)


def seeded(kind: type[PreTrainedModel], config: PretrainedConfig, seed: int = 0) -> PreTrainedModel:
    """A network with the random weights of a seed, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
    model.eval()
    return model
