"""Curriculum: how much noise a simulated search engine makes, and when.

p_i = p_s + (b^(i/m) − 1) / (b − 1) · (p_e − p_s) at step i of m (Sun et al. 2025, ZeroSearch, arXiv 2505.04588): with
b > 1 the noise grows slowly at first and faster later.
"""

import hashlib
import math
from dataclasses import dataclass

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.settings import Settings


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far training is."""

    step: int
    """From 0 to `steps`."""
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.step <= self.steps:
            raise SettingError(f"step {self.step} of {self.steps} steps is none; they are counted from 0 to the last")


class NoiseSchedule(Settings):
    """The share of searches that are answered with noise."""

    start: float = Field(default=0.0, ge=0, le=1)
    """p_s: at the first step."""
    end: float = Field(default=0.0, ge=0, le=1)
    """p_e: at the last step. Equal to `start` for a steady rate."""
    base: float = Field(default=4.0, gt=0)
    """b: 1 is a straight line; above 1 the noise comes late, below 1 early."""
    seed: int = 0
    """The same seed, query and step meet the same fate."""

    def rate(self, at: TrainingProgress) -> float:
        """p_i."""
        done = at.step / at.steps
        log = math.log(self.base)
        # expm1 keeps its digits where b is nearly 1, whose limit is the straight line.
        share = done if log == 0.0 else math.expm1(done * log) / math.expm1(log)
        return self.start + share * (self.end - self.start)

    def strikes(self, query: str, at: TrainingProgress) -> bool:
        """Whether this query is answered with noise at this step: by a hash of seed, query and step, so that no other
        query and no order of queries matters."""
        digest = hashlib.sha256(f"{self.seed}:{at.step}:{query}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64 < self.rate(at)
