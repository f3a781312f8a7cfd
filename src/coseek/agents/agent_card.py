"""Card: `coseek.yaml` in a model folder says which protocol and prompt template the model was trained with."""

from pathlib import Path
from typing import ClassVar

import yaml

from coseek.core.files import atomic_write, read_yaml
from coseek.core.settings import Settings, dump_settings, make_settings

CARD = "coseek.yaml"


class AgentCard(Settings):
    """What `coseek.yaml` in a model folder says."""

    OLD_NAMES: ClassVar[dict[str, str]] = {"wording": "prompt_template"}

    protocol: str = "search-r1"
    """The protocol that the model speaks."""
    prompt_template: str = "default"
    """The prompt template that it was trained with."""

    @classmethod
    def read(cls, folder: Path) -> "AgentCard":
        """The card of a model folder; a folder without one gets the defaults."""
        path = folder / CARD
        if not path.is_file():
            return cls()
        return make_settings(cls, read_yaml(path, "card", "`protocol: …` and `prompt_template: …`"), path)

    def write(self, folder: Path) -> None:
        with atomic_write(folder / CARD) as file:
            yaml.safe_dump(dump_settings(self), file, sort_keys=False, allow_unicode=True)
