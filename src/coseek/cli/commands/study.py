"""Run the papers' experiments: each a file of commands whose results are compared with what the paper says."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, cast, get_args

from typer import Argument, Option

from coseek.cli.options import whole_numbers
from coseek.cli.terminal import AsJson, new_app, note, output, print_json, show, tell
from coseek.core.errors import DataError, RunError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.measure.report import table_json
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.together_recipe import load_together_recipe
from coseek.studies.page import StudyPage, StudyResult, listed, title_of
from coseek.studies.study import ARM, Commands, Road, Study, StudyPlan, StudyStep, load_study, run_steps, study_names
from coseek.studies.verdict import Values

GROUP = "Results"
app = new_app()
EVERY = "all"
LIST = "list"
NAME_WIDTH = 36


@app.command(epilog="Example: `coseek study search-r1/format-weight --seeds 0,1,2`")
def study(
    names: Annotated[list[str], Argument(metavar="NAME", help="`list`, `all` (cheapest first), names, or YAML files.")],
    at: Annotated[
        str,
        Option(
            help="laptop, real (SmolLM2 on real questions), or paper (checks and prints commands; reads their results)."
        ),
    ] = "laptop",
    seeds: Annotated[str, Option(help="Comma-separated. [default: as many as each study wants, from 0]")] = "",
    smoke: Annotated[bool, Option(help="Run every command in a tiny world, only to test it.")] = False,
    jobs: Annotated[int, Option(min=1, help="Number of commands to run at once; they share the cores.")] = 1,
    budget: Annotated[str, Option(help="Skip studies that would take longer, such as 8h or 90m in all.")] = "",
    out: Annotated[Path, Option(help="Folder of the results.")] = Path("runs/studies"),
    as_json: AsJson = False,
) -> None:
    """Run the papers' tables, figures and claims, and report which hold here.

    A command that several studies need is run once. The same line resumes what was stopped.
    """
    if at not in get_args(Road):
        raise SettingError(f"--at {at!r} is no size; choose laptop, real or paper")
    road = cast(Road, "smoke" if smoke else at)
    if names == [LIST]:
        table = listed(out)
        lines = (
            f"{name:<{NAME_WIDTH}}{verdicts}\n    {claim} ({place}; {sizes})"
            for name, place, claim, sizes, verdicts in table.rows
        )
        output(as_json, table_json(table)["rows"], lines)
        return
    chosen = {name: load_study(name).on(road) for name in (study_names() if names == [EVERY] else names)}
    numbers = whole_numbers("--seeds", seeds, 0, "0,1,2") if seeds else []
    minutes = minutes_of(budget)
    pages = launch(chosen, numbers) if road == "paper" else results(chosen, road, numbers, minutes, out, jobs)
    stored: list[Json] = []
    for page in pages:
        path = page.write(out)
        stored.append(page.result.model_dump(mode="json"))
        if not as_json:
            show([page.means(), page.comparisons()])
            tell("\n".join([*page.lines(), f"Page: {path}"]).replace("**", ""))
    if as_json:
        print_json(stored)


def results(
    chosen: dict[str, Study], road: Road, seeds: Sequence[int], budget: float | None, out: Path, jobs: int = 1
) -> Iterator[StudyPage]:
    """Run the studies that have this road, cheapest first, and skip those beyond the budget. If one of several fails,
    continue, and raise `RunError` at the end."""
    failed: list[str] = []
    for name, study in sorted(chosen.items(), key=lambda item: cost(item[1], road)):
        if not has_size(name, study, road, len(chosen) == 1):
            continue
        used_seeds = seeds or range(1 if road == "smoke" else study.seeds)
        minutes = cost(study, road) * len(used_seeds)
        if budget is not None:
            if minutes > budget:
                note(f"{name} is left: {minutes:.0f} minutes, {budget:.0f} are left")
                continue
            budget -= minutes
        try:
            result = run_study(name, study, road, list(used_seeds), out, jobs)
        except (RunError, DataError) as error:
            if len(chosen) == 1:
                raise
            note(f"{name}: {error}")
            failed.append(name)
            continue
        if result is not None:
            yield result
    if failed:
        raise RunError("these did not go through: " + ", ".join(failed))


def has_size(name: str, study: Study, road: Road, alone: bool) -> bool:
    """Whether a study has this size. Raises `SettingError` if it has not and is the only chosen study."""
    size = "laptop" if road == "smoke" else road
    if alone and size not in study.at:
        raise SettingError(f"{name} has no size {size!r}; it has {', '.join(study.at)}")
    return size in study.at


def cost(study: Study, road: Road) -> float:
    """Minutes per seed; an hour if unknown."""
    return study.at.get("laptop" if road == "smoke" else road) or 60.0


def run_study(name: str, study: Study, road: Road, seeds: Sequence[int], out: Path, jobs: int) -> StudyPage | None:
    """Run a study's commands and compare their results. In a tiny world, only check that they can be read."""
    plan = StudyPlan(Commands(study, road), out / ("smoke" if road == "smoke" else "arms"))
    steps = plan.steps(list(dict.fromkeys(sources_of(study, plan.commands).values())), seeds)
    run_steps(steps, lambda line: note(f"{title_of(name)} {line}"), jobs, forked=road == "smoke")
    if road == "smoke":
        read_values(study, seeds, plan)
        note(f"{name} went through")
        return None
    return result_of(name, study, road, seeds, plan)


def read_values(study: Study, seeds: Sequence[int], plan: StudyPlan) -> dict[str, list[Values]]:
    """Arm → its values for each seed."""
    from coseek.studies.results import values_of  # torch

    sources = sources_of(study, plan.commands)
    return {
        name: [values_of(arm, plan.step(sources[name], seed).folder) for seed in seeds]
        for name, arm in study.arms.items()
    }


def result_of(name: str, study: Study, road: Road, seeds: Sequence[int], plan: StudyPlan) -> StudyPage:
    """Compare the results of a study's commands."""
    names, typed_plan = list(sources_of(study, plan.commands).values()), readable(name, study, road)
    values, steps, typed = read_values(study, seeds, plan), plan.steps(names, seeds), typed_plan.steps(names, seeds)
    return StudyPage(name, study, StudyResult.of(name, study, road, values, seeds, steps, typed))


def readable(name: str, study: Study, road: Road) -> StudyPlan:
    """A study's commands, in folders named after its arms."""
    return StudyPlan(Commands(study, road), Path("runs", title_of(name)), shared=Path("runs", "shared"))


def sources_of(study: Study, commands: Commands) -> dict[str, str]:
    """Arm → the command whose results it reads."""
    return {name: commands.key(arm.of) if arm.of else ARM + name for name, arm in study.arms.items()}


def launch(chosen: dict[str, Study], seeds: Sequence[int]) -> Iterator[StudyPage]:
    """Check every training of the studies by a dry run, and print their commands in order. If all commands of a study
    have been run, read its results instead."""
    problems: dict[tuple[str, ...], str] = {}
    failures, printed_folders = [], set[Path]()
    for name, study in chosen.items():
        if not has_size(name, study, "paper", len(chosen) == 1):
            continue
        plan, used_seeds = readable(name, study, "paper"), seeds or range(study.seeds)
        steps = plan.steps([*sources_of(study, plan.commands).values()], used_seeds)
        if all(step.folder.exists() for step in steps):
            try:
                result = result_of(name, study, "paper", used_seeds, plan)
            except DataError as error:
                note(f"{name}: {error}")
            else:
                yield result
                continue
        tell(f"# {name}: {study.place}")
        for step in (step for step in steps if step.words[:2] in (("train", "agent"), ("train", "together"))):
            key = tuple(word for word in step.words if not word.startswith(("seed=", "runs/")))
            if key not in problems:
                note(f"dry run of {step.name}")
                problems[key] = dry_run(step)
            if problems[key]:
                failures.append(f"{name}, {step.name}: {problems[key]}")
        tell("\n".join(launch_command(step) for step in steps if step.folder not in printed_folders))
        printed_folders |= {step.folder for step in steps}
    if failures:
        raise RunError("\n".join(dict.fromkeys(failures)))


def launch_command(step: StudyStep) -> str:
    """The line that starts a command on the machine of its recipe."""
    devices, settings = 1, [word for word in step.words[3:] if "=" in word]
    if step.words[:2] == ("train", "agent"):
        devices = load_recipe(step.words[2], settings).machine.devices
    if step.words[:2] == ("train", "together"):
        devices = load_together_recipe(step.words[2], settings).agent.machine.devices
    torchrun = f"torchrun --standalone --nproc-per-node {devices} -m coseek "
    return step.line().replace("coseek ", torchrun, 1) if devices > 1 else step.line()


def dry_run(step: StudyStep) -> str:
    """Why a training does not fit its machine; empty if it fits, even if inputs are missing. For a co-training,
    includes its agent's training and its labels."""
    words = [sys.executable, "-m", "coseek", *step.words, "--dry-run", "--json"]
    process = subprocess.run(words, capture_output=True, text=True)
    try:
        estimate = cast(JsonObject, json.loads(process.stdout))
    except json.JSONDecodeError:
        return process.stderr.strip().splitlines()[-1] if process.stderr.strip() else f"ended with {process.returncode}"
    agent = cast(JsonObject, estimate.get("agent", estimate))
    parts = [*cast(list[JsonObject], agent["stages"]), estimate]
    return "; ".join(str(stage["way_out"]) for stage in parts if stage.get("way_out"))


def minutes_of(text: str) -> float | None:
    """Parse `8h` or `90m` to minutes; `None` for an empty text."""
    if not text:
        return None
    number, unit = text[:-1], text[-1]
    if unit not in "hm" or not number.replace(".", "", 1).isdecimal():
        raise SettingError(f"--budget {text!r} is no time; write for example 8h or 90m")
    return float(number) * (60 if unit == "h" else 1)
