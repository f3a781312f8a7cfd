"""Folders, recipes and opened agents and retrievers of a co-training. Trains nothing."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

from coseek.agents.drivers import Agent
from coseek.core.files import JsonObject
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import dump_settings, make_settings, merge_settings
from coseek.core.strict_yaml import Replace
from coseek.data.digests import Identities
from coseek.graders.factory import ORACLE
from coseek.models.model_folder import model_path
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.run_record import TrainingRun, content_of, path_identities
from coseek.pipelines.table_rows import TableRow, agent_of
from coseek.pipelines.together_recipe import TogetherRecipe, check_together
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.workers import Workers, workers_here
from coseek.training.rl.settings import RolloutSettings

SEED_BOUND = 2**31
"""Upper bound of retrievers' seeds, which their trainer passes to numpy."""


class RoundPaths:
    """The folders of one round. Round 0 precedes the first."""

    def __init__(self, folder: Path) -> None:
        self.agent = folder / "agent"
        self.questions = folder / "questions.jsonl"
        self.run = folder / "run"
        self.labels = folder / "labels"
        self.label_counts = folder / "labels.json"
        """Label counts; written when the labels are complete."""
        self.retriever = folder / "retriever"
        self.index = folder / "index"


@dataclass
class CoTrainingPaths(TrainingRun[TogetherRecipe]):
    """One co-training in a folder."""

    workers: Workers = field(default_factory=workers_here)

    def check(self) -> None:
        check_together(self.recipe)

    def identities(self) -> Identities:
        """Digests of what all rounds share. The agent and retriever trainings record their own."""
        labels, encoder = self.recipe.labels, self.recipe.start.encoder
        digests = {f"agent.{name}": identity for name, identity in path_identities(self.recipe.agent).items()}
        for setting, name in (("labels.scorer", labels.scorer), ("labels.likelihood", labels.likelihood)):
            if name is not None and (path := model_path(name)).exists():
                digests[setting] = content_of(path)
        return digests if encoder is None else {**digests, "start.encoder": fingerprint(encoder_folder(encoder))}

    def fixed_settings(self, recipe: TogetherRecipe) -> JsonObject:
        """The fixed settings of every training, and the steps of the agent, since earlier rounds used them."""
        agent = recipe.agent
        steps = {f"agent.stages.{name}.rl.steps": agent.stage(name).rl.steps for name in agent.stages}
        return {**super().fixed_settings(recipe), "agent.rl.steps": agent.rl.steps, **steps}

    def round(self, number: int) -> RoundPaths:
        # Absolute, since recipes and records name these folders and `--resume` may run in another directory.
        return RoundPaths(self.folder.absolute() / f"round-{number}")

    # --- agents

    def agent(self, number: int) -> AgentTraining:
        """The training of agent `number`."""
        if not number:
            return self.first
        return AgentTraining(self.agent_recipe(number), self.round(number).agent, self.progress, self.workers)

    @cached_property
    def first(self) -> AgentTraining:
        """The training of agent 0: data and warm start, with the retriever of the agent's recipe."""
        # Servers sample for reinforcement learning, in later rounds.
        no_servers, no_stages = dump_settings(RolloutSettings()), cast(JsonObject, Replace())
        recipe = self._agent_recipe(
            {"learn": "demonstrations", "stages": no_stages, "data": {"unseen": None}, "rollout": no_servers}
        )
        return AgentTraining(recipe, self.round(0).agent, self.progress, self.workers)

    def policy(self, number: int) -> Path:
        """The model folder of an agent."""
        return self.agent(number).policy_folder("trained" if number else "warm")

    @property
    def data_folder(self) -> Path:
        return self.first.data_folder

    def open_agent(self, number: int, temperature: float) -> Agent:
        """Open agent `number`."""
        training, policy = self.agent(number), "trained" if number else "warm"
        return agent_of(training, TableRow(policy, policy, training.recipe.protocol, temperature))

    def turn_identities(self, number: int, temperature: float) -> dict[str, str]:
        """Digests of what the turns of agent `number` depend on: see `Agent.identities`."""
        return self.agent(number).turn_identities("trained" if number else "warm", temperature)

    def agent_recipe(self, number: int) -> AgentRecipe:
        """The recipe after the warm start, over the retriever of the round before."""
        initial = number - 1 if self.recipe.agent_begins == "previous" else 0
        folder, index = str(self.data_folder), self.retriever_source(number - 1)
        overrides: JsonObject = {
            "seed": derive_seed(self.recipe.seed, "agent", number, self.recipe.agent.seed),
            "data": {"world": None, "unseen": None, "folder": folder, "index": index},
            # The tokenizer has the tags and words already; adding them again would add untrained tokens.
            "policy": {"folder": str(self.policy(initial)), "add_tag_tokens": False, "add_word_tokens": 0},
            "warm_start": None,
        }
        judge = self.recipe.agent.graders.judge
        if judge is not None and judge.model == ORACLE:  # `oracle` needs data.world, which is a folder here
            overrides["graders"] = {"judge": {"model": folder}}
        return self._agent_recipe(overrides)

    def _agent_recipe(self, overrides: JsonObject) -> AgentRecipe:
        tree = merge_settings(AgentRecipe, dump_settings(self.recipe.agent), overrides)
        if self.recipe.threads is not None:
            tree["threads"] = self.recipe.threads
        return make_settings(AgentRecipe, tree)

    # --- retrievers

    def encoder(self, number: int) -> str:
        """The encoder of retriever `number`: a folder, or a shipped encoder's name."""
        if not number and self.recipe.start.encoder is not None:
            return self.recipe.start.encoder
        return str(self.round(number).retriever / "encoder")

    def retriever_source(self, number: int) -> str:
        """The index of retriever `number`, the URL of retriever 0, or the file of a reranker over retriever 0."""
        if number and self.recipe.retriever.kind == "reranker":
            return str(self.round(number).index.with_suffix(".yaml"))
        return (None if number else self.recipe.start.url) or str(self.round(number).index)

    def retriever(self, number: int | None) -> Retriever:
        """Open retriever `number`; `None` stands for the retriever of the agent's recipe."""
        return self.first.retrievers["data"] if number is None else open_retriever(self.retriever_source(number))

    def retriever_recipe(self, number: int) -> RetrieverRecipe | None:
        """The recipe of retriever `number`; `None` if retriever 0 is not trained here."""
        recipe = self.recipe.start.recipe
        if number:
            initial = number - 1 if self.recipe.retriever_begins == "previous" else 0
            update = {
                "seed": derive_seed(self.recipe.seed, "retriever", number, self.recipe.retriever.seed) % SEED_BOUND,
                "labels": (str(self.round(number).labels),),
                "encoder": self.encoder(initial),
            }
            recipe = self.recipe.retriever.model_copy(update=update)
        if recipe is None:
            return None
        # A question is held out in every round or in none, since a retriever starts from the previous one.
        held_out = recipe.held_out
        if held_out.seed is None:
            held_out = held_out.model_copy(update={"seed": derive_seed(self.recipe.seed, "held out") % SEED_BOUND})
        threads = recipe.threads if self.recipe.threads is None else self.recipe.threads
        return recipe.model_copy(update={"held_out": held_out, "threads": threads})

    def index_settings(self, number: int) -> JsonObject:
        settings = cast(JsonObject, {**self.recipe.index.settings})
        settings |= {} if number else self.recipe.start.index
        return {**settings, "encoder": self.encoder(number)}

    # --- runs

    def run_settings(self, agent: int, retriever: int | None, source: JsonObject, temperature: float) -> JsonObject:
        """The settings in a run folder's `run.yaml`; `source` names the questions."""
        recipe = self.recipe.agent
        index = recipe.data.index or str(self.round(0).agent / "data.index")
        if retriever is not None:
            index = self.retriever_source(retriever)
        record = recipe.agent_record(str(self.policy(agent)), temperature)
        return {**source, "retriever": index, "agent": record, "limits": dump_settings(recipe.limits)}
