"""Updates a second: a step of ours against TRL's GRPOTrainer, both handed the same runs. Nothing is generated.

    python -m bench.update                       # a laptop policy, 64 runs
    python -m bench.update --runs 128 --turns 5 --bar 1.5
    python -m bench.update --shape smollm2 --runs 8 --turns 2 --sizes 2 4   # random weights
    python -m bench.update --shape smollm2 --runs 16 --turns 3 --sizes 2 4 --shared .5   # runs that begin alike

Both sides have the same weights, precision (float32), runs, masks, old log-probabilities, advantages, clips, token
loss aggregation, optimizer and one update a step: forward, loss, backward, clip, AdamW. Neither has a reference. TRL
is given
what it may fairly have: the best of several batch sizes, rows sorted by length so that a batch has little padding, its
batches made beforehand, no logging. With `--shared` the eight runs of a group begin
with the same tokens, as those of a question do, and ours runs them as a tree (`rl.policy.share_prefixes`) and apart.
The sides take turns in one process. First both losses are compared, so that it is
the same update that is timed. Exits 1 below `--bar`.
"""

import argparse
import copy
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from bench.gpu import SHAPES, make_model
from datasets import Dataset
from torch import Tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from coseek.data.question import Question
from coseek.data.trajectory import Author, Segment, StopReason, Trajectory
from coseek.hardware.device import instructions
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.laptop import LaptopSettings, new_model
from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.rewards.reward import Reward
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings
from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.backends.local import LocalBackend
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import score
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import update_weights

OWN_TOKENS = 275
"""Mean tokens of a run after its prompt."""
Inputs = dict[str, Tensor]
"""What TRL's `compute_loss` reads, by its names."""


@dataclass(frozen=True, slots=True)
class TrlSide:
    """Its trainer, with the module and the optimizer that it says may be missing."""

    trainer: GRPOTrainer
    module: PreTrainedModel
    optimizer: Optimizer

    def loss(self, inputs: Inputs) -> Tensor:
        """The loss of one micro-batch."""
        loss: Tensor = self.trainer.compute_loss(self.module, inputs)
        return loss


def main() -> int:
    options = _options()
    torch.set_num_threads(options.threads)
    world = make_world(WorldSettings(size="compact", train=10, dev=0, test=0))
    tokenizer = HfTokenizer(train_tokenizer([passage.text for passage in world.corpus], ("<answer>",), 3000))
    shape = options.shape
    model = make_model(SHAPES[shape], torch.device("cpu")) if shape else new_model(LaptopSettings(), tokenizer, 0)
    settings = RlSettings(num_minibatches=1, policy=LearnerSettings(micro_batch_tokens=options.micro_batch_tokens))
    policy = Policy(copy.deepcopy(model), settings.policy, 1)
    experience, prompts = _step(policy, settings, options, int(model.config.vocab_size))
    ours = {"ours": _our_step(policy, settings, experience)}
    if options.shared:
        trees = settings.policy.model_copy(update={"share_prefixes": True})
        shared = Policy(copy.deepcopy(model), trees, 1)
        ours = {"ours": _our_step(shared, settings, experience), "ours, apart": ours["ours"]}
    tokens = int(experience.batch.lengths_B.sum())
    print(f"{options.runs} runs, {tokens} tokens, {int(experience.mask_BT.sum())} of them the agent's")
    print(f"{options.threads} threads, instructions: {instructions()}")
    with tempfile.TemporaryDirectory() as folder:
        side = open_trl(copy.deepcopy(model), tokenizer, Path(folder))
        theirs = {size: _their_step(side, _batches(experience, prompts, size)) for size in options.sizes}
        return _race(ours, theirs, tokens, options)


def _our_step(policy: Policy, settings: RlSettings, experience: Experience) -> Callable[[], float]:
    backend = LocalBackend(policy, settings)
    return lambda: update_weights(experience, settings, open_algorithm(settings), backend, random.Random(0))["loss"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=64, help="runs in a step")
    parser.add_argument("--shape", choices=SHAPES, help="a larger network, with random weights")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[2, 4, 8, 16], help="batch sizes that TRL may choose from"
    )
    parser.add_argument(
        "--shared", type=float, default=0.0, help="share of a run's tokens that its group begins with, such as .5"
    )
    parser.add_argument("--turns", type=int, default=5, help="times that each side steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micro-batch-tokens", type=int, default=1024, help="ours, as TRL may choose its batch size")
    parser.add_argument(
        "--flat", type=float, default=0.0, help="share of groups without spread, which ours passes over"
    )
    parser.add_argument(
        "--by",
        choices=("by the clock", "in processor time"),
        default="by the clock",
        help="which time the bar is about",
    )
    parser.add_argument("--bar", type=float, default=1.5, help="how many times as fast ours has to be")
    return parser.parse_args()


def _step(
    policy: Policy, settings: RlSettings, options: argparse.Namespace, vocabulary: int
) -> tuple[Experience, list[int]]:
    """Runs as long as those of a laptop world: a prompt, one to four searches with what they found, an answer."""
    rng = random.Random(0)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(rng.randrange(10, vocabulary) for _ in range(rng.randint(low, high)))

    def agent(low: int, high: int) -> Segment:
        written = ids(low, high)
        return Segment(Author.AGENT, "search", "?", written, (-8.0,) * len(written))

    made: list[Trajectory] = []
    length = round(OWN_TOKENS * options.shared / (1 - options.shared))
    for number in range(options.runs):
        if not options.shared or number % 8 == 0:
            prompt = ids(length, length) if options.shared else ids(20, 40)
        segments = [Segment(Author.ENVIRONMENT, "prompt", "?", prompt)]
        for _ in range(rng.randint(1, 4)):
            segments += [agent(10, 25), Segment(Author.ENVIRONMENT, "information", "?", ids(60, 100))]
        segments.append(agent(8, 20))
        made.append(
            Trajectory(Question(str(number), "?"), "search-r1", tuple(segments), (), StopReason.ANSWERED, "?", True)
        )
    groups = [number // 8 for number in range(options.runs)]
    flat = round(options.flat * len(set(groups)))
    paid = iter([0.0 if group < flat else rng.random() for group in groups])
    episodes = score(groups, made, lambda _: Reward(next(paid)))
    experience = make_experience(episodes, settings, open_algorithm(settings), LocalBackend(policy, settings))
    # On-policy, as a first minibatch is: nothing is clipped away on either side.
    experience = replace(experience, old_BT=policy.forward(experience.batch, experience.mask_BT))
    return experience, [len(run.segments[0].ids) for run in made]


def _batches(experience: Experience, prompts: list[int], size: int) -> list[Inputs]:
    order = experience.batch.lengths_B.argsort(descending=True)
    return [inputs_of(experience, prompts, rows_b) for rows_b in order.split(size)]


def _their_step(side: TrlSide, batches: list[Inputs]) -> Callable[[], float]:
    """What its training loop does with prepared batches: loss and backward of each, then clip and step."""

    def step() -> float:
        total = 0.0
        for inputs in batches:
            loss = side.loss(inputs)
            side.trainer.accelerator.backward(loss)
            total += float(loss.detach())
        side.trainer.accelerator.clip_grad_norm_(side.module.parameters(), 1.0)
        side.optimizer.step()
        side.optimizer.zero_grad()
        return total

    return step


def _race(
    ours: dict[str, Callable[[], float]],
    theirs: dict[int, Callable[[], float]],
    tokens: int,
    options: argparse.Namespace,
) -> int:
    """A turn of each to warm up, in which the losses must agree; then in turn, by the clock and in processor time."""
    losses = {name: step() for name, step in ours.items()}
    losses |= {f"TRL, {size} rows": theirs[size]() for size in options.sizes[:1]}
    print("first losses: " + ", ".join(f"{name} {loss:.5f}" for name, loss in losses.items()))
    contenders = {**ours, **{f"TRL, {size} rows": step for size, step in theirs.items()}}
    clocks = {"by the clock": time.perf_counter, "in processor time": time.process_time}
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in contenders} for clock in clocks}
    for _ in range(options.turns):
        for name, step in contenders.items():
            began = {clock: now() for clock, now in clocks.items()}
            step()
            for clock, now in clocks.items():
                taken[clock][name].append(now() - began[clock])
    factors = {clock: _compare(clock, seconds, tokens) for clock, seconds in taken.items()}
    return 0 if factors[options.by] >= options.bar else 1


def _compare(clock: str, seconds: dict[str, list[float]], tokens: int) -> float:
    """How many times as fast ours is as the best of the others, the median over the turns."""
    medians = {name: statistics.median(turns) for name, turns in seconds.items()}
    print(f"{clock}:")
    for name, turns in seconds.items():
        rates = sorted(tokens / second for second in turns)
        print(f"  {name:14} {tokens / medians[name]:8.0f} tokens/s  ({rates[0]:.0f} to {rates[-1]:.0f})")
    best = min((name for name in seconds if name.startswith("TRL")), key=medians.__getitem__)
    factor = 0.0
    for other in [*(name for name in seconds if name == "ours, apart"), best]:
        by_turn = sorted(theirs / own for own, theirs in zip(seconds["ours"], seconds[other], strict=True))
        factor = statistics.median(by_turn)
        print(f"  ours is {factor:.2f} times as fast as {other} ({by_turn[0]:.2f} to {by_turn[-1]:.2f} turn by turn)")
    return factor


# --- TRL's side


def open_trl(model: PreTrainedModel, tokenizer: HfTokenizer, folder: Path) -> TrlSide:
    """A GRPOTrainer on the CPU that logs nowhere; it changes the model's `forward`, so give it a copy."""
    with warnings.catch_warnings():
        # Its own code uses names that transformers has deprecated.
        warnings.simplefilter("ignore", FutureWarning)
        config = GRPOConfig(
            output_dir=str(folder),
            report_to="none",
            use_cpu=True,
            bf16=False,
            loss_type="dapo",
            beta=0.0,
            per_device_train_batch_size=8,
            num_generations=8,
            steps_per_generation=1,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=_no_reward,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "?"}] * 8),
            processing_class=tokenizer.fast,
        )
        trainer.create_optimizer()
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    assert trainer.optimizer is not None
    return TrlSide(trainer, model, trainer.optimizer)


def inputs_of(experience: Experience, prompts_B: Sequence[int], rows_b: Tensor) -> Inputs:
    """These rows of a step in TRL's shape: prompts padded on the left, completions on the right, what the environment
    wrote in its `tool_mask`. A row's first `prompts_B[row]` tokens are its prompt."""
    batch = experience.batch
    lengths = [int(batch.lengths_B[row]) for row in rows_b.tolist()]
    prompts = [prompts_B[row] for row in rows_b.tolist()]
    wide, long = max(prompts), max(all_ - prompt for all_, prompt in zip(lengths, prompts, strict=True))
    prompt_ids = torch.zeros(len(prompts), wide, dtype=torch.long)
    prompt_mask = torch.zeros_like(prompt_ids)
    parts = {"completion_ids": batch.ids_BT, "tool_mask": experience.mask_BT, "old_per_token_logps": experience.old_BT}
    inputs = {name: torch.zeros(len(prompts), long, dtype=whole.dtype) for name, whole in parts.items()}
    completion_mask = torch.zeros(len(prompts), long, dtype=torch.long)
    advantages_b = torch.zeros(len(prompts))
    for place, row in enumerate(rows_b.tolist()):
        prompt, length = prompts[place], lengths[place]
        prompt_ids[place, wide - prompt :] = batch.ids_BT[row, :prompt]
        prompt_mask[place, wide - prompt :] = 1
        completion_mask[place, : length - prompt] = 1
        for name, whole in parts.items():
            inputs[name][place, : length - prompt] = whole[row, prompt:length]
        advantages_b[place] = experience.advantages_BT[row][experience.mask_BT[row]][0]
    inputs["tool_mask"] = inputs["tool_mask"].long()
    return {
        **inputs,
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_mask": completion_mask,
        "advantages": advantages_b,
        "num_items_in_batch": experience.mask_BT.sum(),
    }


def _no_reward(completions: Sequence[str], **_: object) -> list[float | None]:
    return [0.0] * len(completions)


if __name__ == "__main__":
    sys.exit(main())
