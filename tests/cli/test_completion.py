"""Completion: a shell is told commands, subcommands and options, and a real bash completes with the script."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.source_tree import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("coseek lab", ["label"]),
        ("coseek train ret", ["retriever"]),
        ("coseek run --spl", ["--split"]),
        ("coseek train agent --qu", ["--quiet"]),
        ("coseek trian ", []),
    ],
)
def test_a_shell_is_offered_what_the_program_takes(
    line: str, offered: list[str], coseek: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_COSEEK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert coseek().out.split() == offered


@pytest.mark.slow
def test_a_new_shell_completes_after_the_installation(tmp_path: Path) -> None:
    program = tmp_path / "coseek"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m coseek "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    environment = {**ENVIRONMENT, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    install = ["bash", "-c", "coseek --install-completion; true"]  # typer looks for the shell that started it
    subprocess.run(install, check=True, env=environment, capture_output=True)
    ask = 'source ~/.bashrc; COMP_WORDS=(coseek sea); COMP_CWORD=1; _coseek_completion coseek; echo "${COMPREPLY[@]}"'
    answer = subprocess.run(["bash", "-c", ask], check=True, env=environment, capture_output=True, text=True)
    assert answer.stdout == "search\n"
