"""What tests of trainings share: a command as it is typed, a training from beginning to end, the weights that it left,
its model card, and the beginning of a training whose record names given digests."""

import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from safetensors.torch import load_file

from coseek.cli.main import main
from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress, Progress
from coseek.core.settings import Settings
from coseek.data.digests import Identities
from coseek.hub.card import read_card
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.pipelines.run_record import TrainingRun
from coseek.retrieval.index import build_index

R = TypeVar("R", bound=Settings)


class Training(Protocol):
    def begin(self, resume: bool) -> object: ...
    def train(self) -> object: ...


T = TypeVar("T", bound=Training)


def typed(*words: str) -> None:
    assert main([*words]) == 0


def trained(training: T, resume: bool = False) -> T:
    training.begin(resume)
    training.train()
    return training


def weights(folder: Path, name: str = "trained") -> dict[str, torch.Tensor]:
    """Those of a policy in the folder of a training."""
    return load_file(folder / "policy" / name / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


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


def checked_card(folder: Path, scratch: Path | None = None) -> tuple[JsonObject, str]:
    """Front matter and text of the folder's card; with a `scratch` folder, its blocks run there on a tiny world."""
    card = read_card(folder)
    assert card is not None, folder
    front, text = card
    assert front["license"] == "unknown" and "coseek" in str(front["tags"])
    for heading in ("Training", "Figures", "Use", "Limits"):
        assert text.count(f"\n## {heading}\n") == 1
    assert str(folder.parent) not in text and "coseek train " in text
    if scratch is not None:
        make_world(WorldSettings(size="tiny", train=3, dev=3, test=3)).save(scratch / "world")
        build_index(scratch / "world", "bm25", scratch / "bm25")
        names = {"FOLDER": str(folder), "INDEX": str(scratch / "bm25"), "DATA": str(scratch / "world")}
        if front["library_name"] == "sentence-transformers":
            names["INDEX"] = str(scratch / "dense")
        blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
        code = re.sub("|".join(names), lambda match: names[match[0]], blocks)
        # In this process: an interpreter of its own would import torch and transformers again.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UserWarning)
            exec(compile(code, f"{folder}/README.md", "exec"), {"__name__": "__main__"})  # noqa: S102 (our own card)
    return front, text
