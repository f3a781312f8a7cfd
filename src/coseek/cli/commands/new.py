"""Write a small working file for a part of your own, and a test."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.terminal import new_app, shell_word, tell
from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import atomic_write

GROUP = "Your own parts"
app = new_app()

PARTS = files("coseek.cli.parts")
TEMPLATES = {
    Path(file.name).stem.replace("_", "-"): file
    for file in PARTS.iterdir()
    if re.fullmatch(r"[a-z]\w+\.(py|yaml)", file.name)
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
TEST = '''"""{file} keeps the contract of its kind and runs on a tiny example: `pytest test_{stem}.py`."""

from pathlib import Path

import coseek


def test_{stem}_keeps_its_contract_and_runs() -> None:
    trial = coseek.check_part(Path(__file__).with_name("{file}"))
    assert trial.kind == "{kind}"
    assert trial.found, "assert here what yours must do"
'''
"""The test of a new part."""


@app.command(epilog="Example: `coseek new reward brevity`")
def new(
    part: Annotated[str, Argument(help=f"The kind of part: {', '.join(sorted(TEMPLATES))}.")],
    name: Annotated[str, Argument(help="The part's name, used for the files.")],
    out: Annotated[Path, Option(help="The folder to write into.")] = Path(),
) -> None:
    """Write a small, working part of your own, with a test beside it.

    `coseek check FILE` tries it. Nothing is registered: a recipe or a command names the file by its path.
    """
    if part not in TEMPLATES:
        raise UnknownName("part", part, sorted(TEMPLATES))
    if not _NAME.fullmatch(name):
        raise SettingError(f"a part's name has letters, digits, - and _, and begins with a letter, not {name!r}")
    template, stem = TEMPLATES[part], name.replace("-", "_").lower()
    path = out / f"{stem}{Path(template.name).suffix}"
    test = out / f"test_{stem}.py"
    for target in (path, test):
        if target.exists():
            raise DataError(f"{target} already exists; choose another name")
    title, dashed_stem = stem.replace("_", " ").capitalize(), stem.replace("_", "-")
    text = template.read_text(encoding="utf-8").replace("My part", title).replace("my-part", dashed_stem)
    for target, content in ((path, text), (test, TEST.format(file=path.name, stem=stem, kind=part.replace("-", " ")))):
        with atomic_write(target) as file:
            file.write(content)
    tell(f"{path} and {test}")
    tell(f"Next: coseek check {shell_word(path)}")
