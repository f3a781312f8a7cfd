"""Rows: the inputs of any training engine, token by token, computed by coseek's algorithms.

They hold what the learner trains on (`experience.make_experience`), for an engine that trains offline or elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import torch

from coseek.core.errors import DataError, SettingError
from coseek.core.files import parse_rows, write_jsonl
from coseek.core.record import Record, Schema, TokenIds
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.training.rl.algorithm import Algorithm, GroupSettings, open_algorithm
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import ScoreFunction, TrajectoryBatch, add_overlong_penalty, groups_with_spread, score
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import minibatch_weights, rows_in_loss

SCHEMA = 1
"""Version of a row in `rows.jsonl`."""


@dataclass(frozen=True, slots=True)
class TrainingRow(Record):
    """One context of a trajectory. The first four fields have one item per token; the first token is never trained."""

    SCHEMA = Schema(SCHEMA, "a row")
    KEYS = (
        "step", "group", "episode", "turn", "policy_version", "weight", "ids", "trained", "sampled_logprob",
        "advantage",
    )  # fmt: skip

    ids: TokenIds
    trained: tuple[bool, ...]
    """Whether the token is in the loss."""
    sampled_logprob: tuple[float, ...]
    """Natural log at the sampling temperature; 0 where the agent did not write."""
    advantage: tuple[float, ...]
    """0 where the token is not trained."""
    weight: float
    """Weight of each trained token: the loss of a step is the sum of weight · token loss over its rows, if it is one
    minibatch (`losses.loss_weights`). 0 without a trained token."""
    step: int
    """Rows of one step were normalised together."""
    group: int
    """The question's occurrence, whose trajectories were compared."""
    episode: str
    """`QUESTION_ID/SEED`. Other contexts, such as those of Search-o1's notes, are not trained and have no rows."""
    turn: int
    """The agent's first turn in this context, from 1."""
    policy_version: int
    """The oldest version of the weights that sampled the row; 0 if the run does not record it."""


@dataclass
class RowExport:
    """Counts of an export."""

    path: Path
    rows: int = 0
    faults: int = 0
    """Episodes without a reward, which are in no row and no baseline."""


def export_rows(run: Run, reward: ScoreFunction, settings: RlSettings) -> RowExport:
    """Write the rows of a stored run to `rows.jsonl` in its folder, atomically and step by step.

    The trajectories of a question are a group, and a step has `questions_per_step` groups. Raises `SettingError` for
    settings that need a model, and `DataError` if the algorithm compares the trajectories of a question and each has
    only one.
    """
    algorithm = open_algorithm(settings)
    if algorithm.needs_critic:
        raise SettingError(f"the rows of a stored run have no critic, which {algorithm.name} needs; name another one")
    if settings.kl_coef > 0.0 and settings.kl_location == "reward":
        raise SettingError(
            "the rows of a stored run have no reference policy; set kl_coef=0, or kl_location=loss for the engine"
        )
    export = RowExport(run.folder / "rows.jsonl")
    rows = _rows_of_run(run, reward, settings, algorithm, export)
    export.rows = write_jsonl(export.path, (row.to_json() for row in rows))
    return export


def read_rows(path: Path) -> Iterator[TrainingRow]:
    """Read the rows of a file, in order. Raises `DataError` with the line of an invalid row."""
    return parse_rows(path, TrainingRow.from_json)


def rows_of(
    experience: Experience, episodes: TrajectoryBatch, settings: RlSettings, algorithm: Algorithm, step: int = 0
) -> list[TrainingRow]:
    """Make the rows of a step's experience, one for each scored trajectory, in order."""
    weights_BT = minibatch_weights(experience, settings, rows_in_loss(experience, algorithm.drops_zero_std))
    trained_BT = weights_BT != 0.0
    advantages_BT = torch.where(trained_BT, experience.advantages_BT, 0.0)
    rows: list[TrainingRow] = []
    for row, episode in enumerate(episodes.scored):
        length = int(experience.batch.lengths_B[row])
        training_row = TrainingRow(
            ids=tuple(experience.batch.ids_BT[row, :length].tolist()),
            trained=tuple(trained_BT[row, :length].tolist()),
            sampled_logprob=tuple(experience.batch.logprobs_BT[row, :length].tolist()),
            advantage=tuple(advantages_BT[row, :length].tolist()),
            weight=float(weights_BT[row].max()),
            step=step,
            group=episode.group,
            episode=f"{episode.trajectory.question.id}/{episode.trajectory.seed}",
            turn=1,
            policy_version=episode.version,
        )
        rows.append(training_row)
    return rows


def _rows_of_run(
    run: Run, reward: ScoreFunction, settings: RlSettings, algorithm: Algorithm, export: RowExport
) -> Iterator[TrainingRow]:
    questions = run.by_question()
    first_group, largest, step = 0, 0, 0
    while groups := list(islice(questions, settings.questions_per_step)):
        largest = max(largest, *map(len, groups))
        episodes = _score_step(groups, first_group, reward, settings)
        export.faults += len(episodes.failed)
        if episodes.scored:
            experience = make_experience(episodes, settings, algorithm, None)
            yield from rows_of(experience, episodes, settings, algorithm, step)
        first_group, step = first_group + len(groups), step + 1
    if largest == 1 < settings.group_size and isinstance(algorithm.settings, GroupSettings):
        raise DataError(
            f"{algorithm.name} compares the runs of a question, and {run.folder} has one of each; make several with "
            "--samples, or set group_size=1"
        )


def _score_step(
    groups: Sequence[Sequence[Trajectory]], first_group: int, reward: ScoreFunction, settings: RlSettings
) -> TrajectoryBatch:
    """Score the groups of a step, numbered from `first_group`, as a step of training does."""
    numbers = [number for number, group in enumerate(groups, start=first_group) for _ in group]
    episodes = score(numbers, [*chain.from_iterable(groups)], reward)
    episodes = add_overlong_penalty(episodes, settings.overlong)
    if settings.dynamic_sampling:
        kept_groups = groups_with_spread(episodes, settings)
        kept = tuple(episode for episode in episodes.scored if episode.group in kept_groups)
        episodes = replace(episodes, scored=kept)
    return episodes
