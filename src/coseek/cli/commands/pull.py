"""Fetch a policy, encoder or data set from the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.terminal import new_app, shell_word, tell
from coseek.hub.sharing import RepoKind, pull as pull_folder

GROUP = "Sharing"
app = new_app()
NEXT = {
    "model": "coseek run DATA --agent {} --retriever INDEX --out RUN",
    "encoder": "coseek index DATA --retriever dense --encoder {} --out INDEX",
    "data set": "coseek index {} --out INDEX",
}


@app.command(epilog="Example: `coseek pull someone/their-agent agents/theirs`")
def pull(
    repo: Annotated[str, Argument(metavar="OWNER/NAME", help="The repository.")],
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A new folder.")],
    kind: Annotated[RepoKind | None, Option(help="Needed if the hub has both under this name.")] = None,
) -> None:
    """Fetch a repository into a new FOLDER, all or nothing.

    Weights are fetched as safetensors only. Python code in a repository is fetched, and runs only if you ask for it.
    """
    result = pull_folder(repo, folder, kind=kind)
    tell(f"{folder}: {result.files} files. It is a {result.what}.")
    tell(f"Try: {NEXT[result.what].format(shell_word(folder))}")
