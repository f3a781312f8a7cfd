"""Train a laptop model that reads passages: examples from worlds → supervised training → a model folder and a table.
`GeneratorTraining` trains a laptop generator on examples from throw-away worlds of the laptop lexicon.

    OUT/recipe.yaml      the recipe, versions and commit
    OUT/start            the model that training starts from: an untrained one, or `start` with new words
    OUT/training         metrics and checkpoints
    OUT/NAME             the trained model folder; its generator.yaml is the prompt around passages
    OUT/table.md, .json  EM on a held-out world, with and without gold passages

A step whose result exists is skipped, so a stopped run resumes.
"""

import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import ClassVar, TypeVar

import torch
from transformers import PreTrainedModel

from coseek.core.errors import DataError
from coseek.core.fingerprint import fingerprint
from coseek.data.answers import exact_match
from coseek.data.dataset import draw
from coseek.data.digests import Identities
from coseek.data.passage import Hit, Passage
from coseek.data.question import KNOWN, Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.graders.generator import (
    OWN_PROMPT,
    PROMPTS,
    Generator,
    GeneratorOutput,
    GeneratorSettings,
    load_generator_prompt,
)
from coseek.hub.card import FILE as MODEL_CARD
from coseek.lab.pipelines.recipes import GeneratorRecipe, ReaderRecipe
from coseek.lab.training.examples import ExampleSampler, ExampleWriter
from coseek.lab.world.world import World, make_world
from coseek.measure.score import Scores, score_runs
from coseek.measure.table import Table, claims_between, group_table, main_table, scores_json, verdict
from coseek.models.laptop import make_policy
from coseek.models.model_folder import missing, model_path, shipped_models
from coseek.models.new_tokens import add_tokens, spelt_words
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.text_model import LocalTextModel
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.data_folder import check_data_folder
from coseek.pipelines.run_record import TrainingRun, data_set_identities, write_tables
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.policy import Policy, load_learner
from coseek.training.sft.loop import train_sft
from coseek.training.sft.settings import Draw

PROMPT = "generator-laptop"
BATCH = 64
"""Questions answered at once."""

R = TypeVar("R", bound=ReaderRecipe)
LIMITS = (
    "It reads short generated English. It knows no facts and follows no instructions. Text by people is outside its "
    "training, and its answers there were not measured."
)


class ReaderTraining(TrainingRun[R], ABC):
    """The training of one laptop model that reads. Subclasses define its examples."""

    NAME: ClassVar[str]
    """Name of the trained folder."""
    TITLE: ClassVar[str]
    """Title of the table."""

    @abstractmethod
    def draw(self, generator: Generator) -> Draw:
        """The function that draws training examples, with the prompt of `generator`."""

    @abstractmethod
    def texts(self) -> Iterable[str]:
        """Training texts of the tokenizer."""

    @abstractmethod
    def new_words(self, start: Path) -> list[str]:
        """Words to add as tokens to the model folder `start`; see `spelt_words`."""

    def check(self) -> None:
        start = self.recipe.start
        if start is not None and not (model_path(start) / "config.json").exists():
            raise DataError(missing("base model", start, "start", shipped_models()))

    def identities(self) -> Identities:
        return {} if self.recipe.start is None else {"start": fingerprint(model_path(self.recipe.start))}

    def evaluate(self, generator: Generator) -> dict[str, float]:
        """Metrics of an evaluation in training: strict EM on held-out dev questions, in all and by hops."""
        return self.reading(generator, ExampleSampler.of_world(self.held_out, "dev"))

    def train(self) -> None:
        """Write the start model, train it and save the result; finished steps are skipped. All workers train; the first
        one writes, evaluates and saves."""
        if self.recipe.threads is not None:
            torch.set_num_threads(self.recipe.threads)
        if self.workers.is_main:
            self.make_start()
        if self.workers.broadcast(self.trained_folder.exists):
            return
        model = load_learner(self.start_folder, self.recipe, self.recipe.sft.learner, self.workers)
        policy = Policy(model, self.recipe.sft.learner, 0, workers=self.workers)
        generator = self.generator_of(model, "in training")
        outcome = train_sft(
            policy,
            self.draw(generator),
            self.recipe.sft.model_copy(update={"seed": derive_seed(self.recipe.seed, self.recipe.sft.seed, "sft")}),
            self.folder / "training",
            resume=True,
            evaluate=lambda _: self.workers.broadcast(lambda: self.evaluate(generator)),
            progress=self.progress,
        )
        if not outcome.passed:
            self.progress.warn(f"the gate of {self.recipe.sft.gate} was not reached; do not rely on its answers")

        def extra(folder: Path) -> None:
            self.tokenizer.save(folder)
            shutil.copyfile(PROMPTS / f"{PROMPT}.yaml", folder / OWN_PROMPT)
            self._write_card(folder, self.NAME)

        policy.save(self.trained_folder, extra)

    def make_start(self) -> None:
        """Write the model that training starts from, and its card, unless they exist."""
        if not self.start_folder.exists():
            if self.recipe.start is None:
                make_policy(self.recipe.laptop, self.texts(), (), self.start_folder, self.recipe.seed)
            else:
                source = model_path(self.recipe.start)
                add_tokens(source, (), self.new_words(source), self.start_folder, self.recipe.seed)
        if not (self.start_folder / MODEL_CARD).exists():
            self._write_card(self.start_folder, "start")

    def _write_card(self, folder: Path, name: str, table: Table | None = None) -> None:
        """Write the model card of the folder `name`, with the table of results if there is one."""
        untrained = name == "start" and self.recipe.start is None
        facts = {"learnt by": "nothing: an untrained model"} if untrained else {}
        description = f"{self.TITLE} of coseek: it reads passages and answers with the prompt in {OWN_PROMPT}."
        self.model_card("generator", self.NAME, name, description, LIMITS, facts=facts, table=table).write(folder)

    @property
    def start_folder(self) -> Path:
        return self.folder / "start"

    @property
    def trained_folder(self) -> Path:
        return self.folder / self.NAME

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        return HfTokenizer.load(self.start_folder)

    @cached_property
    def held_out(self) -> World:
        return make_world(self.recipe.held_out)

    def generator_of(self, model: PreTrainedModel, identity: str) -> Generator:
        """A greedy generator that writes with `model` and its training prompt."""
        max_tokens, precision = self.recipe.laptop.max_positions, self.recipe.precision_at(self.recipe.laptop.hidden)
        sampling = SamplerSettings(temperature=0.0, max_rows=BATCH, max_tokens=max_tokens, dtype=precision)
        sampler = Sampler(model, self.tokenizer, (), sampling)
        writer = LocalTextModel(model=sampler, around=((), ()), max_context=max_tokens, identity=identity)
        settings = GeneratorSettings(
            model=str(self.trained_folder), prompt=PROMPT, max_answer_tokens=self.recipe.max_answer_tokens
        )
        return Generator(writer, load_generator_prompt(settings), settings)

    def reading(self, generator: Generator, sampler: ExampleSampler) -> dict[str, float]:
        """Strict EM on drawn questions with gold passages among others, in all and by hops."""
        right = self.right_by_hops(generator, sampler, self.recipe.table.dev_questions)
        all_right = [value for values in right.values() for value in values]
        return {"em": fmean(all_right)} | {f"em {hops} hop": fmean(values) for hops, values in right.items()}

    def right_by_hops(self, generator: Generator, sampler: ExampleSampler, count: int) -> dict[int, list[float]]:
        """Number of hops → whether each of at most `count` drawn questions is answered right from its gold passages
        among others (1 or 0)."""
        questions = draw(sampler.questions, count, self.recipe.table.seed)
        right: dict[int, list[float]] = {hops: [] for hops in sorted({question.hops or 0 for question in questions})}
        for trajectory in self._answer(generator, questions, self._with_gold(sampler, self.recipe.table.passages)):
            question = trajectory.question
            right[question.hops or 0].append(float(exact_match(trajectory.answer, question.answers)))
        return right

    def _answer(
        self, generator: Generator, questions: Sequence[Question], passages: Callable[[Question], tuple[Passage, ...]]
    ) -> list[Trajectory]:
        """Answer each question once, from its passages."""
        trajectories: list[Trajectory] = []
        for start in range(0, len(questions), BATCH):
            batch = questions[start : start + BATCH]
            shown = [passages(question) for question in batch]
            pairs = zip(batch, shown, strict=True)
            outputs = generator.answer([generator.context(question.question, texts) for question, texts in pairs])
            trajectories += map(_trajectory, batch, shown, outputs)
        return trajectories

    def _with_gold(self, sampler: ExampleSampler, count: int) -> Callable[[Question], tuple[Passage, ...]]:
        """A function that returns `count` passages for a question: its gold ones among others."""
        seed = self.recipe.table.seed
        return lambda question: sampler.passages(question, count, random.Random(f"{seed}/{question.id}"))

    def measure(self) -> Scores:
        """Score the trained generator on the test split of the held-out world, beside the one before training."""
        start, model = (load_model(folder, self.recipe) for folder in (self.start_folder, self.trained_folder))
        generator = self.generator_of(model, "trained")
        sampler = ExampleSampler.of_world(self.held_out, "test")
        questions = draw(sampler.questions, self.recipe.table.questions, self.recipe.table.seed)
        usual = self.recipe.table.passages
        untrained = self._answer(self.generator_of(start, "start"), questions, self._with_gold(sampler, usual))
        runs = {f"before, gold among {usual}": untrained}
        for count in (usual, *self.recipe.table.others):
            name = "gold alone" if count == 1 else f"gold among {count}"
            runs[name] = self._answer(generator, questions, self._with_gold(sampler, count))
        top = self._answer(generator, questions, lambda question: tuple(sampler.found[question.question][:usual]))
        runs[f"naive RAG, top {usual}"] = top
        return score_runs(runs, by=("hops", "kind"), questions=questions, seed=self.recipe.table.seed)

    def reading_table(self, scores: Scores) -> Table:
        """EM by hops, and whether training helped."""
        row = f"gold among {self.recipe.table.passages}"
        claims = claims_between(scores, [(row, f"before, {row}")], "em")
        return replace(group_table(scores), notes=(verdict(claims),))  # a laptop world is one set

    def write_results(self, scores: Scores) -> Table:
        """`table.md` and `table.json`; returns the table."""
        table = self.reading_table(scores)
        self._write_card(self.trained_folder, self.NAME, table)
        text = f"# {self.TITLE}\n\n{table.markdown()}\n{main_table(scores).markdown()}"
        write_tables(self.folder, text, scores_json(scores))
        return table


def _trajectory(question: Question, passages: Sequence[Passage], output: GeneratorOutput) -> Trajectory:
    """A question and its answer as a trajectory without tokens, for scoring."""
    hits = tuple(Hit(passage, -float(rank)) for rank, passage in enumerate(passages))
    return Trajectory(
        question=question,
        protocol="generator",
        segments=(),
        searches=(Search(question.question, hits),),
        stop=StopReason.ANSWERED if output.fault is None else StopReason.MODEL_ERROR,
        answer=output.answer,
        valid=output.answer is not None,
    )


TOKENIZER_WORLDS = 6
"""Worlds whose text the tokenizer learns from: every word of the language is in them."""


class GeneratorTraining(ReaderTraining[GeneratorRecipe]):
    """The training of one laptop generator."""

    NAME, TITLE = "generator", "A laptop generator"

    def check(self) -> None:
        super().check()
        if self.recipe.known is not None:
            check_data_folder(self.recipe.known, "known", KNOWN)

    def identities(self) -> Identities:
        digests, known = super().identities(), self.recipe.known
        return digests if known is None else {**digests, **data_set_identities("known", known)}

    def draw(self, generator: Generator) -> Draw:
        recipe = self.recipe
        known = None if recipe.known is None else ExampleSampler.of_world(World.load(Path(recipe.known)), KNOWN)
        phases = recipe.sft.curriculum
        return ExampleWriter(self.samplers, generator, self.tokenizer, phases, recipe.passages, known).draw

    @cached_property
    def samplers(self) -> list[ExampleSampler]:
        """The throw-away worlds."""
        samplers = []
        self.progress.stage("worlds", self.recipe.worlds)
        for number in range(self.recipe.worlds):
            seed = derive_seed(self.recipe.seed, "generator world", number) % 2**31
            world = make_world(self.recipe.world.model_copy(update={"seed": seed}))
            samplers.append(ExampleSampler.of_world(world, "train"))
            self.progress.advance(number + 1)
        return samplers

    def texts(self) -> Iterable[str]:
        """Passages, questions and examples."""
        rng = random.Random(f"{self.recipe.seed}/texts")
        for sampler in self.samplers[:TOKENIZER_WORLDS]:
            yield from (f"{passage.title} :{passage.text}" for passage in sampler.corpus)
            for question in sampler.questions:
                yield from (f" Question : {question.question} So", sampler.example_of(question, 2, rng).written)

    def new_words(self, start: Path) -> list[str]:
        return spelt_words(start, self.texts(), self.recipe.words)
