"""Token data: what a training step computed for an episode and for each token of the agent in it.

`tokens.jsonl` in a run of kept rollouts has one row per scored episode. Values are in the order of the agent's tokens,
and `spans` are the positions of these tokens in `Trajectory.ids`.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

from coseek.core.errors import DataError
from coseek.core.files import parse_rows
from coseek.core.record import OMIT_EMPTY, OMIT_NONE, Number, Record, Schema
from coseek.data.run import TOKENS, RowKey
from coseek.data.trajectory import Trajectory

FILE = TOKENS
SCHEMA = 1
"""Version of a row."""
LISTS = ("advantages", "trainer_logprobs", "entropies")

Values: TypeAlias = tuple[float | None, ...]
"""One number per token of the agent; `None` if it is not finite. Empty if nothing was computed."""
Span: TypeAlias = tuple[int, int]
"""Positions [start, end) in the ids of a trajectory."""


@dataclass(frozen=True, slots=True)
class TokenData(Record):
    """The reward of a training episode, and values of its tokens."""

    SCHEMA = Schema(SCHEMA, "token data")
    KEYS = (
        "question_id", "seed", "group", "reward", "parts", "trained", "spans", "updates", "advantages",
        "trainer_logprobs", "entropies",
    )  # fmt: skip

    question_id: str
    seed: int
    group: int
    """Number of the group of episodes that were compared: one for each occurrence of a question in the step."""
    reward: Number | None
    parts: Mapping[str, Number | None] = field(default_factory=dict)
    trained: bool = False
    """Whether the agent's tokens are in the loss. The environment's never are."""
    spans: Annotated[tuple[Span, ...], OMIT_EMPTY] = ()
    """Positions of the agent's tokens, in order; empty if no values are known."""
    advantages: Annotated[Values, OMIT_EMPTY] = ()
    trainer_logprobs: Annotated[Values, OMIT_EMPTY] = ()
    """Natural log at the sampling temperature, from the trainer's first pass over the episode."""
    updates: Annotated[int | None, OMIT_NONE] = None
    """Number of updates of the step before that pass. At 0 both log-probabilities are from the same weights."""
    entropies: Annotated[Values, OMIT_EMPTY] = ()
    """Exact entropy of the policy at each token in nats, if the settings ask for it."""

    def __post_init__(self) -> None:
        if any(start >= end for start, end in self.spans) or any(a[1] > b[0] for a, b in pairwise(self.spans)):
            raise DataError(f"spans of tokens must be rising and not empty, not {list(self.spans)}")
        tokens = sum(end - start for start, end in self.spans)
        for name in LISTS:
            if (count := len(getattr(self, name))) not in (0, tokens):
                raise DataError(f"{name} holds {count} values for {tokens} tokens of the agent")

    @property
    def key(self) -> RowKey:
        return self.question_id, self.seed

    def check(self, trajectory: Trajectory) -> None:
        """Raise `DataError` if the values belong to other tokens than those that the agent wrote."""
        if self.spans and self.spans != (written_spans := agent_spans(trajectory)):
            raise DataError(
                f"the values of question {self.question_id!r}, seed {self.seed}, stand at the tokens "
                f"{list(self.spans)}, and the agent wrote {list(written_spans)}"
            )


def agent_spans(trajectory: Trajectory) -> tuple[Span, ...]:
    """The positions of the agent's tokens in the ids of a trajectory, without empty turns."""
    return tuple((start, end) for start, end in trajectory.turn_spans if start < end)


def read_token_data(folder: Path) -> dict[RowKey, TokenData]:
    """The token data of a run's episodes, if it has any. Raises `DataError` with the line of a broken row."""
    path = folder / FILE
    return {tokens.key: tokens for tokens in parse_rows(path, TokenData.from_json)} if path.exists() else {}


def finite(values: Iterable[float], short: Callable[[float], float] = lambda value: float(f"{value:.6g}")) -> Values:
    """The numbers, shortened by `short`; `None` for those that JSON cannot hold."""
    return tuple(short(value) if math.isfinite(value) else None for value in values)
