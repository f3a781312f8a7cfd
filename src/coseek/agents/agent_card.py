"""Agent card: `coseek.yaml` in a model folder names the protocol and prompt template it was trained with."""

from pathlib import Path

from coseek.core.files import read_yaml, write_yaml
from coseek.core.settings import Settings, dump_settings, make_settings
from coseek.models.chat import ChatTemplate

CARD = "coseek.yaml"


class AgentCard(Settings):
    """The content of `coseek.yaml` in a model folder."""

    protocol: str = "search-r1"
    """The protocol that the model speaks."""
    prompt_template: str = "default"
    """The prompt template that it was trained with; a YAML file is seen from the model folder."""
    chat_template: ChatTemplate = "auto"
    """Whether its prompts stood in its chat template."""

    @classmethod
    def read(cls, folder: Path) -> "AgentCard":
        """Read the card of a model folder; a folder without one gets the defaults."""
        path = folder / CARD
        if not path.is_file():
            return cls()
        card = make_settings(cls, read_yaml(path, "card", "`protocol: …` and `prompt_template: …`"), path)
        inside = {
            name: str(folder / value)
            for name in ("protocol", "prompt_template")
            if (value := str(getattr(card, name))).endswith((".yaml", ".yml")) and (folder / value).is_file()
        }
        return card.model_copy(update=inside)

    def write(self, folder: Path) -> None:
        write_yaml(folder / CARD, dump_settings(self))
