"""How a small network learns to copy: three orders of the same practice, read at distances shown and not shown.

    python bench/copying.py               # three seeds, about a minute a line on one thread

Every line trains an untrained laptop network on random sequences that are written twice, for as many steps, and prints
the share of the second writing that it predicts when it comes back at each distance.
"""

import argparse
import time
from collections.abc import Callable

import torch

from coseek.hardware.host import Host
from coseek.models.laptop import LaptopSettings, new_model
from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.training.sft.copy_task import repeat_batch, varied_batch
from coseek.training.sft.loop import token_weights, weighted_loss
from coseek.training.sft.settings import SftSettings
from coseek.training.trainer.batch import Batch
from coseek.training.trainer.policy import Policy

DISTANCES = (12, 24, 37, 60, 100)
LENGTH, TOKENS, SHARE = 24, 1536, 120 / 380
"""`SHARE` of the steps are at one distance."""
SHAPE = LaptopSettings(layers=("conv", "full_attention") * 3, vocabulary=2500)

Schedule = Callable[[float, int, torch.Generator], Batch]


def fixed(done: float, vocabulary: int, generator: torch.Generator) -> Batch:
    return repeat_batch(vocabulary, TOKENS // (2 * LENGTH), LENGTH, generator)


def varied(done: float, vocabulary: int, generator: torch.Generator) -> Batch:
    return varied_batch(vocabulary, TOKENS, LENGTH, 1.0, generator)


def spreading(done: float, vocabulary: int, generator: torch.Generator) -> Batch:
    """What `sft.repeat_steps` and `sft.varied_steps` do."""
    spread = (done - SHARE) / (1 - SHARE)
    if spread < 0 or torch.rand((), generator=generator) < 0.5:
        return fixed(done, vocabulary, generator)
    return varied_batch(vocabulary, TOKENS, LENGTH, spread, generator)


SCHEDULES: dict[str, Schedule] = {
    "one distance": fixed,
    "varied from the start": varied,
    "one distance, then spreading": spreading,
}


def accuracy(policy: Policy, vocabulary: int, distance: int) -> float:
    """Share of the second writing whose next token is the most likely one; `distance` from one writing to the other."""
    length = min(LENGTH, distance)
    batch = repeat_batch(vocabulary, 64, length, torch.Generator().manual_seed(99), gap=distance - length)
    with torch.no_grad():
        logits_BTV = policy.model(input_ids=batch.ids_BT).logits
    right_BT = logits_BTV[:, :-1].argmax(-1) == batch.ids_BT[:, 1:]
    asked_BT = batch.agent_BT[:, 1:].clone()
    asked_BT[:, distance - 1] = False  # the first token of the second writing: nothing says that it begins
    return float(right_BT[asked_BT].float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=380)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    words = (f" w{number}" for number in range(2500))
    tokenizer = HfTokenizer(train_tokenizer(words, (), SHAPE.vocabulary))
    print(f"one thread, instructions: {Host.here().instructions}\n")
    print(f"| practice | seed | {' | '.join(f'at {distance}' for distance in DISTANCES)} | seconds |")
    print(f"|---|--:|{'--:|' * (len(DISTANCES) + 1)}")
    for name, schedule in SCHEDULES.items():
        for seed in range(given.seeds):
            began = time.perf_counter()
            policy = Policy(new_model(SHAPE, tokenizer, seed), SftSettings().learner, 10 * given.steps)
            generator = torch.Generator().manual_seed(seed)
            for step in range(given.steps):
                batch = schedule(step / given.steps, tokenizer.size, generator)
                weights_BT = token_weights(batch, 0.0)
                policy.forward_backward(batch, weights_BT != 0.0, weighted_loss(weights_BT))
                policy.optim_step()
            found = " | ".join(f"{accuracy(policy, tokenizer.size, distance):.2f}" for distance in DISTANCES)
            print(f"| {name} | {seed} | {found} | {time.perf_counter() - began:.0f} |", flush=True)


if __name__ == "__main__":
    main()
