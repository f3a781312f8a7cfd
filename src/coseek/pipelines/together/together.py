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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, cast

import torch

from coseek.agents.run_questions import identities_of, run_questions
from coseek.core.errors import RunError
from coseek.core.files import JsonObject, read_json, write_yaml
from coseek.data.dataset import Dataset, draw
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.measure.intervals import Interval
from coseek.measure.plots import Series, Svg, line_plot
from coseek.measure.report import ReportSection, plot_section, table_section, write_report
from coseek.measure.score import METRICS, ScoredRun, Scores, summaries_of, summarise
from coseek.measure.table import PairedClaim, Table, claims_between, dataset_table, scores_json, show, verdict
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_results import RESULT_FILES, closing_sections, means_and_differences, scored
from coseek.pipelines.agent_run import unfinished_run
from coseek.pipelines.reranker import training_of
from coseek.pipelines.run_record import write_policy_card, write_tables
from coseek.pipelines.table_rows import CHAIN_GROUPS, by_generator, metric_of
from coseek.pipelines.together.labelling import label_counts, label_round
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.retrieval.index import build_index
from coseek.retrieval.index_files import INDEX_CARD

# Results of co-training: runs of every agent over every retriever, early stopping, and the table and report of runs,
# rounds and labels.

Split = Literal["test", "dev"]


@dataclass(frozen=True, slots=True)
class Pair:
    """An agent over a retriever."""

    agent: int
    retriever: int | None
    """`None`: the retriever of the agent's recipe, which no round trains."""
    split: Split = "test"

    def name(self, own_retriever: str) -> str:
        return f"agent {self.agent}, {own_retriever if self.retriever is None else f'retriever {self.retriever}'}"

    @property
    def folder(self) -> str:
        retriever = "beside" if self.retriever is None else f"retriever-{self.retriever}"
        return f"agent-{self.agent}.{retriever}" + ("" if self.split == "test" else f".{self.split}")


@dataclass(frozen=True)
class Pairs:
    """The pairs of a co-training."""

    training: CoTrainingPaths

    @cached_property
    def metric(self) -> str:
        """The headline metric."""
        stop = self.training.recipe.stop
        return (stop.metric if stop is not None else None) or metric_of(self.training.agent(1))

    @cached_property
    def own_retriever(self) -> str:
        """The name of the retriever of the agent's recipe in the table."""
        return self.training.retriever(None).name

    def columns(self, rounds: int) -> list[int | None]:
        """The retrievers of the table."""
        return [*([None] if self.training.recipe.pairs.beside else []), *range(rounds + 1)]

    def in_table(self, rounds: int) -> list[Pair]:
        """The pairs of the table, agent by agent."""
        return [Pair(agent, retriever) for agent in range(rounds + 1) for retriever in self.columns(rounds)]

    def measure(self, rounds: int) -> None:
        """Run the unfinished pairs after round `rounds`."""
        dev_pairs = [Pair(rounds, rounds, "dev")] if self.training.recipe.stop is not None else []
        pairs = [*self.in_table(rounds), *dev_pairs]
        total, done = sum(len(self.questions[pair.split]) for pair in pairs), 0
        self.training.progress.stage(f"pairs after round {rounds}", total)
        for pair in pairs:
            self._run(pair, done)
            done += len(self.questions[pair.split])

    def _run(self, pair: Pair, done: int) -> None:
        training, questions = self.training, self.questions[pair.split]
        data, limits, seed = training.recipe.agent.data, training.recipe.agent.limits, training.recipe.pairs.seed
        split = data.test if pair.split == "test" else data.dev
        data_settings: JsonObject = {"questions": str(training.data_folder), "split": split, "count": len(questions)}
        source: JsonObject = {**data_settings, "per_set": training.recipe.pairs.per_set, "select": {}, "seed": seed}
        settings = training.run_settings(pair.agent, pair.retriever, source, 0.0)
        agent_training, retriever = training.agent(pair.agent), training.retriever(pair.retriever)
        protocol = agent_training.protocol
        framed = protocol.template.framed(agent_training.tokenizer)
        turn_identities = training.turn_identities(pair.agent, 0.0)
        identities = identities_of(turn_identities, protocol, retriever, questions, limits, seed, framed)
        run = unfinished_run(self.path(pair), settings, identities, questions)
        if run is not None:
            agent, name = training.open_agent(pair.agent, 0.0), pair.name(self.own_retriever)
            run_questions(
                run, agent, retriever, questions, limits, seed=seed,
                tell=lambda ended, _: training.progress.advance(done + ended, name),
            )  # fmt: skip

    def path(self, pair: Pair) -> Path:
        return self.training.folder / "pairs" / pair.folder

    @cached_property
    def questions(self) -> dict[Split, list[Question]]:
        """The questions of each split, as many as the recipe takes."""
        recipe, dataset = self.training.recipe, Dataset(self.training.data_folder)
        data = recipe.agent.data
        pairs, seed = recipe.pairs, recipe.pairs.seed
        test = draw(dataset.questions(data.test), pairs.questions, seed, pairs.per_set)
        questions: dict[Split, list[Question]] = {"test": test}
        if recipe.stop is not None:
            questions["dev"] = draw(dataset.questions(data.dev), recipe.stop.questions, seed)
        return questions

    def scored(self, pair: Pair) -> ScoredRun:
        """The scored run of a pair."""
        return scored(self.training.first, pair.name(self.own_retriever), self.path(pair))

    # --- early stopping

    def dev_means(self, rounds: int) -> list[float | None]:
        """The headline metric of agent N over retriever N on the dev split, for rounds 0 to `rounds`."""
        question_ids, seed = [question.id for question in self.questions["dev"]], self.training.recipe.pairs.seed
        runs = [self.scored(Pair(number, number, "dev")) for number in range(rounds + 1)]
        intervals = [
            summarise(run, "all", [question_ids], tuple(METRICS), seed).metrics.get(self.metric) for run in runs
        ]
        return [None if interval is None else interval.mean for interval in intervals]

    def improved(self, rounds: int) -> bool:
        """Whether the last round raised the headline metric by at least `stop.min_improvement`.

        Raises `RunError` if every run of one of the two rounds has a fault.
        """
        stop = self.training.recipe.stop
        if stop is None:
            return True
        for number in (rounds - 1, rounds):
            path = self.path(Pair(number, number, "dev"))
            if all(trajectory.fault is not None for trajectory in Run(path).trajectories()):
                raise RunError(
                    f"every run in {path} has a fault, so round {number} cannot be judged; see to the retriever and "
                    "go on with --resume, which runs them again"
                )
        before, after = self.dev_means(rounds)[-2:]
        return before is None or after is None or after - before >= stop.min_improvement


@dataclass(frozen=True)
class Results:
    """The results of a co-training after `rounds` rounds."""

    training: CoTrainingPaths
    pairs: Pairs
    rounds: int
    scores: Scores
    """Of every pair, on the test split."""

    @classmethod
    def of(cls, training: CoTrainingPaths, rounds: int) -> "Results":
        pairs = Pairs(training)
        questions, seed = list(pairs.questions["test"]), training.recipe.pairs.seed
        metrics = [name for name in METRICS if name != "wall_s"]  # not reproducible
        by, own_retriever = CHAIN_GROUPS if by_generator(training.first) else ("hops",), training.recipe.pairs.beside
        runs = {pair: pairs.scored(pair) for pair in pairs.in_table(rounds)}
        run_pairs = [(runs[pair], runs[earlier]) for pair, earlier in compared_pairs(rounds, own_retriever)]
        scores = summaries_of(list(runs.values()), questions, by, metrics, seed, pairs=run_pairs)
        return cls(training, pairs, rounds, scores)

    # --- tables

    def mean(self, pair: Pair, metric: str) -> Interval | None:
        return self.scores.of(pair.name(self.pairs.own_retriever)).metrics.get(metric)

    def grid(self, metric: str, decimals: int = 3) -> Table:
        """Agents by retrievers, in one metric."""
        columns = self.pairs.columns(self.rounds)
        names = [self.pairs.own_retriever if retriever is None else f"retriever {retriever}" for retriever in columns]
        rows = [
            (f"agent {agent}", *(show(self.mean(Pair(agent, retriever), metric), decimals) for retriever in columns))
            for agent in range(self.rounds + 1)
        ]
        return Table((metric, *names), tuple(rows))

    def headline(self) -> Table:
        """The grid of the headline metric, with its notes."""
        grid = self.grid(self.pairs.metric)
        note = (
            f"Greedy, on {len(self.pairs.questions['test'])} questions of the test split, with 95 % bootstrap "
            "intervals over questions. Agent N was trained over retriever N-1, retriever N on the runs of agent N."
        )
        return Table(grid.columns, grid.rows, (verdict(self.claims()), note, *self.decisions()))

    def claims(self) -> list[PairedClaim]:
        """Whether the last pair is better than the first, and than the last agent over the recipe's own retriever."""
        steps = [Pair(*numbers).name(self.pairs.own_retriever) for numbers in training_order(self.rounds)]
        over_own = [Pair(self.rounds, None).name(self.pairs.own_retriever)] if self.training.recipe.pairs.beside else []
        return claims_between(self.scores, [(steps[-1], other) for other in (steps[0], *over_own)], self.pairs.metric)

    def decisions(self) -> list[str]:
        """Sentences on early stopping and the best round."""
        recipe = self.training.recipe
        if recipe.stop is None:
            return [f"Rounds: {self.rounds}, without early stopping."]
        means = self.pairs.dev_means(self.rounds)
        steps = " → ".join("–" if mean is None else f"{mean:.3f}" for mean in means)
        dev = len(self.pairs.questions["dev"])
        sentences = [f"On {dev} questions of the dev split, {self.pairs.metric} from round to round: {steps}."]
        if self.rounds < recipe.rounds:
            sentences.append(
                f"Stopped early: round {self.rounds} did not raise it by {recipe.stop.min_improvement:g}, so there is "
                f"no round {self.rounds + 1}."
            )
        return [*sentences, f"The best round on the dev split: {self.best}."]

    @property
    def best(self) -> int:
        """The first round with the highest headline metric on dev; the last round without early stopping."""
        if self.training.recipe.stop is None:
            return self.rounds
        means = [float("-inf") if mean is None else mean for mean in self.pairs.dev_means(self.rounds)]
        return means.index(max(means))

    def label_table(self) -> Table:
        """Counts of the labels of each round."""
        columns = ("turns", "labelled", "sets")
        rows = []
        for number in range(1, self.rounds + 1):
            counts = label_counts(self.training, number)
            dropped = cast(dict[str, int], counts["dropped"]).items()
            reasons = ", ".join(f"{reason} {count}" for reason, count in dropped)
            rows.append((str(number), *(str(counts[name]) for name in columns), reasons or "–"))
        return Table(("round", *columns, "without a label"), tuple(rows), ("Search turns of the round's runs.",))

    def retriever_table(self) -> Table | None:
        """Each retriever's metrics on held-out turns."""
        rows: list[tuple[str, ...]] = []
        metrics: list[str] = []
        for number in range(1, self.rounds + 1):
            path = self.training.round(number).retriever / "table.json"
            if not path.exists():
                continue
            stored = cast(JsonObject, read_json(path))
            searchers = cast(dict[str, dict[str, float]], stored["searchers"])
            metrics = metrics or list(next(iter(searchers.values())))
            for name, values in searchers.items():
                cells = (f"{values[metric]:.3f}" if metric in values else "–" for metric in metrics)
                rows.append((str(number), name, str(stored["turns"]), *cells))
        return Table(("round", "searcher", "turns", *metrics), tuple(rows)) if rows else None

    def tables(self) -> dict[str, Table]:
        """Heading → table."""
        tables = {"Every pair": self.headline(), "Searches a question": self.grid("searches", 2)}
        if self.pairs.metric != "recall":
            tables["Gold passages found"] = self.grid("recall")
        if self.scores.by_dataset:
            tables["By data set"] = dataset_table(self.scores, self.pairs.metric)
        tables |= {**means_and_differences(self.training.first, self.scores), "Labels": self.label_table()}
        held_out = self.retriever_table()
        return tables if held_out is None else {**tables, "Held-out turns": held_out}

    # --- files

    def write(self) -> Table:
        """`table.md`, `table.json` and `report.html`; returns the headline."""
        tables, folder = self.tables(), self.training.folder
        title = self.training.recipe.about or "An agent and a retriever, trained together"
        parts = [f"# {title}\n", *(f"## {name}\n\n{table.markdown()}" for name, table in tables.items())]
        self.write_cards(tables["Every pair"])
        write_tables(folder, "\n".join(parts), self.to_json())
        write_report(folder / "report.html", title, self.sections(tables))
        return tables["Every pair"]

    def write_cards(self, table: Table) -> None:
        """Write the figures of the pairs into the agents' model cards. Encoders' cards have those of held-out turns."""
        training = self.training
        for number in range(self.rounds + 1):
            name, folder = "trained" if number else "warm", training.policy(number)
            write_policy_card(training.agent(number), name, folder, training.data_folder, table, f"agent {number}")

    def to_json(self) -> JsonObject:
        recipe = self.training.recipe
        return {
            "rounds": self.rounds,
            "stopped_early": self.rounds < recipe.rounds,
            "best_round": self.best,
            "metric": self.pairs.metric,
            "dev": [*self.pairs.dev_means(self.rounds)] if recipe.stop is not None else [],
            "labels": [label_counts(self.training, number) for number in range(1, self.rounds + 1)],
            **scores_json(self.scores),
        }

    def sections(self, tables: dict[str, Table]) -> list[ReportSection]:
        captions = {self.pairs.metric: "Greedy, on the test split.", "searches": "Searches a question."}
        plots = [
            plot_section(
                f"Round by round: {metric}",
                self.plot(metric),
                f"{text} At .5 the agent of the next round has been trained, at the whole number its retriever, too.",
            )
            for metric, text in captions.items()
        ]
        sections = [table_section(name, table) for name, table in tables.items()]
        return [sections[0], *plots, *sections[1:], *closing_sections("together", self.training, self.files())]

    def plot(self, metric: str) -> Svg:
        """One metric over (agent 0, retriever 0), (1, 0), (1, 1), (2, 1), …"""
        points = [
            (agent / 2 + retriever / 2, interval)
            for agent, retriever in training_order(self.rounds)
            if (interval := self.mean(Pair(agent, retriever), metric)) is not None
        ]
        return line_plot([Series.of("agent and retriever as they stood", points)], "round", metric)

    def files(self) -> dict[str, str]:
        """Path → description of the result files."""
        training, best = self.training, self.best
        return {
            **{str(training.folder / name): description for name, description in RESULT_FILES.items()},
            str(training.folder / "pairs"): "a run folder for every pair",
            str(training.policy(best)): f"agent {best}, of the best round on the dev split",
            training.encoder(best): f"encoder {best}, of the same round",
            training.retriever_source(best): "the corpus in its vectors, for --retriever",
            str(training.folder / "recipe.yaml"): "the recipe, with versions and commit",
        }


def training_order(rounds: int) -> list[tuple[int, int]]:
    """The (agent, retriever) pairs in the order of training."""
    return [(0, 0), *(step for number in range(1, rounds + 1) for step in ((number, number - 1), (number, number)))]


def compared_pairs(rounds: int, own_retriever: bool) -> Sequence[tuple[Pair, Pair]]:
    """The paired comparisons: each pair of `training_order` with the previous one, the last with the first, and the
    last retriever with the retriever of the agent's recipe."""
    steps = [Pair(agent, retriever) for agent, retriever in training_order(rounds)]
    pairs = list(zip(steps[1:], steps, strict=False))
    pairs.append((steps[-1], steps[0]))
    return [*pairs, (steps[-1], Pair(rounds, None))] if own_retriever else pairs


class CoTraining(CoTrainingPaths):
    """The training of an agent and a retriever in rounds."""

    def train(self) -> int:
        """Train all rounds. Returns their number, which is less than the recipe's after early stopping."""
        recipe, first = self.recipe, self.first
        if recipe.threads is not None:
            torch.set_num_threads(recipe.threads)
        if first.recipe.warm_start is not None:
            train_agent(first)
        elif self.workers.is_main:
            first.prepare_data()
            first.make_policy()
        self._train_retriever(0)
        for number in range(1, recipe.rounds + 1):
            self.progress.say(f"round {number}: agent {number} learns over retriever {number - 1}")
            train_agent(self.agent(number))
            label_round(self, number)
            self.progress.say(f"round {number}: retriever {number} learns from the labels")
            self._train_retriever(number)
            if number < recipe.rounds and not self.workers.broadcast(partial(Pairs(self).improved, number)):
                self.progress.say(f"round {number} did not help; stopping")
                return number
        return recipe.rounds

    def _train_retriever(self, number: int) -> None:
        """Train retriever `number`, index the corpus with it, and measure the new pairs."""
        recipe, folder = self.retriever_recipe(number), self.round(number).retriever
        if recipe is not None:
            training = training_of(recipe)(recipe, folder, self.progress, self.workers)
            training.begin(resume=True)
            training.train()
            if self.workers.is_main and not (folder / "table.json").exists():
                training.results()
        if self.workers.is_main:
            self._index_corpus(number)
            Pairs(self).measure(number)
        self.workers.barrier()

    def _index_corpus(self, number: int) -> None:
        """Index the corpus with encoder `number`, unless this retriever is a server. For a reranker, write a file that
        names it and retriever 0."""
        out, source = self.round(number).index, self.retriever_source(number)
        if number and self.recipe.retriever.kind == "reranker":
            base_retriever = self.recipe.start.url or "../round-0/index"
            write_yaml(Path(source), {"retriever": "rerank", "over": base_retriever, "model": "retriever/encoder"})
            return
        if source != str(out) or (out / INDEX_CARD).exists():
            return
        totals: list[int] = []

        def tell(_: str, done: int, total: int) -> None:
            if not totals:
                self.progress.stage(f"index {number}", total)
            totals.append(total)
            self.progress.advance(done)

        build_index(self.data_folder, self.recipe.index.retriever, out, self.index_settings(number), tell)


def train_agent(training: AgentTraining) -> None:
    """Train one agent, or resume its training."""
    training.begin(resume=True)
    training.train()
