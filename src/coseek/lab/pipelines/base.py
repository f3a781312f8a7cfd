"""Train a base model: a laptop policy that learns to read passages before any protocol, in worlds of drawn words and in
a user's corpus.

    coseek train base --out runs/base
    coseek train base data/mine --out runs/base-mine

`reader.py` lists the files. With a corpus, OUT/made is the data set of the questions made from it. The table has one
row per ability, measured outside of the training data, with an interval. Policies start from OUT/base
(`policy.folder`); it can also be used as a generator.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.prompt_file import one_line
from coseek.data.dataset import Dataset
from coseek.data.digests import Identities
from coseek.data.passage import Corpus, Passage
from coseek.graders.generator import ContextBudget, Generator
from coseek.lab.pipelines.reader import ReaderTraining
from coseek.lab.pipelines.recipes import BaseRecipe, CorpusSettings
from coseek.lab.synthesis.synthesis import synthesize
from coseek.lab.training.base_tasks import BaseExample, BaseTasks, Task
from coseek.lab.training.examples import ExampleSampler
from coseek.lab.world.drawn_lexicon import english
from coseek.lab.world.passages import spaced
from coseek.lab.world.world import World, make_world
from coseek.measure.intervals import Interval, bootstrap_mean
from coseek.measure.score import Scores
from coseek.measure.table import Table, scores_json
from coseek.models.new_tokens import spelt_words
from coseek.models.pretrained import load_model
from coseek.models.text_model import generate_each
from coseek.pipelines.data_folder import check_data_folder
from coseek.pipelines.demonstrations import texts_in
from coseek.pipelines.run_record import data_set_identities, write_tables
from coseek.training.learner.data_order import derive_seed
from coseek.training.sft.loop import repeat_batch
from coseek.training.sft.settings import Draw

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
"""Task → the part of a text that must equal the target's: all of it, or the conclusion after the facts."""


def _target_matches(generator: Generator, examples: Sequence[BaseExample], end: Callable[[str], str]) -> list[float]:
    """1 for each example whose text equals its target in the part that `end` returns, else 0."""
    outputs = generate_each(generator.model, [example.shown for example in examples], generator.max_answer_tokens)
    return [
        float(isinstance(text, str) and end(text) == end(example.written))
        for text, example in zip(outputs, examples, strict=True)
    ]


def facts_read(
    generator: Generator, tasks: BaseTasks, sampler: ExampleSampler, rng: random.Random, count: int
) -> dict[str, list[float]]:
    """How a passage states a fact → whether its value is written after the name, the number and the relation."""
    prompts, orders, values = list[str](), list[str](), list[str]()
    for _ in range(count):
        example = tasks.example("drill", sampler, 1.0, rng)
        key, _, value = example.written.partition(" .")[0].partition(" :")
        title, _, relation = key.partition(" , ")
        text = example.passages[int(title.rpartition(" # ")[2]) - 1].text
        relation_at, value_at = text.find(f" {relation} "), text.find(f"{value} ")
        order = "in other words" if relation_at < 0 else "relation first" if relation_at < value_at else "value first"
        prompts.append(f"{example.shown}{key} :")
        orders.append(f"fact, {order}")
        values.append(value)
    right: dict[str, list[float]] = {}
    outputs = generate_each(generator.model, prompts, generator.max_answer_tokens)
    for order, output, value in zip(orders, outputs, values, strict=True):
        right.setdefault(order, []).append(float(isinstance(output, str) and output.partition(" .")[0] == value))
    return dict(sorted(right.items()))


def _copy_hits(model: PreTrainedModel, distance: int, seed: int) -> list[float]:
    """Whether each token of the second copy of random sequences is predicted, all tokens before it given."""
    generator = torch.Generator().manual_seed(seed)
    batch = repeat_batch(model.config.get_text_config().vocab_size, ROWS, LENGTH, generator, distance)
    ids_BT = batch.ids_BT.to(model.device)
    with torch.inference_mode():
        logits_BTV: Tensor = model(input_ids=ids_BT).logits
    right_BT = logits_BTV[:, :-1].argmax(-1) == ids_BT[:, 1:]
    values: list[float] = right_BT[batch.agent_BT[:, 1:].to(model.device)].float().tolist()
    return values


WHOLE_WORDS = {1000: ("common",), 100: ("adjectives", "nouns", "kind_words", "roles")}
"""Number of copies in the tokenizer's training text → lists of words (`drawn.yaml`) that it should learn whole."""
TEXT_WORLDS = 1_000_000
"""Number of the first world whose text the tokenizer learns from; examples come from lower numbers."""

DRAWN, LAPTOP, OWN = "a drawn world", "a laptop world", "own questions"
"""Held-out data; `OWN` are the corpus' own questions."""
MADE = "made"
"""Folder of the data set with the questions made from the corpus."""
METRIC_MARKS = {DRAWN: "", LAPTOP: "laptop "}
"""Held-out data → prefix of its metrics in training; by default its name."""


class BaseTraining(ReaderTraining[BaseRecipe]):
    """The training of one base model."""

    NAME, TITLE = "base", "A base model"

    def check(self) -> None:
        super().check()
        if (corpus := self.recipe.corpus) is not None:
            check_data_folder(corpus.folder, "corpus.folder", corpus.train)
            check_data_folder(corpus.folder, "corpus.folder", corpus.held_out, usual="test")

    def identities(self) -> Identities:
        digests, corpus = super().identities(), self.recipe.corpus
        return digests if corpus is None else {**digests, **data_set_identities("corpus.folder", corpus.folder)}

    def make_start(self) -> None:
        if self.recipe.corpus is not None:
            self._make_questions()
        super().make_start()

    def new_words(self, start: Path) -> list[str]:
        corpus = self.recipe.corpus
        return [] if corpus is None else spelt_words(start, self._corpus_texts(), corpus.words)

    def _make_questions(self) -> None:
        """Write OUT/made, unless it exists. Raises `DataError` if there is nothing to learn from."""
        corpus, out = self.corpus, self.folder / MADE
        if out.exists():
            return
        self.progress.stage("questions", corpus.made.count)
        try:
            summary = synthesize(
                self.given.folder, out, corpus.made, train=corpus.train,
                tell=lambda _, done, total: self.progress.advance(done),
            )  # fmt: skip
        except DataError as error:
            if corpus.train not in self.given.splits:
                raise
            self.progress.say(f"{error}. Training uses the corpus' own questions only")
            return
        self.progress.say(f"questions made from the passages of {corpus.folder}: {summary}")

    @property
    def corpus(self) -> CorpusSettings:
        """The settings of the user's corpus, where the recipe has one."""
        assert self.recipe.corpus is not None
        return self.recipe.corpus

    @property
    def given(self) -> Dataset:
        """The user's data set."""
        return Dataset(Path(self.corpus.folder))

    def draw(self, generator: Generator) -> Draw:
        return self.tasks(generator).draw

    def tasks(self, generator: Generator) -> BaseTasks:
        recipe = self.recipe
        seed = derive_seed(recipe.seed, "base tasks")
        tasks = BaseTasks(recipe.tasks, seed, self.tokenizer, self.tokenizer.size, generator)
        if (corpus := recipe.corpus) is None:
            return tasks
        sampler = self.corpus_sampler("train", corpus.train)
        if not sampler.questions:
            raise DataError(
                f"no question of {corpus.folder} has a path that {corpus.passage_tokens} tokens of its passages state; "
                "raise corpus.passage_tokens, or give more documents"
            )
        return replace(tasks, corpus=sampler, corpus_share=corpus.share)

    def corpus_sampler(self, made: str, own: str) -> ExampleSampler:
        """The made questions of the split `made`, and the corpus' own questions of the split `own`, if they exist."""
        made_folder = self.folder / MADE
        sources = [(Dataset(made_folder), made)] if made_folder.exists() else []
        sources.append((self.given, own))
        questions = [question for data, split in sources if split in data.splits for question in data.questions(split)]
        return ExampleSampler.of_corpus(self.shown_corpus, questions)

    @cached_property
    def shown_corpus(self) -> Corpus:
        """The passages as an agent reads them: cut, and with a space in front."""
        max_tokens = self.corpus.passage_tokens
        budget = ContextBudget(max_tokens, tokenizer=self.tokenizer)

        def cut_passage(passage: Passage) -> Passage:
            text = budget.cut(spaced(one_line(passage.text)), max_tokens)
            return replace(passage, title=spaced(one_line(passage.title)), text=text)

        return Corpus(map(cut_passage, self.given.corpus), f"the cut passages of {self.corpus.folder}")

    def _corpus_texts(self) -> Iterator[str]:
        """Passages and training questions of the corpus."""
        train = self.corpus.train
        yield from texts_in(self.given.corpus, self.given.questions(train) if train in self.given.splits else [])

    def texts(self) -> Iterable[str]:
        """English words, passages, questions and facts of drawn worlds, and the texts of the corpus."""
        if self.recipe.corpus is not None:
            yield from self._corpus_texts()
        for times, lists in WHOLE_WORDS.items():
            for words in map(english, lists):
                yield from (f" {word}" for word in words for _ in range(times))
                yield from (f" {word.capitalize()}" for word in words for _ in range(100))
        rng = random.Random(f"{self.recipe.seed}/texts")
        self.progress.stage("texts", self.recipe.tokenizer_worlds)
        for number in range(self.recipe.tokenizer_worlds):
            settings = self.recipe.tasks.world.model_copy(update={"seed": TEXT_WORLDS + number})
            world = make_world(settings)
            yield from (f"{passage.title} # {rng.randint(1, 9)} :{passage.text}" for passage in world.corpus)
            for question in world.questions["train"]:
                yield f" Question :{question.question} So : Then : Next : Support : Check : Claim : Enough : Answer :"
            self.progress.advance(number + 1)

    @cached_property
    def laptop_world(self) -> World:
        return make_world(self.recipe.laptop_world)

    def held_out_samplers(self, split: str) -> dict[str, ExampleSampler]:
        """Name → held-out data: two worlds, and the questions of the corpus, made and its own."""
        samplers: dict[str, ExampleSampler] = {
            DRAWN: ExampleSampler.of_world(self.held_out, split),
            LAPTOP: ExampleSampler.of_world(self.laptop_world, split),
        }
        if self.recipe.corpus is not None:
            samplers["made questions"] = self.corpus_sampler(split, "")
            samplers[OWN] = self.corpus_sampler("", self.recipe.corpus.held_out)
        return {name: sampler for name, sampler in samplers.items() if sampler.questions}

    def evaluate(self, generator: Generator) -> dict[str, float]:
        """Strict EM on held-out questions, and facts read in a world of drawn words."""
        samplers = self.held_out_samplers("dev")
        samplers.pop(OWN, None)  # for the final measurement only
        metrics: dict[str, float] = {}
        for name, sampler in samplers.items():
            prefix = METRIC_MARKS.get(name, f"{name} ")
            metrics |= {f"{prefix}{metric}": value for metric, value in self.reading(generator, sampler).items()}
        world, rng = ExampleSampler.of_world(self.held_out, "dev"), random.Random(self.recipe.table.seed)
        by_order = facts_read(generator, self.tasks(generator), world, rng, self.recipe.table.dev_questions)
        return metrics | {name: fmean(values) for name, values in by_order.items()}

    def abilities(self, generator: Generator, model: PreTrainedModel) -> dict[str, Interval]:
        """Measure a model: ability → share of right cases. Abilities are reading, with each of the samplers, and the
        tasks in a drawn world."""
        count, seed, tasks = self.recipe.table.questions, self.recipe.table.seed, self.tasks(generator)
        right: dict[str, Sequence[float]] = {}
        for name, sampler in self.held_out_samplers("test").items():
            for hops, values in self.right_by_hops(generator, sampler, count).items():
                right[f"read {name}, hops: {hops}"] = values
        world = ExampleSampler.of_world(self.held_out, "test")
        for task, end in ENDS.items():
            rng = random.Random(f"{seed}/{task}")
            examples = [tasks.example(task, world, 1.0, rng) for _ in range(max(1, count // 4))]
            right[task] = _target_matches(generator, examples, end)
        right |= facts_read(generator, tasks, world, random.Random(f"{seed}/facts"), count)
        right |= {f"copy after {distance} tokens": _copy_hits(model, distance, seed) for distance in DISTANCES}
        rng_numpy = np.random.default_rng(seed)
        intervals = {name: bootstrap_mean(values, rng_numpy) for name, values in right.items()}
        return {name: interval for name, interval in intervals.items() if interval is not None}

    def write_results(self, scores: Scores) -> Table:
        """`table.md` and `table.json` of the abilities; returns the table of abilities."""
        model = load_model(self.trained_folder, self.recipe)
        generator = self.generator_of(model, "trained")
        intervals = self.abilities(generator, model)
        reading = self.reading_table(scores)
        rows = tuple((name, str(interval)) for name, interval in intervals.items())
        table = Table(("ability", "right"), rows, reading.notes)
        self._write_card(self.trained_folder, self.NAME, table)
        text = f"# {self.TITLE}\n\n{table.markdown()}\n## The world of drawn words\n\n{reading.markdown()}"
        values: JsonObject = {
            name: {"mean": interval.mean, "low": interval.low, "high": interval.high, "n": interval.n}
            for name, interval in intervals.items()
        }
        write_tables(self.folder, text, {"abilities": values, **scores_json(scores)})
        return table
