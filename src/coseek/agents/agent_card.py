"""Agent card: `coseek.yaml` in a model folder names the protocol, prompt template and budgets it was trained with."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from coseek.agents.limits import Limits
from coseek.agents.protocol import own_files
from coseek.core.files import atomic_path, read_yaml, write_yaml
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.models.chat import ChatTemplate

CARD = "coseek.yaml"


class AgentCard(Settings):
    """The content of `coseek.yaml` in a model folder."""

    protocol: str = "search-r1"
    """The protocol that the model speaks."""
    prompt_template: str = "default"
    """The prompt template that it was trained with; the path of a YAML file is relative to the model folder."""
    chat_template: ChatTemplate = "auto"
    """Whether its prompts were put into its chat template."""
    limits: Limits | None = None
    """The budgets of its episodes; null: the defaults of its protocol."""

    @classmethod
    def read(cls, folder: Path) -> "AgentCard":
        """Read the card of a model folder; a folder without a card has the defaults."""
        path = folder / CARD
        if not path.is_file():
            return cls()
        card = make_settings(cls, read_yaml(path, "card", "`protocol: …` and `prompt_template: …`"), path)
        stored_files = {
            name: str(folder / value)
            for name in ("protocol", "prompt_template")
            if (value := str(getattr(card, name))).endswith((".yaml", ".yml")) and (folder / value).is_file()
        }
        return card.model_copy(update=stored_files)

    def write(self, folder: Path) -> None:
        """Write the card, and copy the user's files that it names, so that the folder can be moved."""
        files = {"protocol": self.protocol, "prompt_template": self.prompt_template}
        stored_files = {
            name: _copy_into(Path(value), own_files(value) if name == "protocol" else [Path(value)], folder / name)
            for name, value in files.items()
            if value.endswith((".yaml", ".yml")) and Path(value).is_file()
        }
        write_yaml(folder / CARD, dump_settings(self.model_copy(update=stored_files)))


def _copy_into(path: Path, files: Sequence[Path], folder: Path) -> str:
    """Copy a YAML file and the files that it names; returns its path relative to the card. If one of them is outside
    its folder, nothing is copied and the absolute path is returned."""
    path, sources = path.resolve(), [file.resolve() for file in files]
    if not all(file.is_relative_to(path.parent) for file in sources):
        return str(path)
    for file in sources:
        target = folder / file.relative_to(path.parent)
        with atomic_path(target) as temp_path:
            shutil.copyfile(file, temp_path)
    return f"{folder.name}/{path.name}"
