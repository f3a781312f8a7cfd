"""The beginning of a training, for tests of what its folder's record says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import Settings
from coseek.data.digests import Identities
from coseek.pipelines.run_record import TrainingRun

R = TypeVar("R", bound=Settings)


@dataclass
class Begun(TrainingRun[R]):
    """A training that names files with these digests."""

    named: Identities = field(default_factory=dict)

    def identities(self) -> Identities:
        return self.named


def begin(
    folder: Path, recipe: R, resume: bool, identities: Identities | None = None, progress: Progress | None = None
) -> R:
    """The recipe as it is stored."""
    training = Begun(recipe, folder, progress or NoProgress(), named=identities or {})
    training.begin(resume)
    return training.recipe
