"""The program: its help, its exit codes, its imports."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.hardware.paces import FAST, SLOW, forget_speeds, kept
from tests.source_tree import ROOT

from coseek.cli import commands
from coseek.cli.commands.doctor import CHECKS, CheckStatus, check, exact_search, precision
from coseek.cli.settings_help import in_words, listed
from coseek.core.settings import dump_settings
from coseek.hardware.device import instructions
from coseek.hardware.placement import Use
from coseek.pipelines.agent_recipe import load_recipe, recipe_names

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
    """A folder in which commands are also looked up."""
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    return tmp_path


def put(folder: Path, name: str, body: str) -> None:
    """Write a command into the folder `newcomer`."""
    (folder / f"{name}.py").write_text(ONE_COMMAND.format(line=f"Does {name}.", body=body), encoding="utf-8")


def processor_s() -> float:
    """Processor time of all child processes so far. Unlike wall time, it does not depend on the load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.medium
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


def test_no_words_at_all_show_the_help_and_the_version_is_printed(coseek: Type) -> None:
    assert coseek() == coseek("--help") and coseek().code == 0
    assert coseek("--version").out.startswith("coseek 0.")


@pytest.mark.medium
def test_every_command_has_a_line_and_a_help(coseek: Type) -> None:
    lines = [line for line in coseek("--help").out.splitlines() if line.startswith("  ")]
    assert len(lines) >= 9
    for line in lines:
        name, about = line.split(maxsplit=1)
        assert about.strip().endswith(".")
        shown = coseek(name, "--help")
        assert shown.code == 0 and (("--quiet" in shown.out and "--verbose" in shown.out) or "COMMAND" in shown.out)


def test_a_new_file_is_a_new_command(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "greet_all", "print('hello')")
    assert "greet-all  Does greet_all." in " ".join(coseek("--help").out.split()).replace("greet-all ", "greet-all  ")
    assert coseek("greet-all").out == "hello\n"


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("raise RunError('the lamp\\nwent out')", 1, "the lamp went out"),
        ("from coseek.agents.limits import Limits; Limits(max_tokens=0)", 2, "'max_tokens' needs at least 1, got 0"),
        ("raise ModuleNotFoundError(name='transformers.models')", 2, "pip install 'coseek[train]'"),
    ],
)
def test_a_failure_is_a_sentence_and_a_code(newcomer: Path, coseek: Type, body: str, code: int, says: str) -> None:
    name = f"fail_{code}_{len(body)}"  # a module is imported once
    put(newcomer, name, body)
    outcome = coseek(name.replace("_", "-"))
    assert outcome.code == code and outcome.sentence.endswith(says)


def test_a_bug_and_a_library_of_nobody_show_their_traceback(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "divide_here", "1 / 0")
    put(newcomer, "import_here", "raise ModuleNotFoundError(name='no_such_library')")
    with pytest.raises(ZeroDivisionError):
        coseek("divide-here")
    with pytest.raises(ModuleNotFoundError):
        coseek("import-here")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(newcomer: Path, coseek: Type) -> None:
    put(newcomer, "wait_here", "with resumable('coseek wait-here --resume'):\n        raise KeyboardInterrupt")
    outcome = coseek("wait-here")
    assert outcome.code == 130
    assert "Resume with: coseek wait-here --resume" in outcome.err


@pytest.mark.slow
def test_a_reader_that_has_gone_is_no_failure(index: Path) -> None:
    command = f"{sys.executable} -m coseek.cli.main search {index} {'Ada ' * 2000} -k 5 | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


# --- completion


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
def test_a_shell_is_offered_words(line: str, offered: list[str], coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_COSEEK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert coseek().out.split() == offered


# --- the list of settings


COMMANDS = [
    ("agent", "search-r1-grpo", "rl.steps=7"),
    ("generator", "sft.steps=7"),
    ("retriever", "agentic-r", "training.steps=7"),
    ("retriever", "laptop", "training.steps=7"),
    ("together", "laptop", "agent.rl.steps=7"),
]


@pytest.mark.medium
@pytest.mark.parametrize("words", COMMANDS, ids=[" ".join(words[:2]) for words in COMMANDS])
def test_every_setting_is_listed_with_value_and_meaning_and_nothing_is_trained(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coseek: Type
) -> None:
    monkeypatch.chdir(tmp_path)
    listing = coseek("train", *words, "--settings", "all")
    assert listing.code == 0, listing.err
    assert f"\n{words[-1]}\n    " in listing.out
    changes = coseek("train", *words, "--settings")
    assert f"\n  {words[-1]}" in changes.out and len(changes.out) < len(listing.out) / 4
    assert coseek("train", *words, "--settings", words[-1].partition("=")[0]).out.startswith(f"{words[-1]}\n    ")
    rows = json.loads(coseek("train", *words, "--settings", "--json").out)
    name, _, value = words[-1].partition("=")
    assert [row["value"] for row in rows if row["name"] == name] == [int(value)]
    assert [row["name"] for row in rows if not row["about"]] == []
    assert len({row["name"] for row in rows}) == len(rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
@pytest.mark.parametrize("name", recipe_names())
def test_what_is_listed_can_be_typed_and_means_what_it_says(name: str) -> None:
    recipe = load_recipe(name)
    typed = [
        in_words(setting, 100).splitlines()[0]
        for setting in listed(recipe)
        if not setting.is_group and not setting.only_with
        # A shape of the laptop policy is refused beside a model that has its own.
        if not (recipe.policy.folder and setting.name.startswith("policy.laptop."))
    ]
    assert dump_settings(load_recipe(name, typed)) == dump_settings(recipe)


def test_settings_of_a_group_that_is_not_set_say_so(coseek: Type) -> None:
    rows = {row["name"]: row for row in json.loads(coseek("train", "agent", "s3", "--settings", "--json").out)}
    assert rows["data.world"]["value"] is None
    assert rows["data.world.size"]["only_with"] == "data.world"
    assert rows["rl.policy.optimizer.lr"]["only_with"] is None


def test_a_misspelt_setting_is_refused_there_too(coseek: Type) -> None:
    assert "did you mean" in coseek("train", "agent", "s3", "rl.stepz=1", "--settings").sentence
    assert "did you mean" in coseek("train", "retriever", "agentic-r", "training.stepz=1", "--settings").sentence


# --- the doctor


@pytest.mark.slow
def test_everything_works_where_the_tests_run(coseek: Type) -> None:
    outcome = coseek("doctor", "--json")
    findings = json.loads(outcome.out)
    assert outcome.code == 0, outcome.out
    assert {finding["health"] for finding in findings} == {"works"}
    assert len(findings) == len(CHECKS)


def fails_with(error: Exception) -> str:
    raise error


def test_a_missing_library_comes_with_the_line_that_installs_it() -> None:
    finding = check("torch", lambda: fails_with(ModuleNotFoundError(name="torch.nn")), "")
    assert (finding.health, finding.remedy) == (CheckStatus.MISSING, "pip install 'coseek[train]'")


def test_a_part_that_fails_is_broken_and_says_why() -> None:
    finding = check("files", lambda: fails_with(OSError("the disk is full")), "free some space")
    assert (finding.health, finding.detail) == (CheckStatus.BROKEN, "OSError: the disk is full")
    assert finding.remedy == "free some space"


@pytest.mark.parametrize(("ratio", "taken", "way"), [(FAST, "bfloat16", "int8"), (SLOW, "float32", "exact")])
def test_auto_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, taken: str, way: str) -> None:
    kept(tmp_path, monkeypatch, ratio, ratio, ratio)
    precisions, search = precision(), exact_search()
    for use in Use:
        assert f"{use} in {taken} (bfloat16 has {ratio:.2g} × the speed of float32)" in precisions
    assert f"auto is {way} for a million vectors" in search and f"{ratio:.2g} × the speed" in search
    assert precisions.endswith(instructions()) and search.endswith(instructions())


def test_a_probe_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    forget_speeds(monkeypatch)
    finding = check("precision", precision, "use precision float32")
    assert (finding.health, finding.remedy) == (CheckStatus.BROKEN, "use precision float32")
    assert "a separate process" in finding.detail


# --- the demo


README = (ROOT / "README.md").read_text(encoding="utf-8")


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.medium
def test_the_readme_shows_what_make_demo_prints(coseek: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [str(ROOT / ".venv" / "bin" / "coseek")])
    monkeypatch.setenv("PATH", "/usr/bin")
    (printed,) = re.findall(r"^make demo\n```\n.*?```text\n(.*?)```", README, flags=re.MULTILINE | re.DOTALL)
    outcome = coseek("demo")
    assert lines(outcome.out) == lines(printed)
    assert outcome.code == 0 and not outcome.err and "\x1b" not in outcome.out


@pytest.mark.medium
def test_the_demo_takes_seconds_and_neither_torch_nor_a_model(tmp_path: Path) -> None:
    code = "import sys; from coseek.cli.main import main; sys.exit(main(['demo']) or 'torch' in sys.modules)"
    began = processor_s()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and processor_s() - began < 10, done.stderr
    assert "coseek quickstart" in done.stdout and "Makefile" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.medium
def test_another_question_has_another_answer(coseek: Type) -> None:
    assert "Ossder (right)" in coseek("demo", 5).out
    assert "in passage 1" not in coseek("demo", 5).out
    assert coseek("demo", 33).sentence == "the demo has questions 1 to 32, not 33"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "sft"], "coseek train agent sft"),
        (["train", "retreiver"], "did you mean 'retriever'?"),
        (["data", "improt"], "did you mean 'import'?"),
    ],
)
def test_a_word_that_is_no_subcommand_leads_to_the_right_line(coseek: Type, words: list[str], says: str) -> None:
    assert says in coseek(*words).sentence
