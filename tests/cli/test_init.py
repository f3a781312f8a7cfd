"""A project laid down by `coseek init`: the commands of its AGENTS.md print what it says."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.source_tree import ROOT

TEXT = (ROOT / "src" / "coseek" / "cli" / "project" / "AGENTS.md").read_text(encoding="utf-8")
STEPS: list[tuple[str, str]] = re.findall(r"```sh\n(.*?)\n```\n\n```text\n(.*?)\n```", TEXT, flags=re.DOTALL)


def printed_as_told(told: str, out: str) -> bool:
    """Whether every expected line is in the output, in order; `…` stands for anything, and columns may be wider."""
    rest = [" ".join(line.split()) for line in out.splitlines()]
    for line in told.splitlines():
        parts = [re.escape(" ".join(part.split())) for part in line.split("…")]
        pattern = re.compile(".*".join(part and rf" ?{part} ?" for part in parts))
        place = next((number for number, one in enumerate(rest) if pattern.fullmatch(one)), None)
        if place is None:
            return False
        rest = rest[place + 1 :]
    return True


@pytest.mark.slow
def test_the_six_commands_of_a_new_project_print_what_its_agents_md_says(
    tmp_path: Path, coseek: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(STEPS) == 6
    outcome = coseek("init", tmp_path / "mine")
    assert outcome.code == 0 and sorted(path.name for path in (tmp_path / "mine").iterdir()) == [
        "AGENTS.md", "data", "recipe.yaml"
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path / "mine")
    for command, told in STEPS:
        done = coseek(*shlex.split(command)[1:])
        assert done.code == 0 and printed_as_told(told, done.out), f"{command}\n{done.out}{done.err}"


def test_init_takes_a_new_folder_alone(tmp_path: Path, coseek: Type) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    assert coseek("init", tmp_path).sentence == f"{tmp_path} is not empty; name a new folder"
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "mine"
