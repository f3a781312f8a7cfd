"""Co-training: each round trains an agent, labels its runs, trains a retriever, builds an index and measures all pairs.

    OUT/recipe.yaml                      the recipe, versions and commit
    OUT/round-0/agent                    the data, and the agent after its warm start (a folder of `coseek train agent`)
    OUT/round-0/retriever                the first encoder, where it is trained here
    OUT/round-N/agent                    agent N, trained over the index of the round before
    OUT/round-N/questions.jsonl, run     its runs over that index
    OUT/round-N/labels, labels.json      the labels of these runs, and their counts
    OUT/round-N/retriever                retriever N (a folder of `coseek train retriever`)
    OUT/round-N/index                    the index of retriever N
    OUT/pairs/agent-N.retriever-M        a run folder for every pair; pairs on dev decide whether to go on
    OUT/table.md, table.json, report.html

A part whose result exists is skipped, and the trainings write checkpoints, so a killed run resumes.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import torch

from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.together.labelling import label_round
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.pipelines.together.results import Pairs
from coseek.retrieval.index import build_index
from coseek.retrieval.index_files import INDEX_CARD


@dataclass
class CoTraining:
    """The training of an agent and a retriever in rounds."""

    course: CoTrainingPaths

    @cached_property
    def pairs(self) -> Pairs:
        return Pairs(self.course)

    def begin(self, resume: bool) -> None:
        """Start or resume in the course's folder: see `TrainingRun.begin`."""
        self.course.begin(resume)

    def train(self) -> int:
        """Train all rounds; returns their number, below the recipe's when a round did not help."""
        recipe = self.course.recipe
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        self._start()
        for number in range(1, recipe.rounds + 1):
            self._round(number)
            if number < recipe.rounds and not self.course.workers.agree(partial(self.pairs.helped, number)):
                self.course.progress.say(f"round {number} did not help; stopping")
                return number
        return recipe.rounds

    def _start(self) -> None:
        """Make the data, agent 0 and retriever 0."""
        training = self.course.agent(0)
        if training.recipe.warm_start is not None:
            train_agent(training)
        elif self.course.workers.first:
            training.prepare_data()
            training.make_policy()
        self._retriever(0)

    def _round(self, number: int) -> None:
        """Train an agent, label its runs, train a retriever."""
        course = self.course
        course.progress.say(f"round {number}: agent {number} learns over retriever {number - 1}")
        train_agent(course.agent(number))
        label_round(course, number)
        course.progress.say(f"round {number}: retriever {number} learns from the labels")
        self._retriever(number)

    def _retriever(self, number: int) -> None:
        """Train retriever `number`, index the corpus with it, and measure the new pairs."""
        course = self.course
        recipe, place = course.retriever_recipe(number), course.round(number)
        if recipe is not None:
            training = RetrieverTraining(recipe, place.retriever, course.progress, course.workers)
            training.begin(resume=True)
            training.train()
            if course.workers.first and not (place.retriever / "table.json").exists():
                training.results()
        if course.workers.first:
            self._index(number)
            self.pairs.measure(number)
        course.workers.wait()

    def _index(self, number: int) -> None:
        """Index the corpus with encoder `number`, unless a server is this retriever."""
        course, out = self.course, self.course.round(number).index
        if course.searched(number) != str(out) or (out / INDEX_CARD).exists():
            return
        totals: list[int] = []

        def tell(_: str, done: int, total: int) -> None:
            if not totals:
                course.progress.stage(f"index {number}", total)
            totals.append(total)
            course.progress.advance(done)

        build_index(course.data_folder, course.recipe.index.retriever, out, course.index_settings(number), tell)


def train_agent(training: AgentTraining) -> None:
    """Train one agent, or resume its training."""
    training.begin(resume=True)
    training.train()
