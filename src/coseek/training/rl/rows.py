"""Rows: what a training engine needs of a trajectory, token by token, computed by coseek's algorithms.

Any engine can be fed from them, also offline. They are those of the step that the learner would make of the same
episodes (`experience.make_experience`), and `experience_of` makes its experience of them again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coseek.core.errors import DataError, SettingError
from coseek.core.files import parse_rows, write_jsonl
from coseek.core.record import Record, Schema, TokenIds
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.training.learner.batch import FILLER_ID, Batch
from coseek.training.rl.algorithm import Algorithm, GroupSettings, open_algorithm
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import (
    ScoreFunction,
    TrajectoryBatch,
    add_overlong_penalty,
    groups_with_spread,
    score,
)
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import minibatch_weights, rows_in_loss

SCHEMA = 1
"""Version of a row in `rows.jsonl`."""


@dataclass(frozen=True, slots=True)
class TrainingRow(Record):
    """One context of a trajectory. The first four fields have one item a token; the first token is never trained."""

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
    """`QUESTION_ID/SEED`. Other contexts, such as those of Search-o1's notes, are no rows: they are not trained."""
    turn: int
    """The agent's first turn in this context, from 1."""
    policy_version: int
    """The oldest version of the weights that sampled the row; 0 if the run does not record it."""

    def __post_init__(self) -> None:
        sizes = {len(self.ids), len(self.trained), len(self.sampled_logprob), len(self.advantage)}
        if len(sizes) != 1 or not self.ids:
            raise DataError(f"a row of {len(self.ids)} ids needs as many values of every kind, and at least one")
        if self.trained[0]:
            raise DataError("the first token of a row has nothing before it and cannot be trained")
        if any(value for value, trained in zip(self.advantage, self.trained, strict=True) if not trained):
            raise DataError("a row has an advantage at a token that is not trained")


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
    """The rows of a file, in order. Raises `DataError` with the line of a broken one."""
    return parse_rows(path, TrainingRow.from_json)


def rows_of(
    experience: Experience, episodes: TrajectoryBatch, settings: RlSettings, algorithm: Algorithm, step: int = 0
) -> list[TrainingRow]:
    """The rows of a step's experience, one for each scored trajectory, in order."""
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


def experience_of(rows: Sequence[TrainingRow], settings: RlSettings) -> Experience:
    """Make the learner's experience of the rows of one step, for a loss without a reference or a critic."""

    def padded(name: str, kind: torch.dtype, filler: float = 0) -> Tensor:
        columns = [torch.tensor(getattr(row, name), dtype=kind) for row in rows]
        return pad_sequence(columns, batch_first=True, padding_value=filler)

    trained_BT, advantages_BT = padded("trained", torch.bool), padded("advantage", torch.float32)
    logprobs_BT = padded("sampled_logprob", torch.float32)
    lengths_B = torch.tensor([len(row.ids) for row in rows])
    zero_grad_B = (advantages_BT == 0.0).all(dim=1) & (settings.entropy_coef == 0.0)
    groups_B = torch.tensor([row.group for row in rows])
    flat = [bool(zero_grad_B[groups_B == group].all()) for group in groups_B.unique()]
    return Experience(
        batch=Batch(padded("ids", torch.long, FILLER_ID), trained_BT, logprobs_BT, lengths_B),
        mask_BT=trained_BT,
        groups_B=groups_B,
        advantages_BT=advantages_BT,
        old_BT=logprobs_BT,
        reference_BT=None,
        values_BT=None,
        returns_BT=None,
        zero_std_B=torch.zeros_like(zero_grad_B),  # dropped rows are not trained
        zero_grad_B=zero_grad_B,
        sampled_at_B=torch.tensor([row.policy_version for row in rows]),
        frac_reward_zero_std=sum(flat) / len(flat),
        singleton_groups=0,
    )


def _rows_of_run(
    run: Run, reward: ScoreFunction, settings: RlSettings, algorithm: Algorithm, export: RowExport
) -> Iterator[TrainingRow]:
    questions = run.by_question()
    first_group, singletons, step = 0, 0, 0
    while groups := list(islice(questions, settings.questions_per_step)):
        episodes = _score_step(groups, first_group, reward, settings)
        export.faults += len(episodes.failed)
        if episodes.scored:
            experience = make_experience(episodes, settings, algorithm, None)
            singletons += experience.singleton_groups
            yield from rows_of(experience, episodes, settings, algorithm, step)
        first_group, step = first_group + len(groups), step + 1
    if first_group and singletons == first_group and isinstance(algorithm.settings, GroupSettings):
        raise DataError(
            f"{algorithm.name} compares the runs of a question, and {run.folder} has one of each; make several with "
            "--samples, or set group_size=1"
        )


def _score_step(
    groups: Sequence[Sequence[Trajectory]], first_group: int, reward: ScoreFunction, settings: RlSettings
) -> TrajectoryBatch:
    """Score the groups of a step, numbered from `first_group`, as a step of training does."""
    numbers = [number for number, group in enumerate(groups, start=first_group) for _ in group]
    episodes = score(numbers, [trajectory for group in groups for trajectory in group], reward)
    episodes = add_overlong_penalty(episodes, settings.overlong)
    if settings.dynamic_sampling:
        kept_groups = groups_with_spread(episodes, settings)
        kept = tuple(episode for episode in episodes.scored if episode.group in kept_groups)
        episodes = replace(episodes, scored=kept)
    return episodes
