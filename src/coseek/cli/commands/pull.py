"""Fetch a policy, encoder or data set from the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.terminal import new_app, shell_word, tell
from coseek.core.errors import SettingError
from coseek.hub.sharing import KINDS, RepoKind
from coseek.hub.sharing import pull as pull_folder

GROUP = "Sharing"
app = new_app()
NEXT = {
    "model": "coseek run DATA --agent {} --retriever INDEX --out RUN",
    "encoder": "coseek index DATA --retriever dense --encoder {} --out INDEX",
    "data set": "coseek index {} --out INDEX",
}


@app.command(epilog="Example: `coseek pull someone/their-agent agents/theirs`")
def pull(
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    kind: Annotated[str | None, typer.Option(help="model or dataset, where the hub has both under this name.")] = None,
) -> None:
    """Fetch a repository into a new FOLDER, all or nothing.

    Weights are taken as safetensors only. Python code in a repository is fetched and never run without being asked for.
    """
    done = pull_folder(repo, folder, kind=_kind(kind))
    tell(f"{folder}: {done.files} files. It is a {done.what}.")
    tell(f"Try: {NEXT[done.what].format(shell_word(folder))}")


def _kind(name: str | None) -> RepoKind | None:
    for one in KINDS:
        if name == one:
            return one
    if name is not None:
        raise SettingError(f"--kind is {' or '.join(KINDS)}, not {name!r}")
    return None
