"""Train a laptop generator on examples from throw-away worlds of the laptop lexicon (`reader.py`)."""

import random
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from coseek.graders.generator import Generator
from coseek.models.new_tokens import spelt_words
from coseek.pipelines.generator_recipe import GeneratorRecipe
from coseek.pipelines.reader import ReaderTraining
from coseek.training.sft.settings import Draw
from coseek.training.sft.synthetic import ExampleWriter, WorldSampler
from coseek.training.trainer.data_order import derive_seed
from coseek.world.world import make_world

TOKENIZER_WORLDS = 6
"""Worlds whose text the tokenizer learns from: every word of the language is in them."""


class GeneratorTraining(ReaderTraining[GeneratorRecipe]):
    """The training of one laptop generator."""

    NAME, TITLE = "generator", "A laptop generator"

    def draw(self, generator: Generator) -> Draw:
        recipe = self.recipe
        return ExampleWriter(self.samplers, generator, self.tokenizer, recipe.sft.curriculum, recipe.passages).draw

    @cached_property
    def samplers(self) -> list[WorldSampler]:
        """The throw-away worlds."""
        samplers = []
        self.progress.stage("worlds", self.recipe.worlds)
        for number in range(self.recipe.worlds):
            seed = derive_seed(self.recipe.seed, "generator world", number) % 2**31
            samplers.append(WorldSampler(make_world(self.recipe.world.model_copy(update={"seed": seed})), "train"))
            self.progress.advance(number + 1)
        return samplers

    def texts(self) -> Iterable[str]:
        """Passages, questions and examples."""
        texts: list[str] = []
        rng = random.Random(f"{self.recipe.seed}/texts")
        for sampler in self.samplers[:TOKENIZER_WORLDS]:
            texts += [f"{passage.title} :{passage.text}" for passage in sampler.world.corpus]
            for question in sampler.questions:
                example = sampler.example_of(question, 2, rng)
                texts += [f" Question : {question.question} So", example.written]
        return texts

    def new_words(self, start: Path) -> list[str]:
        return spelt_words(start, self.texts(), self.recipe.words)
