"""Launch: writes the files of a stage's training in verl, starts it, and takes over the weights that it ends with.

FOLDER/verl.yaml                    verl's configuration, over its own defaults
FOLDER/agent_loops.yaml             names our agent loop and its settings
FOLDER/episodes.yaml                what a worker needs to play and score episodes
FOLDER/train.parquet, dev.parquet   the questions
FOLDER/launch.sh                    starts verl, or goes on from its last checkpoint
FOLDER/checkpoints, metrics.*.jsonl verl's own
FOLDER/rollouts, faults.jsonl       episodes that are kept, and a line for each that failed
"""

import importlib.util
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coseek.core.connections import is_url
from coseek.core.errors import DataError, RunError, SettingError
from coseek.core.files import JsonObject, atomic_folder, atomic_path, atomic_write, write_yaml
from coseek.core.progress import Progress
from coseek.core.settings import dump_settings, make_settings
from coseek.data.question import Question
from coseek.graders.scoring import EpisodeScorer
from coseek.models.model_folder import model_path
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.stages import Stage
from coseek.pipelines.verl.config import AGENT, LOOP, verl_config
from coseek.pipelines.verl.episodes import EPISODES, FAULTS, EpisodeSettings
from coseek.training.rl.backends.verl import NAME, VerlSettings, verl_settings
from coseek.training.trainer.workers import Workers

CONFIG = "verl"
_FIND = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('verl', 'transfer_queue', 'coseek'))))"


@dataclass(frozen=True)
class VerlTraining:
    """A stage's training in verl."""

    recipe: AgentRecipe
    """The stage's, with the seed of its reinforcement learning."""
    folder: Path
    """Absolute, and seen under this name by every machine, as are the paths below."""
    policy: Path
    """The model folder that it starts from."""
    tokenizer: Path
    """The folder of its tokenizer."""
    retriever: str
    """An index folder, a URL or a YAML file."""
    world: Path | None = None
    """The laptop world whose oracle judges."""

    def write(self, train: Sequence[Question], dev: Sequence[Question]) -> Path:
        """Write all files; returns the script that starts verl. A second time the files are the same."""
        self.folder.mkdir(parents=True, exist_ok=True)
        # verl drops an incomplete batch: one step at least must be full.
        times = -(-self.recipe.rl.questions_per_step // len(train))
        write_questions(self.folder / "train.parquet", [*train] * times, "train")
        write_questions(self.folder / "dev.parquet", dev, "dev")
        config = verl_config(self.recipe, self.folder, self.policy, len(train) * times)
        write_yaml(self.folder / f"{CONFIG}.yaml", config)
        write_yaml(self.folder / EPISODES, dump_settings(self._episodes()))
        loop: JsonObject = {"name": AGENT, "_target_": LOOP, "settings": str(self.folder / EPISODES)}
        write_yaml(self.folder / "agent_loops.yaml", [loop])
        script = self.folder / "launch.sh"
        with atomic_write(script) as file:
            file.write(self._script())
        script.chmod(0o755)
        return script

    def start(self, script: Path) -> None:
        """Run verl to its end. Raises `SettingError` where it is not installed, and `RunError` if it fails."""
        python = self._python
        if shutil.which(python) is None or subprocess.run([python, "-c", _FIND], check=False).returncode:
            raise SettingError(
                f"{python} has no verl; start {script} where verl and coseek are installed and go on here with "
                "--resume, or name their Python with rl.backend_settings.python=…"
            )
        ended = subprocess.run([str(script)], check=False).returncode
        if ended:
            raise RunError(
                f"verl ended with {ended}; its last lines say why. {script} goes on from its last checkpoint"
            )

    def weights(self) -> Path | None:
        """The model folder of the last step; `None` before verl has written it."""
        folder = self.folder / "checkpoints" / f"global_step_{self.recipe.rl.steps}" / "actor" / "huggingface"
        marker = self.folder / "checkpoints" / "latest_checkpointed_iteration.txt"
        done = marker.is_file() and marker.read_text().strip() == str(self.recipe.rl.steps)
        return folder if done else None

    @property
    def faults(self) -> int:
        """Episodes that are in no loss and no baseline, because a part failed."""
        path = self.folder / FAULTS
        return sum(1 for _ in path.open("rb")) if path.exists() else 0

    @property
    def _settings(self) -> VerlSettings:
        return verl_settings(self.recipe.rl)

    @property
    def _python(self) -> str:
        return self._settings.python or sys.executable

    def _script(self) -> str:
        line = [self._python, "-m", "verl.trainer.main_ppo", f"--config-path={self.folder}", f"--config-name={CONFIG}"]
        return (
            "#!/bin/sh\n# Starts verl, or goes on from its last checkpoint. More lines `a.b=c` may follow.\n"
            f"export VERL_FILE_LOGGER_PATH={shlex.quote(str(self.folder))}/metrics.$(date +%s).jsonl\n"
            f'exec {shlex.join([*line, *self._settings.overrides])} "$@"\n'
        )

    def _episodes(self) -> EpisodeSettings:
        one = self.recipe
        tree = dump_settings(one)
        shared = ("protocol", "prompt_template", "chat_template", "limits", "reward", "graders", "rl", "seed")
        return make_settings(
            EpisodeSettings,
            {
                **{name: tree[name] for name in shared},
                "folder": str(self.folder),
                "tokenizer": str(self.tokenizer),
                "retriever": self.retriever,
                "training_retriever": one.data.training_over(self.retriever),
                "world": None if self.world is None else str(self.world),
                "workers": self._settings.workers,
            },
        )


def write_questions(path: Path, questions: Sequence[Question], split: str) -> None:
    """Write rows as verl reads them, with the question itself in a column of its own. Raises `DataError` without
    pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path.name} is parquet, which pyarrow writes: pip install pyarrow")
    from pyarrow import Table  # type: ignore[import-untyped]
    from pyarrow.parquet import write_table  # type: ignore[import-untyped]

    rows = [
        {
            "data_source": one.dataset or "coseek",
            "prompt": [{"role": "user", "content": one.question}],
            "ability": "search",
            "reward_model": {"style": "rule", "ground_truth": {"target": [*one.answers]}},
            "extra_info": {"split": split, "index": index},
            "agent_name": AGENT,
            "question": json.dumps(one.to_json()),
        }
        for index, one in enumerate(questions)
    ]
    with atomic_path(path) as part:
        write_table(Table.from_pylist(rows), part)


def take_weights(source: Path, target: Path, complete: Callable[[Path], None]) -> None:
    """Copy the weights that verl saved into a policy's folder, with its tokenizer and cards (`complete`)."""
    if not any(source.glob("*.safetensors")):
        raise DataError(f"{source} holds no weights; it must be of a training by rl.backend=verl")

    def fill(part: Path) -> None:
        for path in source.iterdir():
            if path.suffix in (".safetensors", ".json") and "token" not in path.name:
                shutil.copy2(path, part / path.name)
        complete(part)

    atomic_folder(target, fill)


class Training(Protocol):
    """What a stage asks of the training that it is part of."""

    recipe: AgentRecipe
    folder: Path
    workers: Workers
    progress: Progress

    @property
    def data_folder(self) -> Path: ...

    def policy_folder(self, name: str) -> Path: ...

    def scoring(self, recipe: AgentRecipe) -> EpisodeScorer: ...

    def training_questions(self, stage: Stage, scoring: EpisodeScorer) -> list[Question]: ...

    def dev_questions(self, recipe: AgentRecipe) -> list[Question]: ...


def reinforced_in_verl(training: Training, stage: Stage, complete: Callable[[Path, str], None]) -> bool:
    """Write the files of the stage, run verl, and keep its last weights; `complete` adds a policy's tokenizer and
    cards. A training that verl has ended is not started again. Returns False for a stage of another backend."""
    if stage.recipe.rl.backend != NAME:
        return False
    if training.workers.world > 1:
        raise SettingError("verl starts its own processes; start coseek without torchrun")
    recipe, data = stage.recipe, training.recipe.data
    settings = recipe.rl.model_copy(update={"seed": stage.seed(recipe.rl.seed, "rl")})
    index = training.folder / "data.index" if data.index is None else data.index
    local = not is_url(str(index))
    run = VerlTraining(
        recipe.model_copy(update={"rl": settings}),
        stage.folder.resolve(),
        model_path(str(training.policy_folder(stage.begins))).resolve(),
        training.policy_folder("start").resolve(),
        str(Path(index).resolve()) if local else str(index),
        training.data_folder.resolve() if data.world is not None else None,
    )
    script = run.write(training.training_questions(stage, training.scoring(recipe)), training.dev_questions(recipe))
    training.progress.say(f"verl: its configuration, data and {script.name} are in {run.folder}")
    if run.weights() is None:
        run.start(script)
    weights = run.weights()
    if weights is None:
        raise SettingError(f"verl ended before step {settings.steps}; start {script}, and go on here with --resume")
    training.progress.say(f"verl: {run.faults} episodes had a fault, and are in no loss and no baseline")
    take_weights(weights, training.policy_folder(stage.ends), lambda part: complete(part, stage.ends))
    return True
