"""Rollout writer: keeps the rollouts of some steps of training as run folders, within a budget of disk space.

    FOLDER/step-000010/run.yaml, trajectories.jsonl, tokens.jsonl

A folder appears whole or not at all. On resume a step that is taken again is written again; one that was removed to
keep the budget stays removed, so that a run that was killed keeps the same steps as one that was not.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coseek.agents.unwritable import storable
from coseek.core.errors import DiskFault
from coseek.core.files import JsonObject, atomic_folder, json_line, recover_folder
from coseek.data.run import Run
from coseek.data.token_data import FILE
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.settings import KeepRolloutsSettings
from coseek.training.rl.token_record import reward_data
from coseek.training.trainer.workers import Workers

SHARE = 0.1
"""Share of the budget that one step takes at most."""


class RolloutWriter(Callback):
    """Writes every n-th step's rollouts of all workers, with rewards and token data. The first worker writes."""

    def __init__(
        self, folder: Path, settings: KeepRolloutsSettings, describe: Callable[[int], JsonObject], workers: Workers
    ) -> None:
        """`describe` gives the settings in the `run.yaml` of a step."""
        self._folder, self._settings, self._describe, self._workers = folder, settings, describe, workers

    def begin(self) -> None:
        """Remove what a killed process left unfinished."""
        if self._workers.first:
            for path in self._folder.glob(".step-*.old"):
                recover_folder(path.with_name(path.stem.removeprefix(".")))
            for path in self._folder.glob(".step-*.part"):
                shutil.rmtree(path)

    def before_step(self, report: StepReport) -> None:
        report.wants_tokens = self._settings.every > 0 and report.is_due(self._settings.every)

    def after_step(self, report: StepReport) -> None:
        """Write the step's rollouts if it is due. Raises `DiskFault` if they cannot be written."""
        if not (report.wants_tokens and self._workers.first):
            return
        with report.timer("keep_s"):
            try:
                self._keep(report)
            except OSError as error:
                raise DiskFault(
                    f"the rollouts of step {report.step} could not be written to {self._folder} "
                    f"({error.strerror or error}); make room there and go on with --resume, or with "
                    "rl.keep_rollouts.every=0"
                ) from None

    def _keep(self, report: StepReport) -> None:
        step, kept = report.step, self._steps()
        if any(later > step for later in kept) and step not in kept:
            return  # it was written before a kill, and removed since
        atomic_folder(kept.get(step, self._folder / f"step-{step:06d}"), lambda part: self._fill(part, report))
        self._thin(step)

    def _fill(self, part: Path, report: StepReport) -> None:
        """Write the step's groups, in order, that fit into its share of the budget; the first one in any case."""
        groups = _groups(report)
        left = SHARE * self._settings.mb * 1e6
        taken: list[Rollout] = []
        count = 0
        for group in groups:
            left -= sum(len(line.encode()) for rollout in group for line in rollout.lines)
            if left < 0 and taken:
                break
            taken += group
            count += 1
        described = {**self._describe(report.step), "groups": count, "groups_of_step": len(groups)}
        with Run.create(part, described).open_for_append() as file:
            file.writelines(rollout.run for rollout in taken)
        with (part / FILE).open("w", encoding="utf-8") as file:
            file.writelines(rollout.tokens for rollout in taken)

    def _thin(self, newest: int) -> None:
        """Double the distance between kept steps until they fit the budget. The newest stays."""
        folders = self._steps()
        sizes = {step: sum(path.stat().st_size for path in folder.iterdir()) for step, folder in folders.items()}
        apart = self._settings.every
        while len(sizes) > 1 and sum(sizes.values()) > self._settings.mb * 1e6:
            apart *= 2
            for step in [step for step in sizes if step % apart and step != newest]:
                shutil.rmtree(folders[step])
                del sizes[step]

    def _steps(self) -> dict[int, Path]:
        """Kept step → its folder."""
        return {int(path.name.removeprefix("step-")): path for path in self._folder.glob("step-*")}


@dataclass(frozen=True, slots=True)
class Rollout:
    """A run of a step as it is written."""

    run: str
    """Its line in `trajectories.jsonl`."""
    tokens: str = ""
    """Its line in `tokens.jsonl`; empty for a run in which a part failed."""

    @property
    def lines(self) -> tuple[str, str]:
        return self.run, self.tokens


def _groups(report: StepReport) -> list[list[Rollout]]:
    """The runs of a step, group by group."""
    data = report.tokens.data() if report.tokens is not None else {}
    groups: dict[int, list[Rollout]] = {}
    for episode in report.episodes.scored:
        run = storable(episode.trajectory)
        one = reward_data(episode)
        tokens = json_line(data.get(one.key, one).to_json()) if run is episode.trajectory else ""
        groups.setdefault(episode.group, []).append(Rollout(json_line(run.to_json()), tokens))
    for group, run in report.episodes.failed:
        groups.setdefault(group, []).append(Rollout(json_line(storable(run).to_json())))
    return [groups[group] for group in sorted(groups)]
