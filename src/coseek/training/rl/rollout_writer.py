"""Rollout writer: keeps the rollouts of some steps of training as run folders, within a budget of disk space.

    FOLDER/step-000010/run.yaml, trajectories.jsonl, tokens.jsonl

A folder appears whole or not at all. On resume a step that is taken again is written again; one that was removed to
keep the budget stays removed, so that a run that was killed keeps the same steps as one that was not.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from coseek.agents.run_questions import storable
from coseek.core.errors import DiskFault
from coseek.core.files import JsonObject, atomic_folder, json_line
from coseek.core.parts import sweep
from coseek.data.run import RowKey, Run
from coseek.data.token_data import FILE, TokenData
from coseek.data.trajectory import Trajectory
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.episodes import ScoredEpisode
from coseek.training.rl.settings import KeepRolloutsSettings
from coseek.training.rl.token_record import StepTokens, reward_data
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
            sweep(self._folder)

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
        places = report.tokens.places() if report.tokens is not None else {}
        left = SHARE * self._settings.mb * 1e6
        runs: list[str] = []
        rows: list[str] = []
        count = 0
        for group in groups:
            kept = [(storable(run), run, one) for run, one in group]
            some = [json_line(held.to_json()) for held, _, _ in kept]
            valued = [one for held, run, one in kept if one and held is run]  # no values for what no file holds
            some_rows = [json_line(_data_of(one, report.tokens, places).to_json()) for one in valued]
            left -= sum(len(line.encode()) for line in (*some, *some_rows))
            if left < 0 and runs:
                break
            runs += some
            rows += some_rows
            count += 1
        described = {**self._describe(report.step), "groups": count, "groups_of_step": len(groups)}
        with Run.create(part, described).open_for_append() as file:
            file.writelines(runs)
            (part / FILE).write_text("".join(rows), encoding="utf-8")  # before the digests

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


def _groups(report: StepReport) -> list[list[tuple[Trajectory, ScoredEpisode | None]]]:
    """The runs of a step, group by group, with their rewards; `None` for one in which a part failed."""
    groups: dict[int, list[tuple[Trajectory, ScoredEpisode | None]]] = {}
    for one in report.episodes.scored:
        run = one.trajectory
        groups.setdefault(one.group, []).append((run, one))
    for group, run in report.episodes.failed:
        groups.setdefault(group, []).append((run, None))
    return [groups[group] for group in sorted(groups)]


def _data_of(episode: ScoredEpisode, tokens: StepTokens | None, places: Mapping[RowKey, int]) -> TokenData:
    """The token data of an episode; of one that is not learnt from, its reward."""
    place = places.get((episode.trajectory.question.id, episode.trajectory.seed))
    return reward_data(episode) if tokens is None or place is None else tokens.data(place)
