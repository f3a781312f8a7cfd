"""The demo: it answers now, anywhere and fast, and README shows what it prints."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.source_tree import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_the_readme_shows_what_make_demo_prints(coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [str(ROOT / ".venv" / "bin" / "coseek")])
    monkeypatch.setenv("PATH", "/usr/bin")
    (printed,) = re.findall(r"^make demo\n```\n.*?```text\n(.*?)```", README, flags=re.MULTILINE | re.DOTALL)
    outcome = coseek("demo")
    assert lines(outcome.out) == lines(printed)
    assert outcome.code == 0 and not outcome.err and "\x1b" not in outcome.out


def test_the_demo_takes_seconds_and_neither_torch_nor_a_model(tmp_path: Path) -> None:
    code = (
        "import sys; from coseek.cli.main import main; code = main(['demo']); sys.exit(code or 'torch' in sys.modules)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and time.monotonic() - began < 10, done.stderr
    assert "coseek quickstart" in done.stdout and "Makefile" not in done.stdout
    assert not list(tmp_path.iterdir())


def test_another_question_has_another_answer(coseek: Type) -> None:
    assert "Ossder (right)" in coseek("demo", 5).out
    assert "in passage 1" not in coseek("demo", 5).out
    assert coseek("demo", 33).sentence == "the demo has questions 1 to 32, not 33"
