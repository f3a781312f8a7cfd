"""A study as a file: the claim of a paper, the arms that are compared, and the expected outcome.

An arm is a coseek command with names in braces, which are replaced: other arms and entries of `make` by their folders,
`seed` and `out`, and the words that `roads.yaml` defines for a road. So one file is a study on a laptop (`laptop`), on
real questions with a small language model (`real`), and at the paper's size (`paper`).
"""

import itertools
import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import BeforeValidator, Field, model_validator

from coseek.core.errors import DataError, RunError, SettingError, UnknownName, nearest
from coseek.core.files import make_folder, read_json_object, read_yaml, write_json
from coseek.core.fingerprint import digest_of, file_digest
from coseek.core.lock import lock_beside
from coseek.core.settings import Settings, load_settings
from coseek.measure import credit, reasoning
from coseek.measure.rankings import FAMILIES
from coseek.measure.score import METRICS

FOLDER = Path(__file__).parent
PAPERS = {
    "search-r1": "An Empirical Study on Reinforcement Learning for Reasoning-Search Interleaved LLM Agents (Search-R1)",
    "qagent": "QAgent: A modular Search Agent with Interactive Query Understanding",
    "s3": "s3: You Don't Need That Much Data to Train a Search Agent via RL",
    "agentic-r": "Agentic-R: Learning to Retrieve for Agentic Search",
    "agentir": "AgentIR: Reasoning-Aware Retrieval for Deep Research Agents",
    "beyond": "Beyond the papers",
}
"""Folder of the studies of a paper → its title. The last folder has studies beyond these papers."""
Road: TypeAlias = Literal["laptop", "real", "paper", "smoke"]
ARM = "arm "
"""Prefix of an arm's name among the names of commands."""
NEXT: dict[Road, Road] = {"smoke": "laptop", "real": "paper"}
"""Road → the road whose commands it takes by default: real models use the paper's protocols."""
NAME = re.compile(r"\{([^{}:,]+)\}")
"""A name in a command. Braces with a colon or a comma are YAML."""
_EXPECTED = re.compile(r"(?P<one>.+?) (?P<sign>[<>~]) (?P<other>.+?)(?: within (?P<margin>[\d.]+))?")


class Expectation(Settings):
    """The expected outcome of two arms: `A > B`, `A < B`, `A ~ B within .03`; `searches: A < B` names a metric."""

    one: str
    """An arm."""
    sign: Literal["<", ">", "="]
    """Whether it should be lower, higher, or equal within `margin`."""
    other: str
    """The arm to compare it with."""
    metric: str = ""
    """The metric; empty: the study's first."""
    margin: float = Field(default=0.02, gt=0)
    """The smallest difference that matters, in the metric's unit."""

    def __str__(self) -> str:
        metric = f"{self.metric}: " if self.metric else ""
        return f"{metric}{self.one} {self.sign.replace('=', '≈')} {self.other}"


def _parse_expectation(value: object) -> object:
    metric, text = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", value)
    if not isinstance(text, str):
        return value
    match = _EXPECTED.fullmatch(text)
    if match is None:
        raise SettingError(f"{text!r} compares no two arms; write `A > B`, `A < B` or `A ~ B within .03`")
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    return {"metric": metric, **fields, "sign": fields["sign"].replace("~", "=")}  # in settings `~` is a home folder


class Arm(Settings):
    """One row of a study's table: a command, or another reading of another arm's result."""

    run: str | dict[Road, str] = ""
    """The command without `coseek`, or one for each road."""
    of: str = ""
    """Another arm or a name of `make`, whose result is read."""
    row: str = "after"
    """The row of a trained agent's table; for scores of several runs, the run's name."""
    part: str = ""
    """A run folder inside the folder, such as a pair of a co-training."""
    curve: bool = False
    """Read the numbers of each training step (metrics.jsonl) instead of each question's."""
    only: Road | None = None
    """The only road with this arm, such as `paper` for a larger model; `laptop` includes `smoke`."""

    @model_validator(mode="after")
    def _one_source(self) -> "Arm":
        if bool(self.run) == bool(self.of):
            raise SettingError("an arm is a command (run), or a reading of another arm (of); give one of them")
        return self


def _parse_arm(value: object) -> object:
    return {"run": value} if isinstance(value, str) else value


ArmText: TypeAlias = Annotated[Arm, BeforeValidator(_parse_arm)]
ExpectationText: TypeAlias = Annotated[Expectation, BeforeValidator(_parse_expectation)]


class Study(Settings):
    """One table, figure or claim of a paper."""

    claim: str
    """The paper's claim in one sentence."""
    place: str
    """Its table, figure or section in the paper."""
    at: dict[Road, float | None]
    """Road → estimated minutes for one seed on two cores; null: unknown."""
    seeds: int = Field(default=3, ge=1)
    """Default number of seeds, from 0; 1 if nothing is random."""
    metrics: tuple[str, ...] = ("em", "recall", "searches")
    """Columns of the table; the first is the default metric of expectations."""
    printed: dict[str, float | str] = Field(default_factory=dict)
    """The paper's numbers: arm → number, and `metric` → their metric."""
    let: dict[str, str | dict[Road, str]] = Field(default_factory=dict)
    """Words of this study: name → replacement."""
    make: dict[str, str | dict[Road, str]] = Field(default_factory=dict)
    """Other inputs of arms: name → command."""
    arms: dict[str, ArmText]
    """The compared arms: name → command, or a reading of another arm."""
    expect: tuple[ExpectationText, ...]
    """The claim about the arms; all expectations must hold."""
    judged: bool = False
    """At paper size a judge decides which answers are right, and `judge_acc` replaces `em`."""
    notes: str = ""
    """Differences from the paper's experiment, beyond size."""

    @model_validator(mode="after")
    def _check_names(self) -> "Study":
        for expectation in self.expect:
            for arm in (expectation.one, expectation.other):
                if arm not in self.arms:
                    raise SettingError(f"expect names no arm {arm!r}{nearest(arm, self.arms)}")
        known_metrics = {**METRICS, **reasoning.METRICS, **credit.METRICS}
        curves = any(arm.curve for arm in self.arms.values())
        for metric in (*self.metrics, *(expectation.metric for expectation in self.expect if expectation.metric)):
            if metric not in known_metrics and metric.partition("@")[0] not in FAMILIES and not curves:
                raise SettingError(f"{metric!r} is no metric{nearest(metric, known_metrics)}")
        return self

    def on(self, road: Road) -> "Study":
        """The study with its arms, comparisons and metrics on a road. Without a judge, GenAcc becomes cover-EM."""
        roads = {None, road, "laptop" if road == "smoke" else road}
        arms, make = {name: arm for name, arm in self.arms.items() if arm.only in roads}, {**self.make}
        other_metrics = {} if road_of(road).let.get("judge") else {"gen_acc": "cover_em"}
        if self.judged and road == "paper":
            other_metrics["em"] = "judge_acc"
            metrics = ",".join(other_metrics.get(metric, metric) for metric in self.metrics)
            for name, arm in arms.items():
                if arm.of:
                    continue
                answers = "run of " + name.replace(",", "")
                make[answers] = arm.run
                arms[name] = Arm(run=f"score {{{answers}}} {{judged}} --metrics {metrics}")

        def metric_here(metric: str) -> str:
            return other_metrics.get(metric, metric)

        expect = tuple(
            expectation.model_copy(update={"metric": metric_here(expectation.metric)})
            for expectation in self.expect
            if {expectation.one, expectation.other} <= arms.keys()
        )
        metrics_here = tuple(dict.fromkeys(map(metric_here, self.metrics)))
        return self.model_copy(update={"arms": arms, "make": make, "expect": expect, "metrics": metrics_here})


def study_names() -> list[str]:
    """`PAPER/NAME` of every study that comes with coseek."""
    return [f"{paper}/{path.stem}" for paper in PAPERS for path in sorted((FOLDER / paper).glob("*.yaml"))]


def load_study(name: str) -> Study:
    """A study by name or path. Raises `UnknownName`, `DataError` or `SettingError`."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise DataError(f"there is no study file {name}; check the path")
        return load_settings(Study, Path(name))
    if name not in study_names():
        raise UnknownName("study", name, study_names())
    return load_settings(Study, FOLDER / f"{name}.yaml")


class RoadSettings(Settings):
    """The common words and commands of the studies on one road."""

    extends: str = ""
    """The road whose words and commands it inherits."""
    let: dict[str, str] = Field(default_factory=dict)
    """Name → replacement."""
    make: dict[str, str] = Field(default_factory=dict)
    """Name → command."""
    append: dict[str, str] = Field(default_factory=dict)
    """Beginning of a command → words appended to it; they override its settings."""


@cache
def road_of(road: Road) -> RoadSettings:
    """A road, merged with the one that it extends."""
    tree = read_yaml(FOLDER / "roads.yaml", "file of roads")
    settings = RoadSettings.model_validate(tree[road])
    if not settings.extends:
        return settings
    base = RoadSettings.model_validate(tree[settings.extends])
    return settings.model_copy(
        update={name: {**getattr(base, name), **getattr(settings, name)} for name in ("let", "make", "append")}
    )


class Commands:
    """The commands of a study on one road, each with its names still in braces."""

    def __init__(self, study: Study, road: Road) -> None:
        self.study, self.road, self.common = study, road, road_of(road)
        makes: Mapping[str, str | dict[Road, str]] = {**self.common.make, **study.make}
        arms = {ARM + name: arm.run for name, arm in study.arms.items() if arm.run}
        self._commands = {name: self._on_road(text) for name, text in {**makes, **arms}.items()}
        self._words = {**self.common.let, **{name: self._on_road(text) for name, text in study.let.items()}}

    def _on_road(self, text: str | dict[Road, str]) -> str:
        if isinstance(text, str):
            return text
        return text.get(self.road) or text.get(NEXT.get(self.road, self.road)) or ""

    def known(self) -> set[str]:
        """Every name that braces may hold."""
        return {*(name.removeprefix(ARM) for name in self._commands), *self._words, "seed", "out"}

    def made(self) -> list[str]:
        """The names in `make` of study and road."""
        return [name for name in self._commands if not name.startswith(ARM)]

    def is_shared(self, name: str) -> bool:
        """Whether the command is the road's, the same for all studies."""
        common, study = self.common, self.study
        return name in common.make and name not in study.make and not common.let.keys() & study.let.keys()

    def key(self, name: str) -> str:
        """A name in braces as an argument of `of`. An entry of `make` takes precedence over an arm of the same name."""
        return name if name in self._commands else ARM + name

    def of(self, name: str) -> str:
        """The command of a name, with the words of study and road filled in and appended."""
        if not (text := self._commands.get(name, "")):
            size_note = "" if self.road == "smoke" else f" at {self.road} size"
            raise SettingError(
                f"the study has nothing named {name.removeprefix(ARM)!r}{size_note}{nearest(name, self.known())}"
            )
        for _ in range(8):  # words may contain names
            if unknown_name := next((word for word in NAME.findall(text) if word not in self.known()), ""):
                raise SettingError(f"{{{unknown_name}}} in {text!r} names nothing{nearest(unknown_name, self.known())}")
            text = NAME.sub(lambda match: self._words.get(match[1], match[0]), text)
        appended = [words for start, words in self.common.append.items() if text.startswith(start)]
        return " ".join([text, *appended])

    def needed(self, command: str) -> Iterator[str]:
        """The names in a command that other commands make."""
        yield from (name for name in dict.fromkeys(NAME.findall(command)) if self.key(name) in self._commands)


def as_words(command: str) -> list[str]:
    """A command as its words. Raises `SettingError` for quotes that do not close."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise SettingError(f"{command!r} cannot be read as a command: {error}") from None


# Steps: the commands of studies. Equal commands of several studies run once, in a folder named by a digest.

RESUMED = ("train agent", "train retriever", "train together", "train generator", "run", "label")
"""Commands that take `--resume`."""
LINES = 12
"""Last lines of a failed command's log in the error."""
_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class StudyStep:
    """One command of a study under one seed, with all names resolved."""

    name: str
    words: tuple[str, ...]
    folder: Path
    needs: tuple["StudyStep", ...]
    seed: int | None
    """The seed of its command or of a command that it needs; `None` if neither has one."""

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def record(self) -> Path:
        """Written when the command has ended: `{"command", "seconds", "succeeded", "inputs"}`."""
        return self.folder.with_name(self.folder.name + ".json")

    @property
    def seconds(self) -> float:
        """Duration of all its attempts."""
        return float(str(read_json_object(self.record)["seconds"])) if self.record.exists() else 0.0

    @property
    def succeeded(self) -> bool:
        return self.record.exists() and bool(read_json_object(self.record).get("succeeded", True))

    def inputs(self) -> dict[str, str]:
        """Files and folders of the user that the command names → digest of their contents."""
        values = (word.rpartition("=")[2] for word in self.words)
        paths = (Path(value) for value in values if os.path.exists(value))  # false also for a text too long for a path
        return {str(path): _content_of(path) for path in paths if self.folder.parent not in path.parents}

    def check_inputs(self) -> None:
        """Raise `DataError` if an input has changed since the command succeeded."""
        known = cast(dict[str, str], read_json_object(self.record).get("inputs", {}))
        if changed := [path for path, content in self.inputs().items() if known.get(path, content) != content]:
            raise DataError(f"{changed[0]} has changed since `{self.line()}` ran; choose another folder with --out")

    def line(self) -> str:
        """The command line."""
        return shlex.join(("coseek", *self.words))


@cache
def _content_of(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return digest_of(*(f"{file.relative_to(path)} {file_digest(file)}" for file in files if file.is_file()))


@dataclass
class StudyPlan:
    """The steps of a study on its road, in folders below `root`."""

    commands: Commands
    root: Path
    shared: Path | None = None
    """Only for commands that are printed and not run, whose folders have readable names: the folder of commands that
    the road makes for all studies."""
    _steps: dict[tuple[str, int], StudyStep] = field(default_factory=dict, init=False)

    def step(self, name: str, seed: int, around: tuple[str, ...] = ()) -> StudyStep:
        """The step that makes `name`. Raises `SettingError` for circular needs."""
        if name in around:
            raise SettingError(f"these need each other: {', '.join((*around, name))}")
        if (name, seed) not in self._steps:
            self._steps[name, seed] = self._make(name, seed, around)
        return self._steps[name, seed]

    def _make(self, name: str, seed: int, enclosing: tuple[str, ...]) -> StudyStep:
        command = self.commands.of(name)
        if "{out}" not in command:
            command += " --out {out}"
        needs = {
            need: self.step(self.commands.key(need), seed, (*enclosing, name)) for need in self.commands.needed(command)
        }
        folders = {need: shlex.quote(str(step.folder)) for need, step in needs.items()} | {"seed": str(seed)}
        resolved_command = NAME.sub(lambda match: folders.get(match[1], match[0]), command)
        needed_seeds = [step.seed for step in needs.values() if step.seed is not None]
        used_seed = seed if "{seed}" in command or needed_seeds else None
        if self.shared is None:
            folder = self.root / _content_name(command, resolved_command)
        else:
            root = self.shared if self.commands.is_shared(name) else self.root
            folder = root / self._readable_name(name, used_seed)
        words = as_words(resolved_command.replace("{out}", shlex.quote(str(folder))))
        return StudyStep(name.removeprefix(ARM), tuple(words), folder, tuple(needs.values()), used_seed)

    def _readable_name(self, name: str, seed: int | None) -> str:
        """The name as a path. An arm's ends with `-arm` if `make` has the same name."""
        words = slug(name.removeprefix(ARM))
        if name.startswith(ARM) and words in map(slug, self.commands.made()):
            words += "-arm"
        return words if seed is None else f"{words}-{seed}"

    def steps(self, names: Sequence[str], seeds: Sequence[int]) -> list[StudyStep]:
        """All steps for these names and seeds, each after its needs, once for each folder."""
        ordered: dict[Path, StudyStep] = {}

        def add(step: StudyStep) -> None:
            for need in step.needs:
                add(need)
            ordered.setdefault(step.folder, step)

        for seed in seeds:
            for name in names:
                add(self.step(name, seed))
        return list(ordered.values())


def _content_name(command: str, resolved_command: str) -> str:
    """A folder name: equal for equal commands with equal needs."""
    first_words = [word for word in as_words(command)[:3] if word.isprintable() and "{" not in word and "=" not in word]
    return f"{slug(' '.join(first_words))}-{digest_of(' '.join(as_words(resolved_command)))[:10]}"


def slug(text: str) -> str:
    """A name as a path of lower-case ASCII words."""
    plain = text.lower().replace("λ", "lambda-").replace("=", "-")
    return _SLUG.sub("-", plain).strip("-") or "arm"


def run_steps(steps: Sequence[StudyStep], say: Callable[[str], None], jobs: int = 1, forked: bool = False) -> None:
    """Run the commands that have not succeeded yet, `jobs` at once on their share of the cores, each after its needs.
    `forked`: as forks of a process that has torch loaded, which is faster for short commands. After a failure, wait for
    the running commands and raise `RunError`; at a stop, stop them, too. Raises `DataError` if an input of a command
    that succeeded has changed since."""
    for step in steps:
        if step.succeeded:
            step.check_inputs()
    pending = {step.folder: step for step in steps if not step.succeeded}
    order = TopologicalSorter(
        {folder: [need.folder for need in step.needs if need.folder in pending] for folder, step in pending.items()}
    )
    order.prepare()
    numbers = itertools.count(1)
    processes: list[subprocess.Popen[bytes]] = []
    if jobs > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))

    def run(step: StudyStep) -> None:
        say(f"{next(numbers)}/{len(pending)} {step.name}: {step.line()}")
        make_folder(step.folder.parent)
        with lock_beside(step.record):  # the command locks its folder itself
            run_step(step, None if forked else processes)

    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[None], Path] = {}
        try:
            while order.is_active():
                running |= {pool.submit(run, pending[folder]): folder for folder in order.get_ready()}
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    future.result()
                    order.done(running.pop(future))
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # Ctrl-C reaches them by itself, and a second stop cuts them short
                for process in processes:
                    process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def run_step(step: StudyStep, processes: list[subprocess.Popen[bytes]] | None) -> None:
    """Run one command, with its output in its log. Its process is added to `processes`; without them it is a fork."""
    words = [*step.words]
    if step.folder.exists() and any(step.line().startswith(f"coseek {prefix} ") for prefix in RESUMED):
        words.append("--resume")
    inputs, started_s = step.inputs(), time.monotonic()
    if processes is None:
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(PRELOADED)
        with ProcessPoolExecutor(1, mp_context=forks) as fork:
            code = fork.submit(_command_in_fork, words, step.log).result()
    else:
        with step.log.open("ab") as log:
            process = subprocess.Popen([sys.executable, "-m", "coseek", *words], stdout=log, stderr=subprocess.STDOUT)
        processes.append(process)
        code = process.wait()
    seconds = round(step.seconds + time.monotonic() - started_s, 1)
    write_json(step.record, {"command": step.line(), "seconds": seconds, "succeeded": code == 0, "inputs": {**inputs}})
    if code:
        lines = step.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
        raise RunError(f"`{step.line()}` ended with {code}; its log is {step.log}:\n" + "\n".join(lines))


PRELOADED = ["coseek.pipelines.agent", "coseek.pipelines.encoder", "sentence_transformers", "matplotlib.pyplot"]
"""Modules that forked commands find loaded."""


def _command_in_fork(words: Sequence[str], log: Path) -> int:
    """Run `coseek WORDS…` in this process, with its output in the log. Returns the exit code."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    sys.argv = ["coseek", *words]
    try:
        runpy.run_module("coseek", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001 (a bug's traceback belongs in the log)
        traceback.print_exc()
    return 1
