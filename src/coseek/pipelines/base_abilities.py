"""What a base model can do where it never learnt: its abilities, each with an interval."""

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from coseek.core.files import JsonObject
from coseek.graders.generator import Generator
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.table import Table
from coseek.models.text_model import generate_each
from coseek.pipelines.base_recipe import BaseRecipe
from coseek.pipelines.reader import ReaderTraining
from coseek.training.sft.base_tasks import BaseExample, BaseTasks, Task
from coseek.training.sft.loop import repeat_batch
from coseek.training.sft.synthetic import ExampleSampler, WorldSampler

DISTANCES = (10, 50, 100, 200, 300)
"""Tokens between the copies of a sequence."""
ROWS, LENGTH = 32, 24
"""Number of sequences to copy, and their length in tokens."""


def _conclusion(text: str) -> str:
    """The last sentence, without the facts before it."""
    return text.strip().removesuffix(".").strip().replace(" ? ", " . ").rpartition(" . ")[2]


ENDS: dict[Task, Callable[[str], str]] = {
    "drill": str.strip, "next": _conclusion, "support": str.strip, "check": _conclusion, "enough": _conclusion,
}  # fmt: skip
"""Task → what of a text must be that of the target: all of it, or what follows from the facts."""

Abilities = dict[str, Interval]
"""Ability → the share of cases that are right."""


def abilities(
    reader: ReaderTraining[BaseRecipe],
    model: PreTrainedModel,
    generator: Generator,
    tasks: BaseTasks,
    samplers: Mapping[str, ExampleSampler],
    world: WorldSampler,
) -> Abilities:
    """Measure every ability of a model: reading, with each of the samplers by name, and the tasks in a world."""
    count, seed = reader.recipe.table.questions, reader.recipe.table.seed
    right: dict[str, Sequence[float]] = {}
    for name, sampler in samplers.items():
        for hops, values in reader.right_by_hops(generator, sampler, count).items():
            right[f"read {name}, hops: {hops}"] = values
    for task, end in ENDS.items():
        rng = random.Random(f"{seed}/{task}")
        examples = [tasks.example(task, world, 1.0, rng) for _ in range(max(1, count // 4))]
        right[task] = _same(generator, examples, end)
    right |= facts_read(generator, tasks, world, random.Random(f"{seed}/facts"), count)
    right |= {f"copy after {distance} tokens": _copied(model, distance, seed) for distance in DISTANCES}
    rng_numpy = np.random.default_rng(seed)
    found = {name: bootstrap_mean(values, rng_numpy) for name, values in right.items()}
    return {name: interval for name, interval in found.items() if interval is not None}


def abilities_table(found: Mapping[str, Interval]) -> Table:
    """One ability a row."""
    return Table(("ability", "right"), tuple((name, str(interval)) for name, interval in found.items()))


def abilities_json(found: Mapping[str, Interval]) -> JsonObject:
    return {
        name: {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n}
        for name, interval in found.items()
    }


def _same(generator: Generator, examples: Sequence[BaseExample], end: Callable[[str], str]) -> list[float]:
    """1 for each example whose text ends as its target, by what `end` takes of both."""
    written = generate_each(generator.model, [one.shown for one in examples], generator.max_answer_tokens)
    return [
        float(isinstance(text, str) and end(text) == end(one.written))
        for text, one in zip(written, examples, strict=True)
    ]


def facts_read(
    generator: Generator, tasks: BaseTasks, sampler: WorldSampler, rng: random.Random, count: int
) -> dict[str, list[float]]:
    """How a passage states a fact → whether its value is written after the name, the number and the relation."""
    prompts, stated, values = list[str](), list[str](), list[str]()
    for _ in range(count):
        example = tasks.example("drill", sampler, 1.0, rng)
        key, _, value = example.written.partition(" .")[0].partition(" :")
        place, _, relation = key.partition(" , ")
        text = example.passages[int(place.rpartition(" # ")[2]) - 1].text
        places = text.find(f" {relation} "), text.find(f"{value} ")
        order = "in other words" if places[0] < 0 else "relation first" if places[0] < places[1] else "value first"
        prompts.append(f"{example.shown}{key} :")
        stated.append(f"fact, {order}")
        values.append(value)
    right: dict[str, list[float]] = {}
    written = generate_each(generator.model, prompts, generator.max_answer_tokens)
    for order, output, value in zip(stated, written, values, strict=True):
        right.setdefault(order, []).append(float(isinstance(output, str) and output.partition(" .")[0] == value))
    return dict(sorted(right.items()))


def _copied(model: PreTrainedModel, distance: int, seed: int) -> list[float]:
    """Whether each token of the second copy of random sequences is predicted, all tokens before it given."""
    generator = torch.Generator().manual_seed(seed)
    batch = repeat_batch(model.config.get_text_config().vocab_size, ROWS, LENGTH, generator, distance)
    ids_BT = batch.ids_BT.to(model.device)
    with torch.inference_mode():
        logits_BTV: Tensor = model(input_ids=ids_BT).logits
    right_BT = logits_BTV[:, :-1].argmax(-1) == ids_BT[:, 1:]
    values: list[float] = right_BT[batch.agent_BT[:, 1:].to(model.device)].float().tolist()
    return values
