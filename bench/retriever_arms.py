"""One seed of the comparison of retrievers: an agent in its world, encoders, labels, and what the agent makes of each.

Everything is kept in a folder and passed over when it is there, so a stopped comparison goes on where it was.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

from bench.real_sets import boundless

from coseek.agents.agent_card import CARD
from coseek.agents.drivers import Agent
from coseek.agents.factory import open_scripted_agent
from coseek.agents.run_questions import run_questions
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.agents.search_turns import SearchTurn, search_turns
from coseek.core.files import JsonObject, write_json
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus
from coseek.data.question import Question, plan_of
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.structured_output import CallCounts
from coseek.hardware.placement import FLOAT32
from coseek.lab.agents.expert import progress
from coseek.labels.answer_correctness import Correctness
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import LabelSummary, make_labels
from coseek.labels.local_relevance import LocalRelevance
from coseek.labels.maker import PACKAGE, LabelMaker, RolloutMaker
from coseek.labels.makers.agentic_r import AgenticR, AgenticRSettings
from coseek.labels.makers.dr_synth import DrSynth
from coseek.labels.oracle_retriever import OracleRetriever
from coseek.labels.resources import ORACLE, AgentWithLimits, LabelResources
from coseek.measure.score import ScoredRun, score_run
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.encoder import RetrieverTraining
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever
from coseek.training.encoder.recipe import RetrieverRecipe

BM25, ZERO_SHOT = "BM25", "zero-shot"
"""Retrievers that learn from no label. The zero-shot encoder is the shipped one."""
RANDOM, BEST = "random", "oracle"
"""The worst retriever and the best one, which knows the plan of every question."""
HYBRID = "gac+oracle-rank"
SETS = {"test": "data", "unseen": "unseen"}
"""Set of questions → the world that is searched. Labels come from the train split of `data`."""


@dataclass(frozen=True, slots=True)
class Method:
    """How labels are made, and what learns from them."""

    maker: str
    settings: JsonObject
    loss: str = "contrastive"
    temperature: float = 0.05
    """Of the loss."""


METHODS = {
    "agentic-r": Method("agentic_r", {}),
    "agentic-r without GAC": Method("agentic_r", {"gac": False}),
    "agentic-r without LR": Method("agentic_r", {"lr": False}),
    # As many passages as the agent was taught to read in a turn, in the place of the paper's five.
    "dr-synth": Method("dr_synth", {"shown": 3}),
    "gold": Method("gold", {}),
    "replug": Method("replug", {}, loss="kl", temperature=0.1),  # as our recipe `replug` has it
    "llm-embedder": Method("llm_embedder", {}),
    "scarlet": Method("scarlet", {}),
    # Agentic-R's rule over DR-Synth's runs and lists. The oracle's order is by LR, so (GAC, LR) is (GAC, rank).
    HYBRID: Method("agentic_r", {}),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One retriever: what it learns from, and what it sees of a turn."""

    source: str
    """A retriever without labels, or one of `METHODS`."""
    view: str

    @property
    def slug(self) -> str:
        """The name of its folders."""
        return f"{self.source}.{self.view}".replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    questions: int = 300
    """Of each set."""
    labelled: int = 800
    """Questions of the train split whose trajectories become labels."""
    agent: tuple[str, ...] = ()
    """Overrides of the agent's recipe."""
    steps: int = 120
    """Updates of an encoder that learns from labels."""
    expert: bool = False
    """The scripted expert asks, in the place of the policy that learnt from it."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What labels are, seen by one who knows the plan of every question."""

    turns: int
    sets: int
    right: int
    """Sets whose positive tells the next step of the plan: the first that no earlier search has brought."""


SMALL = Scale(
    questions=20,
    labelled=30,
    agent=("data.world.size=tiny", "data.unseen.size=tiny", "data.unseen.test=20"),
    steps=10,
    expert=True,
)
"""Everything once, in about a minute: says nothing about retrievers."""


@dataclass
class Place:
    """One seed."""

    seed: int
    folder: Path
    agent: Path
    """Where `terse` was trained, or will be. It learns in throw-away worlds, so one agent asks in all places."""
    generator: Path
    """The folder of the model that says how likely answers are (REPLUG)."""
    scale: Scale
    say: Callable[[str], None] = print

    # --- the agent and its worlds

    @cached_property
    def training(self) -> AgentTraining:
        """The recipe with this seed's worlds, which are made when they are missing."""
        worlds = [f"data.world.seed={7 + 10 * self.seed}", f"data.unseen.seed={8 + 10 * self.seed}"]
        training = AgentTraining(load_recipe("terse", [*worlds, *self.scale.agent]), self.folder / "worlds")
        training.prepare_data()
        return training

    @cached_property
    def taught(self) -> AgentTraining:
        """The agent's own training, done when it is missing.

        Refuses a folder where one was begun: it may be under way, and two would spoil it."""
        training = AgentTraining(load_recipe("terse", self.scale.agent), self.agent)
        if (training.policy_folder("warm") / CARD).exists():
            return training
        if (training.folder / "recipe.yaml").exists():
            again = f"coseek train agent {training.folder}/recipe.yaml --resume --out {training.folder}"
            raise SystemExit(f"{training.folder} holds no trained agent yet; wait for it, or go on with it: {again}")
        training.begin(resume=False)
        training.train()
        return training

    def speaker(self, temperature: float) -> AgentWithLimits:
        training = self.training
        protocol, limits = training.protocol, training.recipe.limits
        if self.scale.expert:
            assert training.recipe.warm_start is not None
            # A policy says too little again when it searches anew; the expert would say all at its second try.
            habits = training.recipe.warm_start.expert.model_copy(update={"bad_query": 1.0})
            expert = open_scripted_agent("expert", habits)
            agent = Agent(
                protocol, ScriptedAgentModel(expert, protocol, ByteTokenizer(protocol.grammar.special_tokens))
            )
            wide = boundless(limits.passages_per_search).model_copy(update={"max_turns": limits.max_turns})
            return AgentWithLimits(agent, wide, digest_of("expert", habits.model_dump_json()))
        folder = self.taught.policy_folder("warm")
        agent = Agent(protocol, self.taught.sampler(load_model(folder, FLOAT32), protocol, temperature))
        return AgentWithLimits(agent, limits, digest_of(fingerprint(folder), protocol.name, str(temperature)))

    @cached_property
    def corpora(self) -> dict[str, Corpus]:
        return {world: Dataset(folder).corpus for world, folder in self.training.set_folders.items()}

    def questions(self, name: str) -> list[Question]:
        folder = self.training.set_folders[SETS[name]]
        return Dataset(folder).questions("test")[: self.scale.questions]

    # --- retrievers

    def encoder(self, arm: Arm) -> Path:
        """The encoder that learns from an arm's labels, with the arm's view."""
        method = METHODS[arm.source]
        recipe = make_settings(
            RetrieverRecipe,
            {
                "seed": self.seed,
                "labels": [str(self.labels(arm.source))],
                "encoder": "base",
                "view": arm.view,
                "loss": {"kind": method.loss, "temperature": method.temperature, "negatives": 7},
                "training": {
                    "steps": self.scale.steps,
                    "batch_size": 64,
                    "micro_batch_tokens": 32768,
                    "optimizer": {"lr": 1e-3, "warmup_updates": 10, "decay": "linear", "decay_from": 0.3},
                },
                "held_out": {"corpus": str(self.training.data_folder)},
            },
        )
        return self._trained(recipe, self.folder / "encoders" / arm.slug)

    def _trained(self, recipe: RetrieverRecipe, folder: Path) -> Path:
        training = RetrieverTraining(recipe, folder)
        if not (folder / "table.md").exists():
            self.say(f"seed {self.seed}: training {folder.name}")
            training.begin(resume=True)
            training.train()
            training.results()
        return training.encoder_folder

    def retriever(self, arm: Arm, world: str) -> Retriever:
        out = self.folder / "indexes" / f"{arm.slug}.{world}"
        if not out.exists():
            source = self.training.set_folders[world]
            if arm.source == BM25:
                build_index(source, "bm25", out, {"view": arm.view})
            elif arm.source == RANDOM:
                build_index(source, "random", out, {})
            else:
                build_index(source, "dense", out, {"encoder": str(self._encoder_of(arm)), "view": arm.view})
        return open_index(out, self.corpora[world])

    def _encoder_of(self, arm: Arm) -> Path:
        return model_path("base", "encoder") if arm.source == ZERO_SHOT else self.encoder(arm)

    def _all_knowing(self, world: str, questions: Sequence[Question]) -> Retriever:
        """BM25's results and the gold passages, in the order of the world's oracle."""
        over = self.retriever(Arm(BM25, "query"), world)
        maker = self._maker(METHODS["dr-synth"], self._parts(over, 0.0, CallCounts(), world))
        assert isinstance(maker, DrSynth)
        return OracleRetriever(maker.rankings, questions)

    # --- labels

    @cached_property
    def asked(self) -> Retriever:
        """Whose candidates are labelled, and who serves the agent meanwhile: the best that a user has before any
        training. BM25 that does not read the reasoning leaves two turns of three without a label."""
        return self.retriever(Arm(BM25, "reasoning+query"), "data")

    @cached_property
    def labelled(self) -> list[Question]:
        return self.training.questions("train")[: self.scale.labelled]

    @cached_property
    def trajectories(self) -> list[SearchTurn]:
        """What the agent searches on questions of the train split, at temperature 1."""
        runs = self._runs(self.folder / "trajectories", self.speaker(1.0), lambda: self.asked, self.labelled)
        return [turn for run in runs for turn in search_turns(run, self.training.protocol)]

    def labels(self, name: str) -> Path:
        """The label folder of a method. All methods keep their scores together, and ask for none twice."""
        folder = self.folder / "labels" / name.replace(" ", "-")
        if not (folder / "summary.json").exists():
            summary = self._label(name, folder)
            write_json(folder / "summary.json", summary.to_json())
            self.say(f"seed {self.seed}: labels {name}: {summary.to_json()}")
        return folder

    def _label(self, name: str, folder: Path) -> LabelSummary:
        method, tally = METHODS[name], CallCounts()
        if name == HYBRID:
            turns, over = self._oracle_ranked()
            maker = self._combined(over, tally)
        else:
            # Runs are drawn, so that an agent asks in all the ways it has. What it makes of a passage is its best.
            maker = self._maker(method, self._parts(self.asked, 1.0 if method.maker == "dr_synth" else 0.0, tally))
            turns = [*maker.roll_out(self.labelled, _unheard)] if isinstance(maker, RolloutMaker) else self.trajectories
        labels = LabelFolder.begin(folder, {"method": name, **method.settings}, maker.identity, resume=True)
        return make_labels(labels, maker, turns, tally)

    def _parts(
        self, retriever: Retriever, temperature: float, tally: CallCounts, world: str = "data"
    ) -> LabelResources:
        return LabelResources(
            folder=self.folder / "labels",
            found_by=retriever,
            open_agent=lambda: self.speaker(temperature),
            scorer_name=ORACLE,
            world=self.training.set_folders[world],
            likelihood_name=str(self.generator),
            tally=tally,
        )

    def _maker(self, method: Method, parts: LabelResources) -> LabelMaker:
        module = import_module(f"{PACKAGE}.{method.maker}")
        maker: LabelMaker = module.open(make_settings(module.SETTINGS, method.settings), parts)
        return maker

    def _combined(self, over: Retriever, tally: CallCounts) -> LabelMaker:
        """Candidates in the oracle's order; branches search with BM25: an oracle would mend any of them."""
        settings = AgenticRSettings()
        lists, served = self._parts(over, 0.0, tally), self._parts(self.asked, 0.0, tally)
        return AgenticR(settings, lists, LocalRelevance(lists, settings.scoring), Correctness.of(served))

    def _oracle_ranked(self) -> tuple[list[SearchTurn], Retriever]:
        """DR-Synth's turns, and its retriever."""
        self.labels("dr-synth")
        parts = self._parts(self.asked, 1.0, CallCounts())
        maker = self._maker(METHODS["dr-synth"], parts)
        assert isinstance(maker, DrSynth)
        return [*maker.roll_out(self.labelled, _unheard)], OracleRetriever(maker.rankings, self.labelled)

    def worth(self, name: str) -> "Worth":
        """What a method's labels are."""
        folder = self.labels(name)
        run = self.folder / ("labels/run" if name in (HYBRID, "dr-synth") else "trajectories")
        runs = {(one.question.id, one.seed): one for one in Run(run).trajectories()}
        sets = list(LabelFolder(folder).sets())
        right = 0
        for one in sets:
            plan = plan_of(one.question)
            earlier = runs[one.turn.question_id, one.turn.seed].searches[: one.turn.search]
            done = len(progress(plan, earlier)[0])
            right += done < len(plan) and one.positive == plan[done].gold_id
        turns = len({one.turn for one in sets}) + sum(1 for _ in LabelFolder(folder).dropped())
        return Worth(turns, len(sets), right)

    # --- what the agent makes of a retriever

    def scored(self, arm: Arm, name: str) -> ScoredRun:
        """The agent over a retriever, always its likeliest words, on a set of questions."""
        folder, questions = self.folder / "runs" / f"{arm.slug}.{name}", self.questions(name)
        world = SETS[name]

        def served() -> Retriever:
            return self._all_knowing(world, questions) if arm.source == BEST else self.retriever(arm, world)

        return score_run(arm.slug, self._runs(folder, self._greedy, served, questions))

    @cached_property
    def _greedy(self) -> AgentWithLimits:
        return self.speaker(0.0)

    def _runs(
        self,
        folder: Path,
        speaker: AgentWithLimits,
        open_retriever: Callable[[], Retriever],
        questions: Sequence[Question],
    ) -> list[Trajectory]:
        """In the order of the questions, whatever the order in which they ended.

        A complete run is read without its retriever: runs alone make the tables again."""
        settings: JsonObject = {"agent": speaker.identity, "limits": dump_settings(speaker.limits)}
        run = Run(folder) if (folder / "run.yaml").exists() else None
        missing = run is None or len(run.done()) < len(questions)
        retriever = open_retriever() if missing else None
        if retriever is not None:
            settings["retriever"] = retriever.identity
        run = run or Run.create(folder, settings)
        if any(run.settings.get(name) != value for name, value in settings.items()):
            raise SystemExit(f"{folder} is of another agent or retriever; remove it, or choose another --work")
        if retriever is not None:
            self.say(f"seed {self.seed}: asking {folder.name}")
            run_questions(run, speaker.agent, retriever, questions, speaker.limits, seed=self.seed)
        ended = {one.question.id: one for one in run.trajectories()}
        return [ended[question.id] for question in questions]


def _unheard(ended: int, total: int) -> None:
    """Progress of a run that nobody waits for."""
