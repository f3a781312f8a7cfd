"""What one of several workers runs in the tests of this folder: a command as it is typed."""

import os
from contextlib import redirect_stdout
from pathlib import Path

from coseek.cli.main import main


def typed(*words: str) -> None:
    assert main([*words]) == 0


def written_down(folder: Path, *words: str) -> None:
    """The command, and what each worker prints, by its rank."""
    with (folder / f"{os.environ['RANK']}.txt").open("w", encoding="utf-8") as file, redirect_stdout(file):
        typed(*words)
