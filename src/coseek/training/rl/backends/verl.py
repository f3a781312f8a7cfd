"""verl backend: names the training that verl runs in processes of its own, from a recipe (`pipelines/verl`)."""

from typing import TYPE_CHECKING, NoReturn

from coseek.core.errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from coseek.training.rl.settings import RlSettings
    from coseek.training.trainer.workers import Workers

NAME = "verl"


def make(network: "PreTrainedModel", settings: "RlSettings", workers: "Workers") -> NoReturn:
    """Raise `SettingError`: verl has a loop of its own, which needs the whole recipe."""
    raise SettingError("verl trains from a recipe: coseek train agent RECIPE rl.backend=verl")
