"""Training an agent, from files to table: data → policy → warm start → reinforcement learning → table → report.

Every part leaves its result in the run's folder and is passed over when that is there, so a stopped run goes on where
it was. Within a part the trainers have checkpoints of their own.

    OUT/recipe.yaml        the whole recipe, versions and commit
    OUT/data, OUT/unseen   data sets (when the recipe makes them), OUT/*.index
    OUT/policy/start, warm, trained                  Hugging Face folders
    OUT/warm-start, OUT/rl                           metrics and checkpoints
    OUT/policy/STAGE, OUT/rl/STAGE                   the same for every stage of a recipe with stages; the last one's
                                                     policy is `trained`
    OUT/table/AGENT.SET.TEMPERATURE                  runs: every trajectory of the table
    OUT/table.md, OUT/table.json, OUT/report.html
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
from transformers import PreTrainedModel

from coseek.agents.agent_card import CARD, AgentCard
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.agents.run_questions import run_questions
from coseek.core.errors import DataError
from coseek.core.lock import Lock, kept_lock
from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.rag_baseline import RagBaselines
from coseek.graders.scoring import EpisodeScorer
from coseek.measure.answers import exact_match
from coseek.measure.retrieval import run_recall
from coseek.models.laptop import add_tag_tokens, make_policy
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_check import check_recipe, taught
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.demonstrations import demonstrate, texts_of
from coseek.pipelines.grader_settings import Graders, open_graders
from coseek.pipelines.part_identities import agent_identities, policy_identities
from coseek.pipelines.resumption import MoreSteps, bound
from coseek.pipelines.retriever_schedule import RetrieverSchedule, ScheduledRetriever
from coseek.pipelines.run_record import begin
from coseek.pipelines.stages import Stage, accuracy_of, candidates, metrics_files, right_runs, select, stages_of
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import Reward, make_reward
from coseek.training.rl.backend import TrainingBackend, open_backend
from coseek.training.rl.callbacks import Callback, Evaluation
from coseek.training.rl.loop import train_rl
from coseek.training.rl.monitor import MonitorStop
from coseek.training.sft.curriculum import draw_by_hops
from coseek.training.sft.loop import SftOutcome, train_sft
from coseek.training.trainer.checkpoint import load_healthy
from coseek.training.trainer.data_order import derive_seed
from coseek.training.trainer.metrics_sender import tracked
from coseek.training.trainer.policy import Policy
from coseek.training.trainer.workers import Workers, placed, workers_here
from coseek.world.world import make_world

ONE_SHOT = ("direct", "rag")
"""Protocols of the table's baselines, which the warm start teaches beside the agent's own."""


@dataclass(frozen=True)
class QuestionSet:
    """Questions of one column of the table, and what their corpus is searched with."""

    name: str
    questions: tuple[Question, ...]
    retriever: Retriever


@dataclass
class AgentTraining:
    """One run of a recipe in a folder."""

    recipe: AgentRecipe
    folder: Path
    progress: Progress = field(default_factory=NoProgress)
    workers: Workers = field(default_factory=workers_here)
    """The first one does everything; the others help it with reinforcement learning."""
    _lock: Lock | None = field(default=None, init=False, repr=False, compare=False)
    """The first worker's claim to the folder, from `begin` on."""

    def __post_init__(self) -> None:
        if not self.workers.first:
            self.progress = NoProgress()

    def begin(self, resume: bool) -> None:
        """Write the recipe down, or check that it is the one that the folder was begun with; lock the folder."""
        self.recipe = self.workers.agree(lambda: self._begun(resume))

    def _begun(self, resume: bool) -> AgentRecipe:
        with kept_lock(self.folder) as self._lock:
            self.check()
            if self.recipe.policy.folder is not None:
                HfTokenizer.load(Path(self.recipe.policy.folder).expanduser())  # refused here if it cannot be opened
            identities = agent_identities(self.recipe, self.index)
            return begin(self.folder, self.recipe, resume, bound, identities, self._go_on, self.progress.say)

    def _go_on(self, began: AgentRecipe, recipe: AgentRecipe) -> None:
        """Take over what may change in a recipe when its training goes on."""
        own_engine = recipe.data.training_retriever is not None
        MoreSteps(recipe, self.folder, lambda: own_engine and isinstance(self.engine, ScheduledRetriever)).take(began)

    def check(self) -> None:
        """Find what is wrong with the recipe before anything is written."""
        check_recipe(self.recipe)

    def train(self) -> None:
        """Everything up to the trained policy."""
        if self.recipe.threads is not None:
            torch.set_num_threads(self.recipe.threads)
        trackers, config = self.recipe.track if self.workers.first else (), dump_settings(self.recipe)
        with tracked(trackers, self.folder, config, lambda: metrics_files(self.recipe, self.folder), self.progress.say):
            self._train()

    def _train(self) -> None:
        if self.workers.first:
            self.prepare_data()
            self.make_policy()
            if self.recipe.warm_start is not None:
                self.warm_start()
        self.workers.wait()
        for stage in self.stages:
            self.learn(stage)

    # --- data

    def prepare_data(self) -> None:
        """Make, import or open the data sets, and index them."""
        data = self.recipe.data
        folder = self.data_folder
        if data.world is not None and not folder.exists():
            make_world(data.world).save(folder)
        if data.imported is not None and not folder.exists():
            sources = [Path(source).expanduser() for source in data.imported.sources]
            import_data(data.imported.format, sources, folder, shares=data.imported.shares)
        if data.unseen is not None and not (self.folder / "unseen").exists():
            make_world(data.unseen).save(self.folder / "unseen")
        for name, path in self.set_folders.items():
            if self._made_here(name) and not self._index_path(name).exists():
                build_index(path, data.retriever, self._index_path(name), data.retriever_settings)
        if data.index is not None:
            self.progress.say(f"data: {self.data_folder}; searched with {data.index}")
            return
        sizes = ", ".join(f"{name} {len(Dataset(path).corpus)} passages" for name, path in self.set_folders.items())
        self.progress.say(f"data: {sizes}; searched with {data.retriever}")

    @cached_property
    def data_folder(self) -> Path:
        named = self.recipe.data.folder
        return Path(named).expanduser() if named is not None else self.folder / "data"

    @cached_property
    def set_folders(self) -> dict[str, Path]:
        unseen = {"unseen": self.folder / "unseen"} if self.recipe.data.unseen is not None else {}
        return {"data": self.data_folder, **unseen}

    def _made_here(self, name: str) -> bool:
        return name != "data" or self.recipe.data.index is None

    def _index_path(self, name: str) -> Path:
        return self.folder / f"{name}.index"

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        return {
            name: open_index(self._index_path(name)) if self.index is None or self._made_here(name) else self.index
            for name in self.set_folders
        }

    @cached_property
    def index(self) -> Retriever | None:
        """What `data.index` names; nothing where the index is made here."""
        there = self.recipe.data.index
        return None if there is None else open_retriever(there)

    @cached_property
    def engine(self) -> Retriever:
        """What searches while rewards are earned."""
        engine = self.recipe.data.training_retriever
        if engine is None:
            return self.retrievers["data"]
        index = {"over": self.recipe.data.index or str(self._index_path("data"))}
        return open_retriever({**(index if engine.get("retriever") == "noisy" else {}), **engine})

    def questions(self, split: str) -> list[Question]:
        return Dataset(self.data_folder).questions(split)

    @cached_property
    def sets(self) -> list[QuestionSet]:
        """The columns of the table."""
        data, most = self.recipe.data, self.recipe.table.questions
        named = [("dev", "data", data.dev), ("test", "data", data.test)]
        named += [("unseen", "unseen", data.test)] if data.unseen is not None else []
        return [
            QuestionSet(name, tuple(Dataset(self.set_folders[where]).questions(split)[:most]), self.retrievers[where])
            for name, where, split in named
        ]

    # --- policy

    @cached_property
    def stages(self) -> list[Stage]:
        return stages_of(self.recipe, self.folder)

    @property
    def compared(self) -> tuple[str, str]:
        """The policies that the table calls before and after: what the rewards changed, or else the demonstrations."""
        return ("warm", "trained") if self.stages else ("start", "warm")

    @cached_property
    def protocol(self) -> Protocol:
        return load_protocol(self.recipe.protocol, self.recipe.prompt_template, run_files=True)

    def policy_folder(self, name: str) -> Path:
        """`start`, `warm`, a stage's name or `trained`; without a warm start `warm` is `start`."""
        if name == "start" and self.recipe.policy.folder is not None and not self.recipe.policy.marks:
            return Path(self.recipe.policy.folder).expanduser()
        if name == "warm" and self.recipe.warm_start is None:
            return self.policy_folder("start")
        return self.folder / "policy" / name

    def make_policy(self) -> None:
        """An untrained laptop policy with a tokenizer learnt from texts, unless the recipe starts from a folder."""
        folder, policy = self.policy_folder("start"), self.recipe.policy
        if folder.exists():
            return
        if policy.folder is not None:
            add_tag_tokens(Path(policy.folder).expanduser(), self.special_tokens, folder, self.recipe.seed)
        else:
            texts = texts_of(self.recipe, Dataset(self.data_folder))
            make_policy(policy.laptop, texts, self.special_tokens, folder, self.recipe.seed)
        AgentCard(protocol=self.recipe.protocol, prompt_template=self.recipe.prompt_template).write(folder)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The marks of the agent's protocol, then those of every other one that it is taught."""
        marks = [mark for protocol in taught(self.recipe) for mark in protocol.grammar.special_tokens]
        return tuple(dict.fromkeys(marks))

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        return HfTokenizer.load(self.policy_folder("start"))

    def sampler(
        self, model: PreTrainedModel, protocol: Protocol, temperature: float, limits: Limits | None = None
    ) -> Sampler:
        """One with room for runs of `limits`, or of the recipe's own."""
        settings = self._sampler_settings(temperature, limits or self.recipe.limits)
        return Sampler(model, self.tokenizer, protocol.grammar.stops, settings)

    def _sampler_settings(self, temperature: float, limits: Limits) -> SamplerSettings:
        return SamplerSettings(
            temperature=temperature,
            max_rows=self.recipe.concurrency,
            max_tokens=limits.max_tokens,
            dtype=self.recipe.precision,
        )

    def _keep(self, save: Callable[[Path, Callable[[Path], None]], None], name: str) -> None:
        """Save a policy as a folder that says which protocol it speaks."""
        card = AgentCard(protocol=self.recipe.protocol, prompt_template=self.recipe.prompt_template)

        def extra(part: Path) -> None:
            self.tokenizer.save(part)
            card.write(part)

        save(self.policy_folder(name), extra)

    # --- training

    def warm_start(self) -> SftOutcome | None:
        """Supervised training on demonstrations, until the gate is passed; `None` when it was over already."""
        settings = self.recipe.warm_start
        assert settings is not None
        if (self.policy_folder("warm") / CARD).exists():
            return None
        runs = demonstrate(
            self.recipe, self.protocol, self.tokenizer, self.retrievers["data"], self.questions, self.progress
        )
        model = placed(load_model(self.policy_folder("start")))
        paid = self.stages[0].recipe if self.stages else self.recipe
        agent = Agent(self.protocol, self.sampler(model, self.protocol, 1.0, paid.limits))
        scoring = self.scoring(paid)
        outcome = train_sft(
            model,
            draw_by_hops(runs, settings.sft.curriculum),
            settings.sft.model_copy(update={"seed": derive_seed(self.recipe.seed, settings.sft.seed, "sft")}),
            self.folder / "warm-start",
            resume=True,
            evaluate=lambda _: self.evaluate(agent, paid, scoring),
            progress=self.progress,
        )
        self.progress.say(f"warm start: {outcome.rounds} round(s); readings are of dev at temperature 1")
        if not outcome.passed:
            self.progress.say(f"the gate of {settings.sft.gate} was not reached; the rewards will be rare at first")
        self._keep(Policy(model, self.recipe.rl.policy, 0).save, "warm")
        return outcome

    @cached_property
    def frozen(self) -> Graders:
        """The models that rewards ask, and what they wrote so far."""
        return open_graders(
            self.recipe.graders, self.folder, self.data_folder if self.recipe.data.world is not None else None
        )

    def baselines(self, recipe: AgentRecipe) -> RagBaselines:
        """What the generator answers from naive RAG on every question that may be trained on or looked at."""
        questions = candidates(self.questions(recipe.data.train), recipe.select)
        self.progress.stage("baselines", len(questions))
        return self.frozen.baselines(
            [*questions, *self._looked_at(recipe)],
            self.retrievers["data"],
            accuracy_of(recipe),
            lambda done, _: self.progress.advance(min(done, len(questions))),
        )

    def scoring(self, recipe: AgentRecipe) -> EpisodeScorer:
        """The reward, with the frozen parts that it needs and no others."""
        reward = make_reward(recipe.reward)
        if not reward.needs:
            return EpisodeScorer(reward)
        return self.frozen.scoring(reward, self.baselines(recipe) if "baseline" in reward.needs else None)

    def asked(self, stage: Stage, scoring: EpisodeScorer) -> list[Question]:
        """The questions that a stage trains on."""
        recipe, questions = stage.recipe, self.questions(stage.recipe.data.train)
        if recipe.select.naive_rag == "any":
            return select(questions, recipe.select, accuracy_of(recipe), None, self.progress.say)
        if (known := stage.chosen()) is not None:
            return known
        baselines = scoring.baselines or self.baselines(recipe)
        return stage.choose(select(questions, recipe.select, accuracy_of(recipe), baselines, self.progress.say))

    def _looked_at(self, recipe: AgentRecipe) -> list[Question]:
        return self.questions(recipe.data.dev)[: recipe.table.dev_questions]

    def roll_out(
        self, agent: Agent, retriever: Retriever, questions: Sequence[Question], seeds: Sequence[int], limits: Limits
    ) -> list[Trajectory]:
        """Runs of an agent, as many at once as the recipe says."""
        together, overlap = self.recipe.concurrency, self.recipe.overlap
        return rollout(agent, retriever, questions, seeds, limits, concurrency=together, overlap=overlap)

    def evaluate(self, agent: Agent, recipe: AgentRecipe, scoring: EpisodeScorer) -> dict[str, float]:
        """A short look at the dev split: mean reward, strict EM and gold-passage recall of the agent as it is now."""
        questions = self._looked_at(recipe)
        seeds = [derive_seed(recipe.seed, "look", question.id) for question in questions]
        runs = self.roll_out(agent, self.retrievers["data"], questions, seeds, recipe.limits)
        return readings_of(runs, scoring)

    def learn(self, stage: Stage) -> None:
        """One stage, from the weights that the one before it ended with."""
        if self.workers.agree((self.policy_folder(stage.ends) / CARD).exists):
            return
        if stage.name:
            self.progress.say(f"stage {stage.name}: {stage.recipe.about}")
        model = placed(load_model(self.policy_folder(stage.begins)))
        if stage.recipe.learn != "rejection":
            self.reinforce(stage, model)
        elif self.workers.first:
            self.imitate(stage, model)
        self.workers.wait()

    def reinforce(self, stage: Stage, model: PreTrainedModel) -> None:
        """Reinforcement learning on the training questions."""
        recipe = stage.recipe
        settings = recipe.rl.model_copy(update={"seed": stage.seed(recipe.rl.seed, "rl")})
        backend = open_backend(settings, model, self.workers)
        sampled, greedy = (self._agent_of(backend, stage, temperature) for temperature in (settings.temperature, 0.0))
        engine = self.engine
        # The first worker alone asks frozen parts and writes to their caches.
        scoring = self.scoring(recipe) if self.workers.first else EpisodeScorer(make_reward({"exact_match": 1.0}))

        def run(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
            return self.roll_out(sampled, engine, questions, seeds, recipe.limits)

        callbacks: list[Callback] = [
            Evaluation(lambda _: self.evaluate(greedy, recipe, scoring), settings.evaluate_every, self.workers)
        ]
        if isinstance(engine, ScheduledRetriever):
            callbacks.append(RetrieverSchedule(engine))
        try:
            train_rl(
                backend,
                self.workers.agree(lambda: self.asked(stage, scoring)),
                run,
                scoring,
                settings,
                stage.folder,
                resume=True,
                callbacks=callbacks,
                progress=self.progress,
            )
        except MonitorStop:
            self._keep_healthy(backend, stage)
            raise
        if self.workers.first:
            self._keep(backend.save, stage.ends)

    def _agent_of(self, backend: TrainingBackend, stage: Stage, temperature: float) -> Agent:
        """The agent with a backend's policy: on-policy rollouts, or greedy ones (0) for evaluation."""
        settings = self._sampler_settings(temperature, stage.recipe.limits)
        stops = self.protocol.grammar.stops
        if temperature > 0.0:
            return Agent(self.protocol, backend.sampler(self.tokenizer, stops, settings))
        greedy = backend.sampler(self.tokenizer, stops, settings, on_policy=False)
        return Agent(self.protocol, greedy, self.made_of(stage.begins, temperature))

    def _speaker(self, model: PreTrainedModel, stage: Stage, temperature: float) -> Agent:
        """The agent as a stage lets it write."""
        sampler = self.sampler(model, self.protocol, temperature, stage.recipe.limits)
        return Agent(self.protocol, sampler, self.made_of(stage.begins, temperature))

    def made_of(self, policy: str, temperature: float) -> dict[str, str]:
        """What the turns of one of the policies depend on: see `Agent.identities`."""
        tokenizer = self.policy_folder("start")
        return policy_identities(self.policy_folder(policy), tokenizer, temperature, self.recipe.precision)

    def _keep_healthy(self, backend: TrainingBackend, stage: Stage) -> None:
        """Save the policy of the last healthy checkpoint, beside where the trained one would be.

        Every worker gets here, and only the first one writes: they would take each other's folder away.
        """
        kept = load_healthy(stage.folder / "checkpoints")
        if kept is not None:
            backend.policy.load_state(kept["learners"]["policy"])
            name = f"{stage.ends}-healthy"
            if self.workers.first:
                self._keep(backend.save, name)
            self.progress.say(f"the policy as it was after step {kept['step']} is in {self.policy_folder(name)}")
        self.workers.wait()

    def imitate(self, stage: Stage, model: PreTrainedModel) -> None:
        """Rejection sampling: many runs of every training question, and lessons from those that were right."""
        recipe, settings = stage.recipe, stage.recipe.rejection
        scoring = self.scoring(recipe)
        run = self._samples(stage, model, self.asked(stage, scoring))
        kept = right_runs(run.trajectories(), scoring, settings, stage.seed("kept"))
        self.progress.say(f"{len(kept)} runs were right and are learnt from")
        agent = self._speaker(model, stage, 1.0)
        train_sft(
            model,
            draw_by_hops(kept, settings.sft.curriculum),
            settings.sft.model_copy(
                update={"seed": stage.seed(settings.sft.seed, "sft"), "repeat_steps": 0, "varied_steps": 0}
            ),
            stage.folder,
            resume=True,
            evaluate=lambda _: self.evaluate(agent, recipe, scoring),
            progress=self.progress,
        )
        self._keep(Policy(model, self.recipe.rl.policy, 0).save, stage.ends)

    def _samples(self, stage: Stage, model: PreTrainedModel, questions: Sequence[Question]) -> Run:
        """The runs that rejection sampling chooses from, as a run folder."""
        recipe, settings = stage.recipe, stage.recipe.rejection
        run = Run.begin(stage.folder / "samples", {"agent": stage.begins, **dump_settings(settings)}, resume=True)
        engine = self.engine
        if isinstance(engine, ScheduledRetriever):
            engine.progress(0, 1)  # whatever an earlier stage left it at, and a resumed one did not
        self.progress.stage("samples", len(questions) * settings.samples)
        run_questions(
            run,
            self._speaker(model, stage, settings.temperature),
            engine,
            questions,
            recipe.limits,
            seed=stage.seed("samples"),
            samples=settings.samples,
            concurrency=recipe.concurrency,
            overlap=recipe.overlap,
            tell=lambda ended, _: self.progress.advance(ended),
        )
        return run


def readings_of(runs: Sequence[Trajectory], scoring: EpisodeScorer) -> dict[str, float]:
    """Means over the runs without a fault; a metric that no question has is left out."""
    whole = [run for run in runs if not run.stop.is_fault]
    if not whole:
        raise DataError("every run of the dev questions ended by a fault; see to the retriever first")
    named: dict[str, list[float]] = {
        "reward": [paid.value for paid in scoring(whole) if isinstance(paid, Reward)],
        "exact_match": [float(exact_match(run.answer, run.question.answers)) for run in whole if run.question.answers],
        "recall": [found for run in whole if (found := run_recall(run)) is not None],
    }
    return {name: fmean(values) for name, values in named.items() if values}
