"""Tune a language model to play a search engine, useful or noisy at will (ZeroSearch).

It learns from stored runs with a real engine: documents of right trajectories are examples of a useful engine, those of
wrong ones of a noisy engine. The prompts are those of the retriever `simulated`, token for token.

    OUT/recipe.yaml      the recipe, versions and commit
    OUT/training         metrics and checkpoints
    OUT/simulator        the tuned model folder
"""

import random
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.fingerprint import file_digest, fingerprint
from coseek.core.prompt_file import load_prompt, one_line
from coseek.data.digests import Identities, digest
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Search, Trajectory
from coseek.graders.scoring import TrajectoryScorer
from coseek.hardware.placement import Placement
from coseek.lab.pipelines.recipes import SimulatorRecipe, check_simulator
from coseek.models.model_folder import model_path
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.demonstrations import reply_to
from coseek.pipelines.run_record import TrainingRun
from coseek.pipelines.stages import scored_trajectories
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.retrievers.simulated import SIMULATED_FIELDS, SimulatedPrompt, simulation_prompt
from coseek.rewards.reward import make_reward
from coseek.training.learner.data_order import derive_seed
from coseek.training.learner.policy import Policy, load_learner
from coseek.training.learner.workers import ALONE
from coseek.training.sft.loop import train_sft

ABOUT = "A language model that plays a search engine, useful or noisy, for training search agents."
LIMITS = (
    "Its documents are invented; none of them exists. Whether they resemble a search engine's results was not measured."
)


class SimulatorTraining(TrainingRun[SimulatorRecipe]):
    """The tuning of one simulator."""

    @property
    def simulator_folder(self) -> Path:
        return self.folder / "simulator"

    def check(self) -> None:
        check_simulator(self.recipe)

    def identities(self) -> Identities:
        run_digests = {f"runs {name}": file_digest(Path(name) / "trajectories.jsonl") for name in self.recipe.runs}
        prompt = _prompt_of(self.recipe).model_dump_json(exclude={"about"})
        return {"model": fingerprint(model_path(self.recipe.model)), "prompt": digest(prompt), **run_digests}

    def train(self) -> None:
        """Tune the model and save it; a no-op if it is saved already."""
        if self.simulator_folder.exists():
            return
        start = model_path(self.recipe.model)
        tokenizer = HfTokenizer.load(start)
        useful_examples, noisy_examples = examples(self.recipe, tokenizer)
        self.progress.say(f"{len(useful_examples)} useful and {len(noisy_examples)} noisy searches to learn from")
        learner = self.recipe.sft.learner
        placement = Placement(device=self.recipe.device, attention=self.recipe.attention, precision=learner.precision)
        policy = Policy(load_learner(start, placement, learner, ALONE), learner, 0)
        seed = derive_seed(self.recipe.seed, self.recipe.sft.seed, "sft")

        def draw(done: float, rng: random.Random) -> Trajectory:
            return rng.choice(useful_examples if rng.random() < 0.5 else noisy_examples)

        sft = self.recipe.sft.model_copy(update={"seed": seed})
        train_sft(policy, draw, sft, self.folder / "training", resume=True, progress=self.progress)
        card = self.model_card("simulator", "simulator", "simulator", ABOUT, LIMITS, self.recipe.model)

        def extra(folder: Path) -> None:
            tokenizer.save(folder)
            card.write(folder)

        policy.save(self.simulator_folder, extra)


def _prompt_of(recipe: SimulatorRecipe) -> SimulatedPrompt:
    return load_prompt(SimulatedPrompt, recipe.prompt, Path(), SIMULATED_FIELDS, PROMPTS)


def examples(recipe: SimulatorRecipe, tokenizer: HfTokenizer) -> tuple[list[Trajectory], list[Trajectory]]:
    """Searches of right trajectories and of wrong ones, each as a prompt followed by the documents. Raises `DataError`
    if either list is empty."""
    prompt = _prompt_of(recipe)

    def example(question: Question, search: Search, noisy: bool) -> Trajectory:
        answers = question.answers if recipe.hint else ()
        hint = (one_line(question.question), one_line(answers[0])) if answers else ()
        message = simulation_prompt(prompt, search.query, len(search.hits), noisy, hint)
        documents = "\n".join(
            f"Document {number}: {one_line(hit.passage.title)}\n{one_line(hit.passage.text, recipe.document_words)}"
            for number, hit in enumerate(search.hits, start=1)
        )
        return reply_to(question, "simulator", message, documents, tokenizer)

    scoring = TrajectoryScorer(make_reward(recipe.useful))
    kinds: tuple[list[Trajectory], list[Trajectory]] = ([], [])
    for folder in recipe.runs:
        for trajectory, reward in scored_trajectories(Run(Path(folder)).trajectories(), scoring):
            wrong = reward < recipe.at_least
            searches = (search for search in trajectory.searches if search.hits)
            kinds[wrong].extend(example(trajectory.question, search, wrong) for search in searches)
    for kind, learnt in zip(("right", "wrong"), kinds, strict=True):
        if not learnt:
            runs = ", ".join(recipe.runs)
            raise DataError(
                f"no {kind} trajectory of {runs} has hits; name runs with right and with wrong trajectories"
            )
    return kinds
