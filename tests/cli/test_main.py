"""The program itself: what it says, how it ends, what it imports."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.cli import commands

ONE_COMMAND = """\"\"\"{line}\"\"\"

from coseek.cli.terminal import new_app, resumable
from coseek.core.errors import RunError

app = new_app()


@app.command()
def command() -> None:
    {body}
"""


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that commands are looked for in, beside ours."""
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    return tmp_path


def put(folder: Path, name: str, body: str) -> None:
    """Write a command and make sure that no other test sees it."""
    (folder / f"{name}.py").write_text(ONE_COMMAND.format(line=f"Does {name}.", body=body), encoding="utf-8")


def processor_s() -> float:
    """Processor time of all children so far: unlike the clock on the wall, it knows nothing of a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_quick_and_imports_no_torch() -> None:
    code = "import sys; from coseek.cli.main import main; main(['--help']); sys.exit('torch' in sys.modules)"
    took = []
    for _ in range(2):  # the first may have to write bytecode
        began = processor_s()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        took.append(processor_s() - began)
        assert done.returncode == 0
        assert "usage: coseek COMMAND" in done.stdout
    assert min(took) < 0.5


def test_no_words_at_all_show_the_help(coseek: Type) -> None:
    assert coseek() == coseek("--help")
    assert coseek().code == 0


def test_every_command_has_a_line_and_a_help(coseek: Type) -> None:
    lines = [line for line in coseek("--help").out.splitlines() if line.startswith("  ")]
    assert len(lines) >= 9
    for line in lines:
        name, about = line.split(maxsplit=1)
        assert about.strip().endswith(".")
        assert coseek(name, "--help").code == 0


def test_the_version_is_told(coseek: Type) -> None:
    assert coseek("--version").out.startswith("coseek 0.")


def test_a_new_file_is_a_new_command(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "greet_all", "print('hello')")
    assert "greet-all  Does greet_all." in " ".join(coseek("--help").out.split()).replace("greet-all ", "greet-all  ")
    assert coseek("greet-all").out == "hello\n"


def test_a_failure_ends_with_one(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "fail_here", "raise RunError('the lamp\\nwent out')")
    outcome = coseek("fail-here")
    assert (outcome.code, outcome.sentence) == (1, "the lamp went out")


def test_settings_that_no_command_checked_end_in_a_sentence(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "limit_here", "from coseek.agents.limits import Limits\n    Limits(max_tokens=0)")
    outcome = coseek("limit-here")
    assert (outcome.code, outcome.sentence) == (2, "setting 'max_tokens' needs at least 1, got 0")


def test_a_bug_shows_its_traceback(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "divide_here", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        coseek("divide-here")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "wait_here", "with resumable('coseek wait-here --resume'):\n        raise KeyboardInterrupt")
    outcome = coseek("wait-here")
    assert outcome.code == 130
    assert "Resume with: coseek wait-here --resume" in outcome.err


def test_a_missing_library_is_a_line_that_installs_it(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "train_here", "raise ModuleNotFoundError(name='transformers.models')")
    outcome = coseek("train-here")
    assert outcome.code == 2
    assert outcome.sentence.endswith("pip install 'coseek[train]'")


def test_a_library_of_nobody_is_a_bug(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "import_here", "raise ModuleNotFoundError(name='no_such_library')")
    with pytest.raises(ModuleNotFoundError):
        coseek("import-here")


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_failure(index: Path) -> None:
    command = f"{sys.executable} -m coseek.cli.main search {index} {'Ada ' * 2000} -k 5 | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")
