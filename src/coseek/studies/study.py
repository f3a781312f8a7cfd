"""A study as a file: the claim of a paper, the arms that are compared, and what is expected of them.

The text of an arm is a coseek command, with names in braces: of other arms and of what `make` makes (their folder),
of `seed` and `out`, and of what the road says in `roads.yaml`. So one file is a study on a laptop (`laptop`), on real
questions with a small language model (`real`), and of the paper's size (`paper`).
"""

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from coseek.core.errors import DataError, RunError, SettingError, UnknownName, nearest
from coseek.core.files import make_folder, read_json_object, read_yaml, write_json
from coseek.core.fingerprint import digest_of
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
"""Folder of the studies of a paper → its title; the last are of no paper that defines coseek."""
Road: TypeAlias = Literal["laptop", "real", "paper", "smoke"]
ARM = "arm "
"""In front of an arm's name among those of commands."""
NEXT: dict[Road, Road] = {"smoke": "laptop", "real": "paper"}
"""Road → the one whose command it has where a file gives none for it: real models speak as the paper's do."""
NAME = re.compile(r"\{([^{}:,]+)\}")
"""A name in a command. Braces with a colon or a comma are YAML."""
_EXPECTED = re.compile(r"(?P<one>.+?) (?P<sign>[<>~]) (?P<other>.+?)(?: within (?P<margin>[\d.]+))?")


class Expectation(Settings):
    """What is expected of two arms: `A > B`, `A < B`, or `A ~ B within .03`; `searches: A < B` in another metric."""

    one: str
    """An arm."""
    sign: Literal["<", ">", "="]
    """Whether it is expected to lie below, above, or as near as `margin`."""
    other: str
    """The arm that it is compared with."""
    metric: str = ""
    """Of the study's first where empty."""
    margin: float = Field(default=0.02, gt=0)
    """The smallest difference that matters, in the metric's unit."""

    def __str__(self) -> str:
        metric = f"{self.metric}: " if self.metric else ""
        return f"{metric}{self.one} {self.sign.replace('=', '≈')} {self.other}"


def _expectation(value: object) -> object:
    metric, text = next(iter(value.items())) if isinstance(value, dict) and len(value) == 1 else ("", value)
    if not isinstance(text, str):
        return value
    match = _EXPECTED.fullmatch(text)
    if match is None:
        raise SettingError(f"{text!r} compares no two arms; write `A > B`, `A < B` or `A ~ B within .03`")
    fields = {name: value for name, value in match.groupdict().items() if value is not None}
    return {"metric": metric, **fields, "sign": fields["sign"].replace("~", "=")}  # in settings `~` is a home folder


class Arm(Settings):
    """One line of a study's table: a command, or another reading of what another arm made."""

    run: str | dict[Road, str] = ""
    """The command without `coseek`; one for each road where they differ."""
    of: str = ""
    """Another arm or a name of `make`, whose result is read in another way."""
    row: str = "after"
    """Of a trained agent's table: the row. Of scores of several runs: the run's name."""
    part: str = ""
    """A run folder inside the folder, such as a pair of a co-training."""
    curve: bool = False
    """The numbers of each training step (metrics.jsonl), in place of each question's."""
    only: Road | None = None
    """The one road that has it, such as `paper` for a larger model; `laptop` includes `smoke`."""

    @model_validator(mode="after")
    def _one_source(self) -> "Arm":
        if bool(self.run) == bool(self.of):
            raise SettingError("an arm is a command (run), or a reading of another arm (of); give one of them")
        return self


def _arm(value: object) -> object:
    return {"run": value} if isinstance(value, str) else value


ArmText: TypeAlias = Annotated[Arm, BeforeValidator(_arm)]
ExpectationText: TypeAlias = Annotated[Expectation, BeforeValidator(_expectation)]


class Study(Settings):
    """One table, figure or claim of a paper."""

    claim: str
    """What the paper says, in one sentence of ours."""
    place: str
    """Where: its table, figure or section."""
    at: dict[Road, float | None]
    """The roads that it has → about how many minutes a seed takes there on two cores; null where nobody has guessed."""
    seeds: int = Field(default=3, ge=1)
    """How many, from 0 on, where none are named. One where nothing is drawn."""
    metrics: tuple[str, ...] = ("em", "recall", "searches")
    """Columns of the table; the first is compared where an expectation names none."""
    printed: dict[str, float | str] = Field(default_factory=dict)
    """The paper's own numbers: arm → number; `metric`: what they are."""
    let: dict[str, str | dict[Road, str]] = Field(default_factory=dict)
    """Words of its own: name → words in its place."""
    make: dict[str, str | dict[Road, str]] = Field(default_factory=dict)
    """What arms need besides: name → command."""
    arms: dict[str, ArmText]
    """What is compared: name → command, or what else is read of another."""
    expect: tuple[ExpectationText, ...]
    """What the claim says of the arms; all of it must hold."""
    judged: bool = False
    """At paper size a judge says which answers are right, and `judge_acc` stands for `em`."""
    notes: str = ""
    """How it differs from the paper's, beyond the size."""

    @model_validator(mode="after")
    def _names(self) -> "Study":
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
        """The study with the arms, comparisons and metrics that it has on a road. Without a judge GenAcc is its first
        half, cover-EM."""
        here = {None, road, "laptop" if road == "smoke" else road}
        arms, make = {name: arm for name, arm in self.arms.items() if arm.only in here}, {**self.make}
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
    """What the common words of the studies mean on one road."""

    extends: str = ""
    """The road whose words and commands it has, too."""
    let: dict[str, str] = Field(default_factory=dict)
    """Name → words in its place."""
    make: dict[str, str] = Field(default_factory=dict)
    """Name → command."""
    append: dict[str, str] = Field(default_factory=dict)
    """Beginning of a command → words appended to it, which replace settings that it has already."""


@cache
def road_of(road: Road) -> RoadSettings:
    """A road, merged with the one that it extends."""
    tree = read_yaml(FOLDER / "roads.yaml", "file of roads")
    settings = RoadSettings.model_validate(tree[road])
    if not settings.extends:
        return settings
    below = RoadSettings.model_validate(tree[settings.extends])
    return settings.model_copy(
        update={name: {**getattr(below, name), **getattr(settings, name)} for name in ("let", "make", "append")}
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
        """Every name that may stand in braces."""
        return {*(name.removeprefix(ARM) for name in self._commands), *self._words, "seed", "out"}

    def made(self) -> list[str]:
        """The names of what `make` of study and road makes."""
        return [name for name in self._commands if not name.startswith(ARM)]

    def is_shared(self, name: str) -> bool:
        """Whether the command is the road's own, the same for all studies."""
        common, study = self.common, self.study
        return name in common.make and name not in study.make and not common.let.keys() & study.let.keys()

    def key(self, name: str) -> str:
        """The name in braces as `of` takes it: what is made for all, before an arm of the same name."""
        return name if name in self._commands else ARM + name

    def of(self, name: str) -> str:
        """The command of a name, with the road's words filled in and appended."""
        text = self._commands.get(name, "")
        if not text:
            at = "" if self.road == "smoke" else f" at {self.road} size"
            raise SettingError(
                f"the study has nothing named {name.removeprefix(ARM)!r}{at}{nearest(name, self.known())}"
            )
        words = self._fill_words(text)
        more = [added for start, added in self.common.append.items() if words.startswith(start)]
        return " ".join([words, *more])

    def _fill_words(self, text: str) -> str:
        """Put the words of road and study in place of their names, which may hold names again."""
        for _ in range(8):
            for name in NAME.findall(text):
                if name not in self.known():
                    raise SettingError(f"{{{name}}} in {text!r} names nothing{nearest(name, self.known())}")
            worded = NAME.sub(lambda match: self._words.get(match[1], match[0]), text)
            if worded == text:
                break
            text = worded
        return text

    def needed(self, command: str) -> Iterator[str]:
        """The names of a command that other commands make."""
        yield from (name for name in dict.fromkeys(NAME.findall(command)) if self.key(name) in self._commands)


def as_words(command: str) -> list[str]:
    """A command as its words. Raises `SettingError` for quotes that do not close."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise SettingError(f"{command!r} cannot be read as a command: {error}") from None


# Steps: the commands of studies. Each runs once for all studies that need the same, in a folder named after what it is.

RESUMED = ("train agent", "train retriever", "train together", "train generator", "run", "label")
"""Commands that take `--resume`."""
LINES = 12
"""Last lines of a failed command's log that its error shows."""
_SLUG = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class StudyStep:
    """One command of a study under one seed, with every name in it resolved."""

    name: str
    words: tuple[str, ...]
    folder: Path
    needs: tuple["StudyStep", ...]
    seed: int | None
    """Of its command, or of one that it needs; `None` where no seed counts."""

    @property
    def log(self) -> Path:
        return self.folder.with_name(self.folder.name + ".log")

    @property
    def record(self) -> Path:
        """Written once the command has ended well: `{"command", "seconds"}`."""
        return self.folder.with_name(self.folder.name + ".json")

    @property
    def seconds(self) -> float:
        """What its last attempt took."""
        return float(str(read_json_object(self.record)["seconds"])) if self.record.exists() else 0.0

    def line(self) -> str:
        """As it is typed."""
        return shlex.join(("coseek", *self.words))


@dataclass
class StudyPlan:
    """The steps of a study on its road, in folders below `root`."""

    commands: Commands
    root: Path
    shared: Path | None = None
    """For commands that are written down and not run, whose folders have the names of arms and not of content: where
    those lie that the road makes for all studies."""
    _steps: dict[tuple[str, int], StudyStep] = field(default_factory=dict, init=False)

    def step(self, name: str, seed: int, around: tuple[str, ...] = ()) -> StudyStep:
        """The step that makes `name`. Raises `SettingError` where commands need each other in a circle."""
        if name in around:
            raise SettingError(f"these need each other: {', '.join((*around, name))}")
        if (name, seed) not in self._steps:
            self._steps[name, seed] = self._make(name, seed, around)
        return self._steps[name, seed]

    def _make(self, name: str, seed: int, around: tuple[str, ...]) -> StudyStep:
        command = self.commands.of(name)
        if "{out}" not in command:
            command += " --out {out}"
        needs = {
            other: self.step(self.commands.key(other), seed, (*around, name)) for other in self.commands.needed(command)
        }
        folders = {other: shlex.quote(str(step.folder)) for other, step in needs.items()} | {"seed": str(seed)}
        resolved = NAME.sub(lambda match: folders.get(match[1], match[0]), command)
        needed_seeds = [step.seed for step in needs.values() if step.seed is not None]
        used_seed = seed if "{seed}" in command or needed_seeds else None
        if self.shared is None:
            folder = self.root / _content_name(command, resolved)
        else:
            root = self.shared if self.commands.is_shared(name) else self.root
            folder = root / self._readable_name(name, used_seed)
        words = as_words(resolved.replace("{out}", shlex.quote(str(folder))))
        return StudyStep(name.removeprefix(ARM), tuple(words), folder, tuple(needs.values()), used_seed)

    def _readable_name(self, name: str, seed: int | None) -> str:
        """The name as a path. That of an arm ends with `-arm` if `make` has the same name."""
        words = slug(name.removeprefix(ARM))
        if name.startswith(ARM) and words in map(slug, self.commands.made()):
            words += "-arm"
        return words if seed is None else f"{words}-{seed}"

    def steps(self, names: Sequence[str], seeds: Sequence[int]) -> list[StudyStep]:
        """All steps that make these names under these seeds, each behind what it needs, once for each folder."""
        ordered: dict[Path, StudyStep] = {}

        def add(step: StudyStep) -> None:
            for need in step.needs:
                add(need)
            ordered.setdefault(step.folder, step)

        for seed in seeds:
            for name in names:
                add(self.step(name, seed))
        return list(ordered.values())


def _content_name(command: str, resolved: str) -> str:
    """The same for equal commands over equal needs."""
    head = [word for word in as_words(command)[:3] if word.isprintable() and "{" not in word and "=" not in word]
    return f"{slug(' '.join(head))}-{digest_of(' '.join(as_words(resolved)))[:10]}"


def slug(text: str) -> str:
    """A name as a path of lower-case ASCII words."""
    plain = text.lower().replace("λ", "lambda-").replace("=", "-")
    return _SLUG.sub("-", plain).strip("-") or "arm"


def run_steps(steps: Sequence[StudyStep], say: Callable[[str], None], jobs: int = 1) -> None:
    """Run the commands that have not ended well before, `jobs` at once, each behind what it needs. Raises `RunError`
    for one that fails, when those that have begun have ended."""
    waiting = {step.folder: step for step in steps if not step.record.exists()}
    order = TopologicalSorter(
        {folder: [need.folder for need in step.needs if need.folder in waiting] for folder, step in waiting.items()}
    )
    order.prepare()
    numbers = itertools.count(1)

    def run(step: StudyStep) -> None:
        say(f"{next(numbers)}/{len(waiting)} {step.name}: {step.line()}")
        make_folder(step.folder.parent)
        with lock_beside(step.record):  # the command locks its folder itself
            run_step(step, jobs)

    with ThreadPoolExecutor(jobs) as pool:
        running: dict[Future[None], Path] = {}
        try:
            while order.is_active():
                running |= {pool.submit(run, waiting[folder]): folder for folder in order.get_ready()}
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    ended.result()
                    order.done(running.pop(ended))
        finally:  # after a failure or Ctrl-C, which the running commands get, too, no other begins
            pool.shutdown(cancel_futures=True)


def run_step(step: StudyStep, jobs: int = 1) -> None:
    """Run one command to its end; its output goes to its log. It has its share of the cores beside other `jobs`."""
    words = [*step.words]
    if step.folder.exists() and any(step.line().startswith(f"coseek {head} ") for head in RESUMED):
        words.append("--resume")
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    before = time.monotonic()
    with step.log.open("a", encoding="utf-8") as log:
        command = [sys.executable, "-m", "coseek", *words]
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=threads | os.environ, check=False)
    if code := ended.returncode:
        lines = step.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LINES:]
        raise RunError(f"`{step.line()}` ended with {code}; its log is {step.log}:\n" + "\n".join(lines))
    write_json(step.record, {"command": step.line(), "seconds": round(time.monotonic() - before, 1)})
