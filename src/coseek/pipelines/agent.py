"""Train an agent: data → policy → warm start → reinforcement learning → table → report.

A part whose result exists in the run's folder is skipped, so a stopped run resumes. The trainers write checkpoints.
The folder's files: docs/reference/files.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from threading import Lock

from transformers import PreTrainedModel

from coseek.agents.agent_card import CARD, AgentCard
from coseek.agents.branching import rollout_groups
from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.core.connections import is_url
from coseek.core.settings import dump_settings
from coseek.data.dataset import Dataset, draw
from coseek.data.digests import Identities
from coseek.data.maker import world_maker
from coseek.data.question import Question, load_questions, save_questions
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import Graders, open_graders
from coseek.graders.rag_baseline import RagBaselines
from coseek.graders.scoring import TrajectoryScorer, dev_metrics
from coseek.hardware.device import device_of, memory_gib
from coseek.hub.card import FILE as MODEL_CARD
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_check import check_baselines, check_recipe, taught_protocols
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.agent_run import check_gold, share_run
from coseek.pipelines.data_folder import QuestionSet, check_selection, make_data, question_sets
from coseek.pipelines.demonstrations import demonstrate, write_start
from coseek.pipelines.estimate import check_fits
from coseek.pipelines.run_record import (
    HEALTHY,
    TrainingRun,
    agent_identities,
    policy_identities,
    resolve_recipe,
    take_more_steps,
    take_weights,
    threads_and_trackers,
    write_policy_card,
)
from coseek.pipelines.stages import LoopTask, Stage, accuracy_of, candidates, correct_trajectories, select, stages_of
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever, SharedSchedule, schedule_of
from coseek.rewards.reward import make_reward
from coseek.training.learner.checkpoint import CheckpointTensors, load_healthy
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.policy import Policy, load_learner
from coseek.training.learner.settings import LearnerSettings
from coseek.training.learner.workers import Workers, workers_here
from coseek.training.rl.backend import EpisodeLoop, TrainingBackend, episode_loop, open_backend
from coseek.training.rl.callbacks import Callback, Evaluation, RetrieverSchedule, RolloutWriter
from coseek.training.rl.gold_probe import AnswerWriter
from coseek.training.rl.loop import train_rl
from coseek.training.rl.monitor import MonitorStop
from coseek.training.rl.rollout_servers import ServedBackend, ServerMetrics, check_in_turn, check_servers
from coseek.training.sft.loop import SftOutcome, train_sft
from coseek.training.sft.settings import SftSettings, draw_by_hops


@dataclass
class AgentTraining(TrainingRun[AgentRecipe]):
    """The training of one agent. All workers train and sample; only the first makes data, evaluates and scores."""

    workers: Workers = field(default_factory=workers_here)
    _rollout_lock: Lock = field(default_factory=Lock, init=False, repr=False)
    """Held by rollouts that are sampled ahead and by evaluations, which share a retriever."""
    _questions: dict[str, list[Question]] = field(default_factory=dict, init=False, repr=False)
    worse: bool = field(default=False, init=False)
    """Whether the table's verdict is that training made the policy worse. Set when the table is written."""

    def check(self) -> None:
        check_recipe(self.recipe)
        check_fits(resolve_recipe(self.recipe), self.workers.world_size, memory_gib(device_of(self.recipe.device)))
        check_servers(self.recipe.rollout)

    def identities(self) -> Identities:
        if self.recipe.policy.folder is not None:
            HfTokenizer.load(model_path(self.recipe.policy.folder))  # raises if it cannot be opened
        return agent_identities(self.recipe, self.given_retriever)

    def on_resume(self, stored: AgentRecipe, recipe: AgentRecipe) -> None:
        take_more_steps(stored, recipe, self.folder, lambda: self._schedule is not None)

    def train(self) -> None:
        """Make the data, the warm start and every stage. Skips what is finished."""
        with threads_and_trackers(self):
            if self.workers.is_main:
                self.prepare_data()
                if self.recipe.table.baselines:
                    check_baselines(self.recipe, {retriever.name for retriever in self.retrievers.values()})
                self.make_policy()
            self.workers.barrier()
            if steps_behind := max((stage.recipe.rollout.max_steps_behind for stage in self.stages), default=0):
                check_in_turn(self._schedule, steps_behind)
            if self.recipe.warm_start is not None:
                self.warm_start()
            for stage in self.stages:
                self.train_stage(stage)

    def prepare_data(self) -> None:
        """Make, import or open the data sets, and index them."""
        data = self.recipe.data
        make_data(data, self.folder / "data", self.progress.say)
        if data.unseen is not None and not (self.folder / "unseen").exists():
            world_maker().make(data.unseen).save(self.folder / "unseen")
        check_selection(self.recipe, Dataset(self.data_folder))
        for name, path in self.set_folders.items():
            is_given = name == "data" and self.given_retriever is not None
            if not is_given and not self._index_path(name).exists():
                build_index(path, data.retriever, self._index_path(name), data.retriever_settings)
        if self.given_retriever is not None:
            check_gold(self.questions(data.train), self.given_retriever, str(data.index), self.data_folder)
            self.progress.say(f"data: {self.data_folder}; searched with {data.index}")
            return
        sizes = ", ".join(f"{name} {len(Dataset(path).corpus)} passages" for name, path in self.set_folders.items())
        self.progress.say(f"data: {sizes}; searched with {data.retriever}")

    @property
    def data_folder(self) -> Path:
        """The data set of the recipe, or the one that is made here."""
        given_folder, made_folder = self.recipe.data.folder, self.folder / "data"
        return made_folder if given_folder is None or made_folder.exists() else Path(given_folder)

    @cached_property
    def set_folders(self) -> dict[str, Path]:
        unseen = {"unseen": self.folder / "unseen"} if self.recipe.data.unseen is not None else {}
        return {"data": self.data_folder, **unseen}

    def _index_path(self, name: str) -> Path:
        return self.folder / f"{name}.index"

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        given_retrievers = {} if self.given_retriever is None else {"data": self.given_retriever}
        return {name: given_retrievers.get(name) or open_index(self._index_path(name)) for name in self.set_folders}

    @cached_property
    def given_retriever(self) -> Retriever | None:
        """The retriever that `data.index` names; `None` if the index is built here."""
        return None if self.recipe.data.searched is None else open_retriever(self.recipe.data.searched)

    @cached_property
    def training_retriever(self) -> Retriever:
        """The retriever of training rollouts."""
        index = self.recipe.data.searched or str(self._index_path("data"))
        lines = self.recipe.data.training_over(index, str(self.data_folder))
        return self.retrievers["data"] if lines is None else open_retriever(lines)

    @property
    def _schedule(self) -> SharedSchedule | None:
        """The schedule of the training retriever, if it has one."""
        return None if self.recipe.data.training_retriever is None else schedule_of(self.training_retriever)

    def questions(self, split: str) -> list[Question]:
        if split not in self._questions:
            self._questions[split] = Dataset(self.data_folder).questions(split)
        return self._questions[split]

    @cached_property
    def sets(self) -> list[QuestionSet]:
        """The columns of the table."""
        return question_sets(self.recipe, self.set_folders, self.retrievers)

    @cached_property
    def stages(self) -> list[Stage]:
        return stages_of(self.recipe, self.folder)

    @property
    def compared_policies(self) -> tuple[str, str]:
        """The table's `before` and `after` policies: around reinforcement learning, else around the warm start."""
        return ("warm", "trained") if self.stages else ("start", "warm")

    @cached_property
    def protocol(self) -> Protocol:
        return self.recipe.load_protocol()

    def policy_folder(self, name: str) -> Path:
        """`start`, `warm`, a stage's name or `trained`; without a warm start `warm` is `start`."""
        if name == "start" and (unchanged := self.recipe.policy.unchanged) is not None:
            return model_path(unchanged)
        if name == "warm" and self.recipe.warm_start is None:
            return self.policy_folder("start")
        return self.folder / "policy" / name

    def make_policy(self) -> None:
        """Make an untrained laptop policy with its tokenizer, or give the recipe's model its new tokens."""
        folder = self.policy_folder("start")
        if self.recipe.policy.unchanged is not None or (folder / MODEL_CARD).exists():
            return
        if not folder.exists():
            write_start(self.recipe, self.special_tokens, lambda: Dataset(self.data_folder), folder, self.progress)
        self._card.write(folder)  # a kill may have come between the model and its cards
        write_policy_card(self, "start", folder, self.data_folder)

    @property
    def _card(self) -> AgentCard:
        names = ("protocol", "prompt_template", "chat_template", "limits")
        return AgentCard().model_copy(update={name: getattr(self.recipe, name) for name in names})

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The special tokens of the agent's protocol, then those of the other protocols of its warm start."""
        tokens = (protocol.grammar.special_tokens for protocol in taught_protocols(self.recipe))
        return tuple(dict.fromkeys(chain.from_iterable(tokens)))

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        return HfTokenizer.load(self.policy_folder("start"))

    def sampler(
        self,
        model: PreTrainedModel,
        protocol: Protocol,
        temperature: float,
        limits: Limits | None = None,
        tokenizer: HfTokenizer | None = None,
    ) -> Sampler:
        """A sampler for contexts of `limits`; defaults are the recipe's limits and the policy's tokenizer."""
        settings = self._sampler_settings(temperature, limits or self.recipe.limits)
        tokenizer = tokenizer or self.tokenizer
        return Sampler(model, tokenizer, protocol.stops_for(tokenizer), settings)

    def _sampler_settings(self, temperature: float, limits: Limits) -> SamplerSettings:
        rows, cache, dtype = self.recipe.concurrency, self.recipe.cache_gib, self.recipe.precision
        return SamplerSettings(
            temperature=temperature, max_rows=rows, cache_gib=cache, max_tokens=limits.max_tokens, dtype=dtype
        )

    def _save(self, save: Callable[[Path, Callable[[Path], None]], None], name: str) -> None:
        """Save a policy with its tokenizer and its cards."""
        save(self.policy_folder(name), lambda folder: self._add_cards(folder, name))

    def _add_cards(self, folder: Path, name: str = "") -> None:
        """Add tokenizer and agent card to a policy's folder, and a model card if the policy has a name."""
        self.tokenizer.save(folder)
        self._card.write(folder)
        if name:
            write_policy_card(self, name, folder, self.data_folder)

    def warm_start(self) -> SftOutcome | None:
        """Train on demonstrations until the gate is passed. Returns `None` if the warm start exists already."""
        settings = self.recipe.warm_start
        assert settings is not None
        if self.workers.broadcast((self.policy_folder("warm") / CARD).exists):
            return None
        source = self.retrievers["data"], Dataset(self.data_folder)
        demonstrations = self.workers.broadcast(
            lambda: demonstrate(self.recipe, self.protocol, self.tokenizer, *source, self.progress)
        )
        recipe = self.stages[0].recipe if self.stages else self.recipe
        scoring = self._first_scoring(recipe)
        sft = settings.sft.model_copy(update={"seed": derive_seed(self.recipe.seed, settings.sft.seed, "sft")})
        policy, outcome = self._supervise("start", demonstrations, sft, self.folder / "warm-start", recipe, scoring)
        self.progress.say(f"warm start: {outcome.rounds} round(s); the gate is measured on dev at temperature 1")
        if not outcome.passed:
            self.progress.warn(f"the gate of {settings.sft.gate} was not reached; the rewards will be rare at first")
        self._save(policy.save, "warm")
        return outcome

    def _supervise(
        self,
        start_policy: str,
        demonstrations: Sequence[Trajectory],
        sft: SftSettings,
        folder: Path,
        recipe: AgentRecipe,
        scoring: TrajectoryScorer,
    ) -> tuple[Policy, SftOutcome]:
        """Train `start_policy` supervised, by all workers; evaluations are at temperature 1 with `recipe`'s limits."""
        policy = Policy(self._network(start_policy, sft.learner), sft.learner, 0, workers=self.workers)
        stops, settings = self.protocol.stops_for(self.tokenizer), self._sampler_settings(1.0, recipe.limits)
        agent = Agent(self.protocol, policy.sampler(self.tokenizer, stops, settings))
        outcome = train_sft(
            policy,
            draw_by_hops(demonstrations, sft.curriculum),
            sft,
            folder,
            resume=True,
            evaluate=lambda _: self.evaluate(agent, recipe, scoring),
            progress=self.progress,
        )
        return policy, outcome

    def _network(self, name: str, settings: LearnerSettings) -> PreTrainedModel:
        """The network of a policy's folder, on this worker's device unless it will be sharded, which places it."""
        return load_learner(self.policy_folder(name), self.recipe, settings, self.workers)

    def _first_scoring(self, recipe: AgentRecipe) -> TrajectoryScorer:
        """The scoring. Only the first worker asks graders and writes to their caches."""
        return self.scoring(recipe) if self.workers.is_main else TrajectoryScorer(make_reward({"exact_match": 1.0}))

    @cached_property
    def graders(self) -> Graders:
        """The models that rewards query, with their caches."""
        world = self.data_folder if self.recipe.data.world is not None else None
        return open_graders(self.recipe.graders, self.folder, world)

    def baselines(self, recipe: AgentRecipe) -> RagBaselines:
        """The naive-RAG baselines of the training candidates and the dev questions."""
        questions = candidates(self.questions(recipe.data.train), recipe.select)
        self.progress.stage("baselines", len(questions))
        return self.graders.baselines(
            [*questions, *self.dev_questions(recipe)],
            self.retrievers["data"],
            accuracy_of(recipe),
            lambda done, _: self.progress.advance(min(done, len(questions))),
        )

    def scoring(self, recipe: AgentRecipe) -> TrajectoryScorer:
        """The reward with the graders it needs; opens no others."""
        reward = make_reward(recipe.reward)
        reward.check_golds(candidates(self.questions(recipe.data.train), recipe.select))
        if not reward.needs:
            return TrajectoryScorer(reward)
        return self.graders.scoring(reward, self.baselines(recipe) if "baseline" in reward.needs else None)

    def training_questions(self, stage: Stage, scoring: TrajectoryScorer) -> list[Question]:
        """The training questions of a stage."""
        recipe, path = stage.recipe, stage.folder / "questions.jsonl"
        choose = partial(select, self.questions(recipe.data.train), recipe.select, accuracy_of(recipe))
        if recipe.select.naive_rag == "any":
            return choose(None, stage.seed("select"), self.progress.say)
        if not path.exists():
            # Stored, since the choice would change if a baseline that failed at first were known on resume.
            baselines = scoring.baselines or self.baselines(recipe)
            save_questions(path, choose(baselines, stage.seed("select"), self.progress.say))
        return load_questions(path)

    def dev_questions(self, recipe: AgentRecipe) -> list[Question]:
        table = recipe.table
        return draw(self.questions(recipe.data.dev), table.dev_questions, table.seed, table.dev_per_set)

    def evaluate(self, agent: Agent, recipe: AgentRecipe, scoring: TrajectoryScorer) -> dict[str, float]:
        """Metrics on `table.dev_questions` dev questions: see `dev_metrics`. All workers answer, the first scores."""
        questions = self.dev_questions(recipe)
        own_share = self.workers.strided_share(questions)
        seeds = [derive_seed(recipe.seed, "look", question.id) for question in own_share]
        retriever, concurrency, overlap = self.retrievers["data"], self.recipe.concurrency, self.recipe.overlap
        with self._rollout_lock:
            share = rollout(agent, retriever, own_share, seeds, recipe.limits, concurrency=concurrency, overlap=overlap)
        shares = self.workers.gather(share)
        trajectories = [shares[position % len(shares)][position // len(shares)] for position in range(len(questions))]
        return self.workers.broadcast(lambda: dev_metrics(trajectories, scoring))

    def train_stage(self, stage: Stage) -> None:
        """Train one stage from the weights of the previous stage."""
        if self.workers.broadcast((self.policy_folder(stage.trained_policy) / CARD).exists):
            return
        if stage.name:
            self.progress.say(f"stage {stage.name}: {stage.recipe.about}")
        if stage.recipe.learn == "rejection":
            self.rejection_sampling(stage)
        elif (loop := episode_loop(stage.recipe.rl)) is not None:
            self.train_in_own_loop(stage, loop)
        else:
            self.reinforce(stage)
        self.workers.barrier()

    def train_in_own_loop(self, stage: Stage, loop: EpisodeLoop) -> None:
        """Reinforcement learning in the backend's own training loop. Keeps its last weights."""
        recipe, index = stage.recipe, self.recipe.data.index or str((self.folder / "data.index").resolve())
        task = LoopTask(
            recipe.model_copy(update={"rl": stage.settings}),
            stage.folder.resolve(),
            model_path(str(self.policy_folder(stage.start_policy))).resolve(),
            self.policy_folder("start").resolve(),
            index if is_url(index) else str(Path(index).resolve()),
            self.data_folder.resolve() if self.recipe.data.world is not None else None,
            self.training_questions(stage, self.scoring(recipe)),
            self.dev_questions(recipe),
        )
        weights = loop.train(task, self.progress.say)
        self._save(partial(take_weights, weights), stage.trained_policy)

    def reinforce(self, stage: Stage) -> None:
        """Reinforcement learning on the training questions."""
        recipe, settings = stage.recipe, stage.settings
        backend = open_backend(settings, self._network(stage.start_policy, settings.policy), self.workers)
        callbacks: list[Callback] = []
        if recipe.rollout.servers:
            backend = ServedBackend(backend, recipe.rollout, stage.folder / "served", self._add_cards)
            callbacks.append(ServerMetrics(backend, self.progress.say))
        sampled, greedy = (self._agent_of(backend, stage, temperature) for temperature in (settings.temperature, 0.0))
        retriever, scoring = self.training_retriever, self._first_scoring(recipe)

        def roll_out(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
            with self._rollout_lock:
                return rollout_groups(
                    sampled, retriever, questions, seeds, recipe.limits, settings.tree,
                    concurrency=self.recipe.concurrency, overlap=self.recipe.overlap,
                )  # fmt: skip

        callbacks.append(Evaluation(lambda _: self.evaluate(greedy, recipe, scoring), settings.evaluate_every))
        if self._schedule is not None:
            callbacks.append(RetrieverSchedule(self._schedule))
        settings_of = partial(stage.rollout_settings, self.policy_folder("start"))
        callbacks.append(RolloutWriter(stage.folder / "rollouts", recipe.rl.keep_rollouts, settings_of, self.workers))
        try:
            train_rl(
                backend,
                self.workers.broadcast(lambda: self.training_questions(stage, scoring)),
                roll_out,
                scoring,
                settings,
                stage.folder,
                resume=True,
                callbacks=callbacks,
                progress=self.progress,
                answers=AnswerWriter(self.protocol, self.tokenizer),
            )
        except MonitorStop:
            self._save_healthy(backend, stage)
            raise
        self._save(backend.save, stage.trained_policy)

    def _agent_of(self, backend: TrainingBackend, stage: Stage, temperature: float) -> Agent:
        """The agent with a backend's policy: rollouts to train on, or greedy ones (0) for evaluation."""
        settings = self._sampler_settings(temperature, stage.recipe.limits)
        if temperature > 0.0:
            settings = settings.model_copy(update={"top_p": stage.recipe.rl.top_p})
        on_policy = temperature > 0.0 and settings.top_p == 1.0
        stops = self.protocol.stops_for(self.tokenizer)
        return Agent(self.protocol, backend.sampler(self.tokenizer, stops, settings, on_policy=on_policy))

    def turn_identities(self, policy: str, temperature: float) -> dict[str, str]:
        """Digests of what a policy's turns depend on: see `Agent.identities`."""
        folder, tokenizer = self.policy_folder(policy), self.policy_folder("start")
        return policy_identities(folder, tokenizer, temperature, self.recipe.precision)

    def _save_healthy(self, backend: TrainingBackend, stage: Stage) -> None:
        """Save the last healthy checkpoint's policy as `NAME-healthy`. All workers call this; only the first writes."""
        template: CheckpointTensors = {"learners": {"policy": backend.policy.state()}, "frozen": {}}
        healthy = load_healthy(stage.folder / "checkpoints", template, self.workers)
        if healthy is not None:
            backend.policy.load_state(healthy["learners"]["policy"])
            name = f"{stage.trained_policy}{HEALTHY}"
            self._save(backend.save, name)
            self.progress.say(f"the policy as it was after step {healthy['step']} is in {self.policy_folder(name)}")
        self.workers.barrier()

    def rejection_sampling(self, stage: Stage) -> None:
        """Sample all training questions and train on the correct trajectories. All workers sample; the first scores."""
        recipe, settings = stage.recipe, stage.recipe.rejection
        scoring = self._first_scoring(recipe)
        run = self._samples(stage, self.workers.broadcast(lambda: self.training_questions(stage, scoring)))
        seed = stage.seed("kept")
        correct = self.workers.broadcast(lambda: correct_trajectories(run.trajectories(), scoring, settings, seed))
        self.progress.say(f"{len(correct)} trajectories are correct and are learnt from")
        update = {"seed": stage.seed(settings.sft.seed, "sft"), "repeat_steps": 0, "varied_steps": 0}
        sft = settings.sft.model_copy(update=update)
        policy, _ = self._supervise(stage.start_policy, correct, sft, stage.folder, recipe, scoring)
        self._save(policy.save, stage.trained_policy)

    def _samples(self, stage: Stage, questions: Sequence[Question]) -> Run:
        """The runs that rejection sampling chooses from, as a run folder. All workers call this."""
        recipe, settings = stage.recipe, stage.recipe.rejection
        if self._schedule is not None:
            self._schedule.progress(0, 1)  # an earlier stage may have advanced it, and a resumed run begins here
        self.progress.stage("samples", -(-len(questions) * settings.samples // self.workers.world_size))
        model = load_model(self.policy_folder(stage.start_policy), self.recipe.in_float32())
        sampler = self.sampler(model, self.protocol, settings.temperature, recipe.limits)
        return share_run(
            self.workers,
            stage.folder / "samples",
            {"agent": stage.start_policy, **dump_settings(settings)},
            Agent(self.protocol, sampler, self.turn_identities(stage.start_policy, settings.temperature)),
            self.training_retriever,
            questions,
            recipe.limits,
            seed=stage.seed("samples"),
            samples=settings.samples,
            concurrency=recipe.concurrency,
            overlap=recipe.overlap,
            repeat_faults=not (stage.folder / "round-1").exists(),  # not once supervised training has begun
            tell=lambda ended, _: self.progress.advance(ended),
        )
