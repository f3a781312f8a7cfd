"""Launch: plays episodes for verl's workers, writes the files of a stage's training in verl, and starts verl.

FOLDER/verl.yaml                    verl's configuration, over its own defaults
FOLDER/agent_loops.yaml             names our agent loop and its settings
FOLDER/episodes.yaml                what a worker needs to play and score episodes
FOLDER/train.parquet, dev.parquet   the questions
FOLDER/launch.sh                    starts verl, or resumes from its last checkpoint
FOLDER/checkpoints, metrics.*.jsonl written by verl
FOLDER/rollouts, faults.jsonl       stored episodes, and one line for each that failed
"""

import asyncio
import importlib.util
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.agents.drivers import AsyncDriver, Generate
from coseek.core.errors import DataError, RunError, SettingError
from coseek.core.files import JsonObject, atomic_path, atomic_write, json_line, write_yaml
from coseek.core.settings import Settings, dump_settings, load_settings
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import open_graders
from coseek.graders.scoring import TrajectoryScorer
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import LoopTask, rollout_record
from coseek.pipelines.verl.config import AGENT, LOOP, verl_config
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import schedule_of, tell_step
from coseek.rewards.reward import make_reward
from coseek.training.learner.data_order import derive_seed
from coseek.training.rl.backends.verl import verl_settings
from coseek.training.rl.rollout import TrajectoryBatch, add_overlong_penalty, score

# Episodes for verl's workers: played by the asynchronous driver, scored, and kept, in any number of processes.
#
# `EpisodeSettings` is the file that a worker opens; nothing here imports verl.

EPISODES = "episodes.yaml"
"""The file of `EpisodeSettings`."""
FAULTS = "faults.jsonl"
"""One line for each episode in which a part failed."""


class EpisodeSettings(Settings):
    """Everything that a worker needs to play and score the episodes of a stage."""

    recipe: AgentRecipe
    """The recipe of the stage."""
    folder: str
    """Where episodes are stored."""
    tokenizer: str
    """The model folder that the training starts from."""
    retriever: str
    """An index folder, a URL or a YAML file, for evaluation, and for training if the recipe names no other."""
    world: str | None = None
    """The laptop world whose oracle judges."""

    @property
    def training_retriever(self) -> str | JsonObject:
        """The retriever of training episodes."""
        data = self.recipe.data
        return data.training_over(self.retriever, str(self.world or data.folder)) or self.retriever


@dataclass(frozen=True, slots=True)
class Place:
    """The position of an episode in a training."""

    step: int
    """From 1."""
    row: int
    """Its question's row in the data file."""
    sample: int
    """Its number among the runs of the question."""
    training: bool = True
    """False in an evaluation."""

    def seed(self, question: Question, settings: EpisodeSettings) -> int:
        if not self.training:
            return derive_seed(settings.recipe.seed, "look", question.id)
        return derive_seed(settings.recipe.rl.seed, "rollout", self.step, self.row, self.sample)


class EpisodeHost:
    """Plays and scores episodes in one event loop. Opens its parts once."""

    def __init__(self, settings: EpisodeSettings) -> None:
        self.settings, recipe = settings, settings.recipe
        protocol, self.tokenizer = recipe.load_protocol(), HfTokenizer.load(Path(settings.tokenizer))
        default, source = open_retriever(settings.retriever), settings.training_retriever
        training = default if source == settings.retriever else open_retriever(source)
        self._schedule = schedule_of(training)
        self._drivers = {
            for_training: AsyncDriver(protocol, self.tokenizer, retriever, recipe.limits)
            for for_training, retriever in ((True, training), (False, default))
        }
        reward = make_reward(recipe.reward)
        world = None if settings.world is None else Path(settings.world)
        graders = open_graders(recipe.graders, Path(settings.folder), world) if reward.needs else None
        self._scoring = TrajectoryScorer(reward) if graders is None else graders.scoring(reward)
        self._writer = KeptEpisodes(settings)

    @classmethod
    async def open(cls, path: Path) -> "EpisodeHost":
        """The host of a settings file. Starts its threads, which end with the process."""
        host = cls(load_settings(EpisodeSettings, path))
        for driver in host._drivers.values():
            await driver.__aenter__()
        return host

    async def play(self, question: Question, position: Place, generate: Generate) -> TrajectoryBatch:
        """Play one episode and score it. Returns a batch of this episode; it has no reward if a part failed."""
        if self._schedule is not None and position.training:
            tell_step(self._schedule, position.step, self.settings.recipe.rl.steps)
        seed = position.seed(question, self.settings)
        trajectory = await self._drivers[position.training].run_episode(question, seed, generate)
        batch = await asyncio.to_thread(score, [0], [trajectory], self._scoring)  # graders are asked over the network
        if position.training:
            batch = add_overlong_penalty(batch, self.settings.recipe.rl.overlong)
            self._writer.keep(trajectory, position.step, [*batch.faults])
        return batch


class KeptEpisodes:
    """Stores the episodes of some steps as run folders, one for each process, and a line for each fault.

    FOLDER/rollouts/step-000010/HOST-PID/run.yaml, trajectories.jsonl
    """

    def __init__(self, settings: EpisodeSettings) -> None:
        rl = settings.recipe.rl
        keep, steps, workers = rl.keep_rollouts, rl.steps, verl_settings(rl).workers
        self._settings = settings
        self._folder = Path(settings.folder)
        due = [step for step in range(1, steps + 1) if step % keep.every == 0 or step == steps] if keep.every else []
        self._bytes_left = dict.fromkeys(due, keep.mb * 1e6 / max(1, len(due)) / workers)
        """Bytes that this process may still write of a step."""
        self._runs: dict[int, Run] = {}

    def keep(self, trajectory: Trajectory, step: int, faults: list[str]) -> None:
        """Write an episode if its step is due and there is room. Faults are always written."""
        key: JsonObject = {"step": step, "question": trajectory.question.id, "seed": trajectory.seed}
        for fault in faults:
            with (self._folder / FAULTS).open("a", encoding="utf-8") as file:  # one short write: lines stay whole
                file.write(json_line({**key, "part": fault, "detail": trajectory.stop_detail[:500]}))
        if step not in self._bytes_left:
            return
        line = json_line(trajectory.to_json())
        self._bytes_left[step] -= len(line.encode())
        if self._bytes_left[step] >= 0.0:
            with self._run(step).trajectories_path.open("a", encoding="utf-8") as file:
                file.write(line)

    def _run(self, step: int) -> Run:
        if step not in self._runs:
            described = rollout_record(self._settings.recipe, "verl", Path(self._settings.tokenizer), step)
            folder = self._folder / "rollouts" / f"step-{step:06d}" / f"{socket.gethostname()}-{os.getpid()}"
            self._runs[step] = Run.begin(folder, described, resume=True)
        return self._runs[step]


# Launch: verl's files, and its process.

CONFIG = "verl"
_FIND = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('verl', 'transfer_queue', 'coseek'))))"


@dataclass(frozen=True)
class VerlTraining(LoopTask):
    """A stage's training in verl."""

    def write(self) -> Path:
        """Write all files. Returns the script that starts verl. Writing again yields the same files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # verl drops an incomplete batch: one step at least must be full.
        times = -(-self.recipe.rl.questions_per_step // len(self.train))
        write_questions(self.folder / "train.parquet", [*self.train] * times, "train")
        write_questions(self.folder / "dev.parquet", self.dev, "dev")
        config = verl_config(self.recipe, self.folder, self.policy, len(self.train) * times)
        write_yaml(self.folder / f"{CONFIG}.yaml", config)
        episodes = EpisodeSettings(
            recipe=self.recipe, folder=str(self.folder), tokenizer=str(self.tokenizer), retriever=self.retriever,
            world=None if self.world is None else str(self.world),
        )  # fmt: skip
        write_yaml(self.folder / EPISODES, dump_settings(episodes))
        loop: JsonObject = {"name": AGENT, "_target_": LOOP, "settings": str(self.folder / EPISODES)}
        write_yaml(self.folder / "agent_loops.yaml", [loop])
        script = self.folder / "launch.sh"
        line = [self._python, "-m", "verl.trainer.main_ppo", f"--config-path={self.folder}", f"--config-name={CONFIG}"]
        with atomic_write(script) as file:
            file.write(
                "#!/bin/sh\n# Starts verl, or resumes from its last checkpoint. More overrides `a.b=c` may follow.\n"
                f"export VERL_FILE_LOGGER_PATH={shlex.quote(str(self.folder))}/metrics.$(date +%s).jsonl\n"
                f'exec {shlex.join([*line, *verl_settings(self.recipe.rl).overrides])} "$@"\n'
            )
        script.chmod(0o755)
        return script

    def start(self, script: Path) -> None:
        """Run verl to its end. Raises `SettingError` if it is not installed, and `RunError` if it fails."""
        python = self._python
        if shutil.which(python) is None or subprocess.run([python, "-c", _FIND], check=False).returncode:
            raise SettingError(
                f"{python} has no verl; start {script} where verl and coseek are installed and go on here with "
                "--resume, or name their Python with rl.backend_settings.python=…"
            )
        exit_code = subprocess.run([str(script)], check=False).returncode
        if exit_code:
            raise RunError(
                f"verl ended with {exit_code}; its last lines say why. {script} goes on from its last checkpoint"
            )

    def weights(self) -> Path | None:
        """The model folder of the last step; `None` before verl has written it."""
        folder = self.folder / "checkpoints" / f"global_step_{self.recipe.rl.steps}" / "actor" / "huggingface"
        marker = self.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
        is_done = marker.is_file() and marker.read_text().strip() == str(self.recipe.rl.steps)
        return folder if is_done else None

    @property
    def faults(self) -> int:
        """Episodes that are left out of losses and baselines because a part failed."""
        path = self.folder / FAULTS
        return sum(1 for _ in path.open("rb")) if path.exists() else 0

    @property
    def _python(self) -> str:
        return verl_settings(self.recipe.rl).python or sys.executable


def write_questions(path: Path, questions: Sequence[Question], split: str) -> None:
    """Write rows in verl's format, with an extra column for the question. Raises `DataError` without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path.name} is parquet, which pyarrow writes: pip install pyarrow")
    from pyarrow import Table  # type: ignore[import-untyped]
    from pyarrow.parquet import write_table  # type: ignore[import-untyped]

    rows = [
        {
            "data_source": question.dataset or "coseek",
            "prompt": [{"role": "user", "content": question.question}],
            "ability": "search",
            "reward_model": {"style": "rule", "ground_truth": {"target": [*question.answers]}},
            "extra_info": {"split": split, "index": index},
            "agent_name": AGENT,
            "question": json.dumps(question.to_json()),
        }
        for index, question in enumerate(questions)
    ]
    with atomic_path(path) as partial_path:
        write_table(Table.from_pylist(rows), partial_path)


def train_in_verl(task: LoopTask, say: Callable[[str], None]) -> Path:
    """Write the task's files, run verl unless it has finished, and return its last weights."""
    training = VerlTraining(**vars(task))
    script = training.write()
    say(f"verl: its configuration, data and {script.name} are in {training.folder}")
    if training.weights() is None:
        training.start(script)
    weights = training.weights()
    if weights is None:
        raise SettingError(
            f"verl ended before step {task.recipe.rl.steps}; start {script}, and go on here with --resume"
        )
    say(f"verl: {training.faults} episodes had a fault, and are in no loss and no baseline")
    return weights
