"""Hub options: what `coseek push` and `coseek pull` share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from coseek.hub.repository import FolderHub, Hub

RepositoryName: TypeAlias = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository.")]
HubFolder: TypeAlias = Annotated[
    Path | None, typer.Option("--hub", help="A folder in place of the Hugging Face Hub, such as one on a shared disk.")
]


def open_hub(folder: Path | None) -> Hub:
    """The hub that `--hub` names: a folder, else the Hugging Face Hub."""
    if folder is not None:
        return FolderHub(folder)
    from coseek.hub.hugging_face import HuggingFaceHub  # an extra

    return HuggingFaceHub()
