"""Card: `coseek.yaml` in a model folder says which protocol and wording the model was trained with."""

from pathlib import Path

import yaml

from coseek.data.files import atomic_write, read_yaml
from coseek.data.settings import Settings, dump_settings, make_settings

CARD = "coseek.yaml"


class AgentCard(Settings):
    """What `coseek.yaml` in a model folder says."""

    protocol: str = "search-r1"
    """The protocol that the model speaks."""
    wording: str = "default"
    """The wording that it was trained with."""

    @classmethod
    def read(cls, folder: Path) -> "AgentCard":
        """The card of a model folder; a folder without one gets the defaults."""
        path = folder / CARD
        if not path.is_file():
            return cls()
        return make_settings(cls, read_yaml(path, "card", "`protocol: …` and `wording: …`"), path)

    def write(self, folder: Path) -> None:
        with atomic_write(folder / CARD) as file:
            yaml.safe_dump(dump_settings(self), file, sort_keys=False, allow_unicode=True)
