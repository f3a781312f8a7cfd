"""Fetch a policy, encoder or data set from the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.hub_options import HubFolder, RepositoryName, open_hub
from coseek.cli.terminal import new_app, say, shell_word, tell
from coseek.core.errors import SettingError
from coseek.hub.publication import RepoKind
from coseek.hub.repository import KINDS
from coseek.hub.repository import pull as pull_folder

GROUP = "Sharing"
app = new_app()
NEXT = {
    "model": "coseek run DATA --agent {} --retriever INDEX --out RUN",
    "encoder": "coseek index DATA --retriever dense --encoder {} --out INDEX",
    "data set": "coseek index {} --out INDEX",
}


@app.command(epilog="Example: `coseek pull someone/their-agent agents/theirs`")
def pull(
    repo: RepositoryName,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write.")],
    hub: HubFolder = None,
    kind: Annotated[str | None, typer.Option(help="model or dataset, where the hub has both under this name.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a model or data set in FOLDER.")] = False,
) -> None:
    """Fetch a repository into FOLDER, all or nothing; every file is checked against its digest.

    Weights are taken as safetensors only. Python code in a repository is fetched and never run without being asked for.
    """
    done = pull_folder(repo, folder, open_hub(hub), kind=_kind(kind), force=force)
    if done.left_out:
        say(f"not taken: {', '.join(done.left_out[:5])}{' …' if len(done.left_out) > 5 else ''}")
    tell(f"{folder}: {done.files} files{'' if done.changed else ', all there already'}. It is a {done.what}.")
    tell(f"Try: {NEXT[done.what].format(shell_word(folder))}")


def _kind(name: str | None) -> RepoKind | None:
    for one in KINDS:
        if name == one:
            return one
    if name is not None:
        raise SettingError(f"--kind is {' or '.join(KINDS)}, not {name!r}")
    return None
