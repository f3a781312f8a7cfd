"""Completion: a shell is told commands, subcommands and options, and a real bash completes with the script."""

import pytest
from tests.cli.conftest import Type


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
