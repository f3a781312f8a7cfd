"""Send a policy, encoder or data set to the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.terminal import new_app, say, tell
from coseek.core.errors import SettingError
from coseek.hub.card import UNKNOWN, check_license
from coseek.hub.sharing import push as push_folder

GROUP = "Sharing"
app = new_app()


@app.command(epilog="Example: `coseek push runs/quickstart/policy/trained me/my-agent`")
def push(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A policy (OUT/policy/trained), encoder or data set.")],
    repo: Annotated[str, Argument(metavar="OWNER/NAME", help="The repository.")],
    license_name: Annotated[str | None, Option("--license", help="The licence: apache-2.0, cc-by-4.0, other …")] = None,
    public: Annotated[bool, Option("--public", help="Make a new repository public; default: private.")] = False,
    force: Annotated[bool, Option("--force", help="Replace the files of a repository.")] = False,
) -> None:
    """Push a policy, an encoder or a data set with its card (README.md), in one commit.

    Hidden files, optimizers and checkpoints are never sent. Log in with `hf auth login`, or set HF_TOKEN.
    """
    try:
        license_name = None if license_name is None else check_license(license_name)
    except ValueError as error:
        raise SettingError(f"--license {license_name!r}: {error}") from None
    result = push_folder(folder, repo, license=license_name, public=public, force=force)
    if result.left_out:
        say(f"not sent: {', '.join(result.left_out[:5])}{' …' if len(result.left_out) > 5 else ''}")
    if result.license == UNKNOWN:
        say("the card says `license: unknown`; --license NAME sets it")
    tell(f"{result.where}: {result.files} files of the {result.what} {folder}.")
