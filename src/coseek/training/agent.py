"""Training an agent, from files to table: data → policy → warm start → reinforcement learning → table → report.

Every stage leaves its result in the run's folder and is passed over when that is there, so a stopped run goes on where
it was. Within a stage the trainers have checkpoints of their own.

    OUT/recipe.yaml        the whole recipe, versions and commit
    OUT/data, OUT/unseen   data sets (when the recipe makes them), OUT/*.index
    OUT/policy/start, warm, trained                  Hugging Face folders
    OUT/warm-start, OUT/rl                           metrics and checkpoints
    OUT/table/AGENT.SET.TEMPERATURE                  runs: every trajectory of the table
    OUT/table.md, OUT/table.json, OUT/report.html
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean

import torch
import yaml
from transformers import PreTrainedModel

from coseek.agents.card import CARD, AgentCard
from coseek.agents.protocol import Protocol, load_protocol
from coseek.agents.rollout import Agent, rollout
from coseek.data.dataset import Dataset
from coseek.data.errors import DataError, SettingError, UnknownName
from coseek.data.files import atomic_write
from coseek.data.imports import import_data
from coseek.data.question import Question
from coseek.data.run import provenance
from coseek.data.settings import save_settings
from coseek.data.trajectory import Trajectory
from coseek.measure.answers import exact_match
from coseek.measure.retrieval import run_recall
from coseek.models.laptop import make_policy
from coseek.models.loading import load_model
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.retrieval.index import build_index, open_index, retriever_names
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import make_reward
from coseek.training.learning.policy import Policy
from coseek.training.order import derive_seed
from coseek.training.progress import Progress, Silent
from coseek.training.recipe import AgentRecipe
from coseek.training.rl.loop import train_rl
from coseek.training.sft.curriculum import draw_by_hops
from coseek.training.sft.demonstrations import demonstrate, texts_of
from coseek.training.sft.loop import WarmStart, train_sft
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
    progress: Progress = field(default_factory=Silent)

    def begin(self, resume: bool) -> None:
        """Write the recipe down, or check that it is the one that the folder was begun with."""
        self.check()
        path = self.folder / "recipe.yaml"
        if path.exists() and not resume:
            raise DataError(f"{self.folder} holds a training run already; go on with --resume, or choose another --out")
        wanted = save_settings(self.recipe)
        if path.exists():
            began = yaml.safe_load(path.read_text(encoding="utf-8"))["recipe"]
            changed = sorted(name for name in wanted if began.get(name) != wanted[name])
            if changed:
                raise SettingError(
                    f"{self.folder} was begun with another {', '.join(changed)}; take the same recipe, or another --out"
                )
            return
        with atomic_write(path) as file:
            yaml.safe_dump({"recipe": wanted, **provenance()}, file, sort_keys=False, allow_unicode=True)

    def check(self) -> None:
        """Find what is wrong with the recipe before anything is written."""
        recipe = self.recipe
        make_reward(recipe.reward)
        load_protocol(recipe.protocol, recipe.wording)
        if recipe.data.retriever not in retriever_names():
            raise UnknownName("retriever", recipe.data.retriever, retriever_names())
        sources = [Path(source) for source in recipe.data.imported.sources] if recipe.data.imported else []
        if recipe.data.imported and not sources:
            raise SettingError("setting 'data.imported.sources' is empty; name the files: data.imported.sources=[FILE]")
        for path in (*sources, *(Path(name) for name in (recipe.data.folder, recipe.policy.folder) if name)):
            if not path.exists():
                raise DataError(f"there is no {path}, which the recipe names; check the path")
        if recipe.warm_start and recipe.warm_start.writer == "expert" and recipe.data.world is None:
            raise SettingError(
                "the expert demonstrates in laptop worlds only; take warm_start.writer=rules for other data"
            )

    def train(self) -> None:
        """Everything up to the trained policy."""
        if self.recipe.threads is not None:
            torch.set_num_threads(self.recipe.threads)
        self.prepare_data()
        self.make_policy()
        if self.recipe.warm_start is not None:
            self.warm_start()
        self.reinforce()

    # --- data

    def prepare_data(self) -> None:
        """Make, import or open the data sets, and index them."""
        data = self.recipe.data
        folder = self.data_folder
        if data.world is not None and not folder.exists():
            make_world(data.world).save(folder)
        if data.imported is not None and not folder.exists():
            sources = [Path(source) for source in data.imported.sources]
            import_data(data.imported.format, sources, folder, shares=data.imported.shares)
        if data.unseen is not None and not (self.folder / "unseen").exists():
            make_world(data.unseen).save(self.folder / "unseen")
        for name in self.set_folders:
            if not self._index_path(name).exists():
                build_index(self.set_folders[name], data.retriever, self._index_path(name), data.retriever_settings)
        sizes = ", ".join(f"{name} {len(Dataset(path).corpus)} passages" for name, path in self.set_folders.items())
        self.progress.say(f"data: {sizes}; searched with {data.retriever}")

    @cached_property
    def data_folder(self) -> Path:
        return Path(self.recipe.data.folder) if self.recipe.data.folder is not None else self.folder / "data"

    @cached_property
    def set_folders(self) -> dict[str, Path]:
        unseen = {"unseen": self.folder / "unseen"} if self.recipe.data.unseen is not None else {}
        return {"data": self.data_folder, **unseen}

    def _index_path(self, name: str) -> Path:
        return self.folder / f"{name}.index"

    @cached_property
    def retrievers(self) -> dict[str, Retriever]:
        return {name: open_index(self._index_path(name)) for name in self.set_folders}

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
    def protocol(self) -> Protocol:
        return load_protocol(self.recipe.protocol, self.recipe.wording)

    def policy_folder(self, name: str) -> Path:
        """`start`, `warm` or `trained`; without a warm start `warm` is `start`."""
        if name == "start" and self.recipe.policy.folder is not None:
            return Path(self.recipe.policy.folder)
        if name == "warm" and self.recipe.warm_start is None:
            return self.policy_folder("start")
        return self.folder / "policy" / name

    def make_policy(self) -> None:
        """An untrained laptop policy with a tokenizer learnt from texts, unless the recipe starts from a folder."""
        folder = self.policy_folder("start")
        if folder.exists() or self.recipe.policy.folder is not None:
            return
        texts = texts_of(self.recipe, Dataset(self.data_folder))
        make_policy(self.recipe.policy.laptop, texts, self.protocol.grammar.special_tokens, folder, self.recipe.seed)
        AgentCard(protocol=self.recipe.protocol, wording=self.recipe.wording).write(folder)

    @cached_property
    def tokenizer(self) -> HfTokenizer:
        return HfTokenizer.load(self.policy_folder("start"))

    def sampler(self, model: PreTrainedModel, protocol: Protocol, temperature: float) -> Sampler:
        limits = self.recipe.limits
        settings = SamplerSettings(
            temperature=temperature,
            max_rows=self.recipe.concurrency,
            max_tokens=limits.max_tokens,
            dtype=self.recipe.precision,
        )
        return Sampler(model, self.tokenizer, protocol.grammar.stops, settings)

    def _keep(self, model: PreTrainedModel, name: str) -> None:
        """Save the policy as a folder that says which protocol it speaks."""
        card = AgentCard(protocol=self.recipe.protocol, wording=self.recipe.wording)

        def extra(part: Path) -> None:
            self.tokenizer.save(part)
            card.write(part)

        Policy(model, self.recipe.rl.policy, 0).save(self.policy_folder(name), extra)

    # --- training

    def warm_start(self) -> WarmStart | None:
        """Supervised training on demonstrations, until the gate is passed; `None` when it was over already."""
        settings = self.recipe.warm_start
        assert settings is not None
        if (self.policy_folder("warm") / CARD).exists():
            return None
        runs = demonstrate(
            self.recipe, self.protocol, self.tokenizer, self.retrievers["data"], self.questions, self.progress
        )
        model = load_model(self.policy_folder("start"))
        agent = Agent(self.protocol, self.sampler(model, self.protocol, 1.0))
        outcome = train_sft(
            model,
            draw_by_hops(runs, settings.sft.curriculum),
            settings.sft.model_copy(update={"seed": derive_seed(self.recipe.seed, settings.sft.seed, "sft")}),
            self.folder / "warm-start",
            resume=True,
            evaluate=lambda _: self.look(agent),
            progress=self.progress,
        )
        self.progress.say(f"warm start: {outcome.rounds} round(s); readings are of dev at temperature 1")
        if not outcome.passed:
            self.progress.say(f"the gate of {settings.sft.gate} was not reached; the rewards will be rare at first")
        self._keep(model, "warm")
        return outcome

    def look(self, agent: Agent) -> dict[str, float]:
        """A short look at the dev split: mean reward, strict EM and gold-passage recall of the agent as it is now."""
        questions = self.questions(self.recipe.data.dev)[: self.recipe.table.dev_questions]
        seeds = [derive_seed(self.recipe.seed, "look", question.id) for question in questions]
        runs = rollout(
            agent, self.retrievers["data"], questions, seeds, self.recipe.limits, concurrency=self.recipe.concurrency
        )
        return readings_of(runs, self)

    def reinforce(self) -> None:
        """Reinforcement learning on the training questions."""
        if (self.policy_folder("trained") / CARD).exists():
            return
        recipe = self.recipe
        model = load_model(self.policy_folder("warm"))
        settings = recipe.rl.model_copy(update={"seed": derive_seed(recipe.seed, recipe.rl.seed, "rl")})
        writing = Agent(self.protocol, self.sampler(model, self.protocol, settings.temperature))
        greedy = Agent(self.protocol, self.sampler(model, self.protocol, 0.0))

        def run(questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
            return rollout(
                writing, self.retrievers["data"], questions, seeds, recipe.limits, concurrency=recipe.concurrency
            )

        train_rl(
            Policy(model, settings.policy, settings.updates, settings.temperature),
            self.questions(recipe.data.train),
            run,
            make_reward(recipe.reward),
            settings,
            self.folder / "rl",
            resume=True,
            evaluate=(lambda _: self.look(greedy)) if settings.evaluate_every else None,
            progress=self.progress,
        )
        self._keep(model, "trained")


def readings_of(runs: Sequence[Trajectory], training: AgentTraining) -> dict[str, float]:
    """Means over the runs without a fault; a metric that no question has is left out."""
    reward = make_reward(training.recipe.reward)
    whole = [run for run in runs if not run.stop.is_fault]
    if not whole:
        raise DataError("every run of the dev questions ended by a fault; see to the retriever first")
    named: dict[str, list[float]] = {
        "reward": [paid.value for run in whole if (paid := reward(run)) is not None],
        "exact_match": [float(exact_match(run.answer, run.question.answers)) for run in whole if run.question.answers],
        "recall": [found for run in whole if (found := run_recall(run)) is not None],
    }
    return {name: fmean(values) for name, values in named.items() if values}
