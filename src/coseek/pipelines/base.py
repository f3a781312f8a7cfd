"""Train a base model: a laptop policy that reads passages of worlds whose every word is drawn, before any protocol.

    coseek train base --out runs/base

`reader.py` lists the files; the table has an ability a row. Policies start from OUT/base (`policy.folder`), and it
answers as a generator as it is.
"""

import random
from collections.abc import Iterable
from functools import cached_property
from statistics import fmean

from coseek.core.errors import DataError
from coseek.core.fingerprint import fingerprint
from coseek.core.hub import missing
from coseek.data.identities import Identities
from coseek.graders.generator import Generator
from coseek.measure.score import Scores
from coseek.measure.table import Table, group_table, scores_json
from coseek.models.pretrained import load_model, save_model
from coseek.models.shipped import model_path, shipped_models
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.base_abilities import abilities, abilities_json, abilities_table, facts_read
from coseek.pipelines.base_recipe import BaseRecipe
from coseek.pipelines.reader import ReaderTraining
from coseek.pipelines.run_record import write_tables
from coseek.training.sft.base_tasks import BaseTasks
from coseek.training.sft.curriculum import Draw
from coseek.training.sft.synthetic import WorldSampler
from coseek.training.trainer.data_order import derive_seed
from coseek.world import english
from coseek.world.world import World, make_world

WHOLE_WORDS = {1000: (english.COMMON,), 100: (english.ADJECTIVES, english.NOUNS, english.KIND_WORDS, english.ROLES)}
"""How often the tokenizer meets words of these lists, so that it learns them whole."""
TEXT_WORLDS = 1_000_000
"""Number of the first world whose text the tokenizer learns from; examples come from lower numbers."""


class BaseTraining(ReaderTraining[BaseRecipe]):
    """The training of one base model."""

    NAME, TITLE = "base", "A base model"

    def check(self) -> None:
        if self.recipe.start is not None and not (model_path(self.recipe.start) / "config.json").exists():
            raise DataError(missing("base model", self.recipe.start, "start", shipped_models()))

    def identities(self) -> Identities:
        return {} if self.recipe.start is None else {"start": fingerprint(model_path(self.recipe.start))}

    def make_start(self) -> None:
        if self.recipe.start is None:
            super().make_start()
        elif not self.start_folder.exists():
            source = model_path(self.recipe.start)
            save_model(load_model(source, self.recipe.in_float32()), HfTokenizer.load(source), self.start_folder)

    def draw(self, generator: Generator) -> Draw:
        return self.tasks(generator).draw

    def tasks(self, generator: Generator) -> BaseTasks:
        recipe = self.recipe
        seed = derive_seed(recipe.seed, "base tasks")
        return BaseTasks(recipe.tasks, seed, self.tokenizer, self.tokenizer.size, generator)

    def texts(self) -> Iterable[str]:
        """English words, and passages, questions and facts of drawn worlds."""
        for times, lists in WHOLE_WORDS.items():
            for words in lists:
                yield from (f" {word}" for word in words.split() for _ in range(times))
                yield from (f" {word.capitalize()}" for word in words.split() for _ in range(100))
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

    def evaluate(self, generator: Generator) -> dict[str, float]:
        """Strict EM on two held-out worlds, one of a drawn lexicon and a laptop world, and facts read in the first."""
        laptop = {f"laptop {name}": value for name, value in self.reading(generator, self.laptop_world).items()}
        sampler, rng = WorldSampler(self.held_out, "dev"), random.Random(self.recipe.table.seed)
        read = facts_read(generator, self.tasks(generator), sampler, rng, self.recipe.table.dev_questions)
        return self.reading(generator, self.held_out) | laptop | {name: fmean(values) for name, values in read.items()}

    def write_results(self, scores: Scores) -> Table:
        """`table.md` and `table.json` of the abilities; returns the table of abilities."""
        model = load_model(self.trained_folder, self.recipe)
        generator = self.generator_of(model, "trained")
        worlds = {"drawn": self.held_out, "laptop": self.laptop_world}
        found = abilities(self, model, generator, self.tasks(generator), worlds)
        table = abilities_table(found)
        self._write_card(self.trained_folder, self.NAME, table)
        text = f"# {self.TITLE}\n\n{table.markdown()}\n## The world of drawn words\n\n{group_table(scores).markdown()}"
        write_tables(self.folder, text, {"abilities": abilities_json(found), **scores_json(scores)})
        return table
