"""Rows: what a training engine needs of an episode, token by token, computed by coseek's algorithms.

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
from coseek.training.rl.algorithm import Algorithm, GroupSettings, open_algorithm
from coseek.training.rl.experience import Experience, make_experience
from coseek.training.rl.rollout import (
    EpisodeBatch,
    ScoredEpisode,
    ScoreFunction,
    charge_overlong,
    groups_with_spread,
    score,
)
from coseek.training.rl.settings import RlSettings
from coseek.training.rl.update import counted_rows, minibatch_weights
from coseek.training.trainer.batch import FILLER_ID, Batch

SCHEMA = 1
"""Version of a row in `rows.jsonl`."""


@dataclass(frozen=True, slots=True)
class TrainingRow(Record):
    """One context of an episode. The first four fields have one item a token; the first token is never trained."""

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
    """The question's occurrence, whose runs were compared."""
    episode: str
    """`QUESTION_ID/SEED`; an episode with several contexts has several rows."""
    turn: int
    """The agent's first turn in this context, from 1."""
    policy_version: int
    """The oldest version of the weights that sampled the row; 0 where the run does not tell."""

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


def export_rows(run: Run, reward: ScoreFunction, settings: RlSettings, out: Path | None = None) -> RowExport:
    """Write the rows of a stored run to `out` (`rows.jsonl` in its folder), atomically and step by step.

    The runs of a question are a group, and a step has `questions_per_step` of them. Raises `SettingError` for settings
    that need a model, and `DataError` if the algorithm compares the runs of a question and each has only one.
    """
    algorithm = open_algorithm(settings)
    if algorithm.needs_critic:
        raise SettingError(f"the rows of a stored run have no critic, which {algorithm.name} needs; name another one")
    if settings.kl_coef > 0.0 and settings.kl_in == "reward":
        raise SettingError(
            "the rows of a stored run have no reference policy; set kl_coef=0, or kl_in=loss for the engine"
        )
    export = RowExport(out or run.folder / "rows.jsonl")
    found = _rows_of_run(run, reward, settings, algorithm, export)
    export.rows = write_jsonl(export.path, (row.to_json() for row in found))
    return export


def read_rows(path: Path) -> Iterator[TrainingRow]:
    """The rows of a file, in order. Raises `DataError` with the line of a broken one."""
    return parse_rows(path, TrainingRow.from_json)


def rows_of(
    experience: Experience, episodes: EpisodeBatch, settings: RlSettings, algorithm: Algorithm, step: int = 0
) -> list[TrainingRow]:
    """The rows of a step's experience, one for each scored episode, in order."""
    weights_BT = minibatch_weights(experience, settings, counted_rows(experience, algorithm.drops_zero_spread))
    trained_BT = weights_BT != 0.0
    advantages_BT = torch.where(trained_BT, experience.advantages_BT, 0.0)

    def row(place: int, length: int, episode: ScoredEpisode) -> TrainingRow:
        def values(whole_BT: Tensor) -> tuple[float, ...]:
            return tuple(whole_BT[place, :length].tolist())

        return TrainingRow(
            ids=tuple(experience.batch.ids_BT[place, :length].tolist()),
            trained=tuple(trained_BT[place, :length].tolist()),
            sampled_logprob=values(experience.batch.logprobs_BT),
            advantage=values(advantages_BT),
            weight=float(weights_BT[place].max()),
            step=step,
            group=episode.group,
            episode=f"{episode.trajectory.question.id}/{episode.trajectory.seed}",
            turn=1,
            policy_version=episode.version,
        )

    lengths = experience.batch.lengths_B.tolist()
    return [row(place, lengths[place], episode) for place, episode in enumerate(episodes.scored)]


def experience_of(rows: Sequence[TrainingRow], settings: RlSettings) -> Experience:
    """Make the learner's experience of the rows of one step, for a loss without a reference or a critic."""

    def padded(name: str, kind: torch.dtype, filler: float = 0) -> Tensor:
        columns = [torch.tensor(getattr(row, name), dtype=kind) for row in rows]
        return pad_sequence(columns, batch_first=True, padding_value=filler)

    trained_BT, advantages_BT = padded("trained", torch.bool), padded("advantage", torch.float32)
    logprobs_BT = padded("sampled_logprob", torch.float32)
    lengths_B = torch.tensor([len(row.ids) for row in rows])
    silent_B = (advantages_BT == 0.0).all(dim=1) & (settings.entropy == 0.0)
    groups_B = torch.tensor([row.group for row in rows])
    flat = [bool(silent_B[groups_B == group].all()) for group in groups_B.unique()]
    return Experience(
        batch=Batch(padded("ids", torch.long, FILLER_ID), trained_BT, logprobs_BT, lengths_B),
        mask_BT=trained_BT,
        groups_B=groups_B,
        advantages_BT=advantages_BT,
        old_BT=logprobs_BT,
        reference_BT=None,
        values_BT=None,
        returns_BT=None,
        flat_B=torch.zeros_like(silent_B),  # dropped rows are not trained
        silent_B=silent_B,
        sampled_at_B=torch.tensor([row.policy_version for row in rows]),
        zero_spread=sum(flat) / len(flat),
        lone=0,
    )


def _rows_of_run(
    run: Run, reward: ScoreFunction, settings: RlSettings, algorithm: Algorithm, export: RowExport
) -> Iterator[TrainingRow]:
    questions = run.by_question()
    first, lone, step = 0, 0, 0
    while groups := list(islice(questions, settings.questions_per_step)):
        episodes = _scored(groups, first, reward, settings)
        export.faults += sum(episodes.faults.values())
        if episodes.scored:
            experience = make_experience(episodes, settings, algorithm, None)
            lone += experience.lone
            yield from rows_of(experience, episodes, settings, algorithm, step)
        first, step = first + len(groups), step + 1
    if first and lone == first and isinstance(algorithm.settings, GroupSettings):
        raise DataError(
            f"{algorithm.name} compares the runs of a question, and {run.folder} has one of each; make several with "
            "--samples, or set group_size=1"
        )


def _scored(
    groups: Sequence[Sequence[Trajectory]], first: int, reward: ScoreFunction, settings: RlSettings
) -> EpisodeBatch:
    """Score the groups of a step, numbered from `first`, as a step of training does."""
    runs = [(first + place, one) for place, group in enumerate(groups) for one in group]
    episodes = score([group for group, _ in runs], [one for _, one in runs], reward)
    if settings.overlong is not None:
        episodes = charge_overlong(episodes, settings.overlong)
    if settings.dynamic_sampling:
        kept = groups_with_spread(episodes, settings)
        episodes = replace(episodes, scored=tuple(one for one in episodes.scored if one.group in kept))
    return episodes
