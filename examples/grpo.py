"""GRPO on one page: the warm policy of a quickstart learns to search from its own runs.

`make quickstart` leaves that policy; then: python examples/grpo.py runs/quickstart
"""

import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from coseek import Agent, Dataset, Limits, load_protocol, make_reward, open_index, rollout
from coseek.hardware.placement import FLOAT32
from coseek.models.pretrained import load_model
from coseek.models.sampler import SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.training.learner.batch import Batch, make_batch
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings, OptimizerSettings

run, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 30
QUESTIONS, GROUP, CLIP = 32, 4, 0.2
data, retriever = Dataset(run / "data").questions("train"), open_index(run / "data.index")
protocol, reward = load_protocol("search-r1", "laptop"), make_reward({"exact_match": 1.0})
limits = Limits(max_turns=5, passages_per_search=2, max_turn_tokens=96, max_observation_tokens=256, max_tokens=800)

settings = LearnerSettings(optimizer=OptimizerSettings(lr=2e-4), precision="auto")
policy = Policy(load_model(run / "policy/warm", FLOAT32), settings, total_updates=2 * steps)
tokenizer = HfTokenizer.load(run / "policy/warm")
sampler = policy.sampler(tokenizer, protocol.grammar.stops, SamplerSettings(max_rows=128, max_tokens=limits.max_tokens))
torch.manual_seed(0)


def grpo_loss(logprobs_bt: Tensor, rows_b: Tensor, batch: Batch, advantages_B: Tensor, mask_BT: Tensor) -> Tensor:
    width, advantages_b1 = logprobs_bt.shape[1], advantages_B[rows_b, None]
    ratio_bt = (logprobs_bt - batch.logprobs_BT[rows_b, :width]).exp()
    clipped_bt = torch.where(advantages_b1 > 0, ratio_bt.clamp(max=1 + CLIP), ratio_bt.clamp(min=1 - CLIP))
    return -(clipped_bt * advantages_b1 * mask_BT[rows_b, :width]).sum() / mask_BT.sum()


for step in range(steps):
    # Sample: GROUP runs of every question. The agent thinks, searches, reads and answers.
    questions = [data[row] for row in torch.randperm(len(data))[:QUESTIONS].tolist()]
    runs = rollout(Agent(protocol, sampler), questions, retriever, limits=limits, samples=GROUP, seed=step)

    # Score: 1 for a gold answer, else 0. A run's advantage is how it compares with the others of its question.
    rewards_QG = torch.tensor([scored.value for one in runs if (scored := reward(one))]).view(QUESTIONS, GROUP)
    spread_QG = rewards_QG - rewards_QG.mean(dim=1, keepdim=True)
    advantages_B = (spread_QG / (rewards_QG.std(dim=1, keepdim=True, correction=0) + 1e-6)).flatten()

    # Update: the clipped policy gradient over the tokens that the agent wrote, and none that it only read.
    batch = make_batch(runs)
    for rows_B in torch.randperm(len(runs)).chunk(2):
        mask_BT = torch.zeros_like(batch.agent_BT)
        mask_BT[rows_B] = batch.agent_BT[rows_B]
        loss = partial(grpo_loss, batch=batch, advantages_B=advantages_B, mask_BT=mask_BT)
        policy.forward_backward(batch, mask_BT, loss)
        policy.optim_step()
    print(f"step {step + 1:2}  reward {rewards_QG.mean():.3f}", flush=True)
