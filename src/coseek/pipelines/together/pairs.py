"""Runs of every agent over every retriever, and the decision to go on with another round."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from coseek.agents.run_questions import identities_of, run_questions
from coseek.core.errors import RunError
from coseek.core.files import JsonObject
from coseek.data.dataset import Dataset, draw
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.measure.score import METRICS, ScoredRun, summarise
from coseek.pipelines.agent_results import scored
from coseek.pipelines.table_rows import metric_of
from coseek.pipelines.together.paths import CoTrainingPaths

Split = Literal["test", "dev"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An agent over a retriever."""

    agent: int
    retriever: int | None
    """`None` for the retriever of the agent's recipe, which no round trains."""
    split: Split = "test"

    def name(self, beside: str) -> str:
        return f"agent {self.agent}, {beside if self.retriever is None else f'retriever {self.retriever}'}"

    @property
    def folder(self) -> str:
        searched = "beside" if self.retriever is None else f"retriever-{self.retriever}"
        return f"agent-{self.agent}.{searched}" + ("" if self.split == "test" else f".{self.split}")


@dataclass(frozen=True)
class Pairs:
    """The pairs of a co-training."""

    course: CoTrainingPaths

    @cached_property
    def metric(self) -> str:
        """The headline metric."""
        stop = self.course.recipe.stop
        return (stop.metric if stop is not None else None) or metric_of(self.course.agent(1))

    @cached_property
    def beside(self) -> str:
        """The name of the recipe's own retriever in the table."""
        return self.course.search(None).name

    def columns(self, rounds: int) -> list[int | None]:
        """The retrievers of the table."""
        return [*([None] if self.course.recipe.pairs.beside else []), *range(rounds + 1)]

    def of(self, rounds: int) -> list[Pair]:
        """The pairs of the table."""
        return [Pair(agent, retriever) for agent in range(rounds + 1) for retriever in self.columns(rounds)]

    def measure(self, rounds: int) -> None:
        """Run the unfinished pairs after round `rounds`."""
        deciding = [Pair(rounds, rounds, "dev")] if self.course.recipe.stop is not None else []
        wanted = [*self.of(rounds), *deciding]
        self.course.progress.stage(f"pairs after round {rounds}", sum(len(self.questions(one.split)) for one in wanted))
        done = 0
        for pair in wanted:
            self._run(pair, done)
            done += len(self.questions(pair.split))

    def _run(self, pair: Pair, done: int) -> None:
        course, questions = self.course, self.questions(pair.split)
        data = course.recipe.agent.data
        split = data.test if pair.split == "test" else data.dev
        named: JsonObject = {"questions": str(course.data_folder), "split": split, "count": len(questions)}
        asked: JsonObject = {**named, "select": {}, "seed": course.recipe.pairs.seed}
        settings = course.run_settings(pair.agent, pair.retriever, asked, 0.0)
        training, turn_identities = course.agent(pair.agent), course.turn_identities(pair.agent, 0.0)
        protocol, framed = training.protocol, training.protocol.template.framed(training.tokenizer)
        retriever, limits, seed = course.search(pair.retriever), course.recipe.agent.limits, course.recipe.pairs.seed
        identities = identities_of(turn_identities, protocol, retriever, questions, limits, seed, framed)
        run = Run.made_with(self.path(pair), settings, identities)
        run.drop_faults()
        if run.is_closed and len(run.done()) == len(questions):
            return
        run_questions(
            run,
            course.speaker(pair.agent, 0.0),
            retriever,
            questions,
            limits,
            seed=seed,
            tell=lambda ended, _: course.progress.advance(done + ended, pair.name(self.beside)),
        )

    def path(self, pair: Pair) -> Path:
        return self.course.folder / "pairs" / pair.folder

    def questions(self, split: Split) -> Sequence[Question]:
        """The questions of a split, as many as the recipe takes."""
        return self._questions[split]

    @cached_property
    def _questions(self) -> dict[Split, list[Question]]:
        recipe, dataset = self.course.recipe, Dataset(self.course.data_folder)
        data = recipe.agent.data
        pairs, seed = recipe.pairs, recipe.pairs.seed
        test = draw(dataset.questions(data.test), pairs.questions, seed, pairs.per_set)
        found: dict[Split, list[Question]] = {"test": test}
        if recipe.stop is not None:
            found["dev"] = draw(dataset.questions(data.dev), recipe.stop.questions, seed)
        return found

    def scored(self, pair: Pair) -> ScoredRun:
        """The scored run of a pair."""
        return scored(self.course.first, pair.name(self.beside), self.path(pair))

    # --- whether to go on

    def decided_by(self, rounds: int) -> list[float | None]:
        """The headline metric of agent N over retriever N on the dev split, for rounds 0 to `rounds`."""
        asked, seed = [question.id for question in self.questions("dev")], self.course.recipe.pairs.seed
        runs = [self.scored(Pair(number, number, "dev")) for number in range(rounds + 1)]
        found = [summarise(run, "all", asked, tuple(METRICS), seed).metrics.get(self.metric) for run in runs]
        return [None if one is None else one.mean for one in found]

    def helped(self, rounds: int) -> bool:
        """Whether the last round raised the headline metric by at least `stop.least`.

        Raises `RunError` where faults left nothing to decide by.
        """
        stop = self.course.recipe.stop
        if stop is None:
            return True
        for number in (rounds - 1, rounds):
            self._check_whole(Pair(number, number, "dev"))
        before, after = self.decided_by(rounds)[-2:]
        return before is None or after is None or after - before >= stop.least

    def _check_whole(self, pair: Pair) -> None:
        """Refuse a pair of which every run has a fault."""
        if all(run.fault is not None for run in Run(self.path(pair)).trajectories()):
            raise RunError(
                f"every run in {self.path(pair)} has a fault, so round {pair.agent} cannot be judged; see to the "
                "retriever and go on with --resume, which runs them again"
            )
