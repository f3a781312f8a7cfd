"""The examples run as they are printed, on the public names, and the first three on nothing but the core libraries."""

import ast
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import coseek

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
SHORT = ("eight_lines", "own_reward", "own_retriever", "train_encoder")


def run(python: Path | str, name: str, folder: Path, *words: str, **more: str) -> str:
    """What an example prints, started in an empty folder."""
    command = [str(python), "-W", "error", str(EXAMPLES / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment() | more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """This process's, without the paths that would lead a fresh interpreter to libraries which it has not got."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with coseek and its core dependencies alone."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder)
    python = folder / "bin" / "python"
    install = ["install", "-q", "-c", str(ROOT / "constraints.txt"), "-e", str(ROOT)]
    command = [sys.executable, "-m", "pip", "--python", str(python), *install]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    there = (
        "import importlib.util as u; print([name for name in ('torch', 'transformers', 'httpx') if u.find_spec(name)])"
    )
    assert subprocess.run([python, "-c", there], capture_output=True, text=True, check=True).stdout == "[]\n"
    return python


@pytest.mark.slow
def test_eight_lines_answer_five_questions_where_only_the_core_is_installed(core: Path, tmp_path: Path) -> None:
    *answers, right = run(core, "eight_lines", tmp_path).splitlines()
    assert len(answers) == 5 and all(re.fullmatch(r".+ -> .+", line) for line in answers)
    assert re.fullmatch(r"right: [0-5]\.0 of 5", right)


@pytest.mark.slow
def test_a_reward_and_a_retriever_of_ones_own_need_only_the_core(core: Path, tmp_path: Path) -> None:
    rewards = run(core, "own_reward", tmp_path, "rewards").splitlines()
    assert len(rewards) == 20 and all(re.search(r"own_reward -?\d\.\d\d, f1 \d\.\d\d", line) for line in rewards)
    found = re.findall(r"^(\S+): (\d\.\d\d) of", run(core, "own_retriever", tmp_path, "search"), re.MULTILINE)
    assert [name for name, _ in found] == ["bm25", "titles-first"]
    assert float(found[1][1]) > float(found[0][1])


@pytest.mark.slow
def test_what_needs_an_extra_says_which_where_only_the_core_is_installed(core: Path, tmp_path: Path) -> None:
    code = """
import coseek, pathlib
from coseek.core.errors import UserError
folder = pathlib.Path("model"); folder.mkdir(); (folder / "config.json").write_text("{}")
for call in (
    lambda: coseek.open_agent(folder),
    lambda: coseek.train_agent("search-r1-grpo", ["preset=laptop"], out="a"),
    lambda: coseek.train_retriever("laptop", out="b"),
):
    try:
        call()
    except UserError as error:
        print(error)
"""
    done = subprocess.run(
        [core, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=environment(), check=True
    )
    lines = done.stdout.splitlines()
    assert [re.findall(r"pip install '(.*)'", line) for line in lines] == [
        ["coseek[train]"], ["coseek[train]"], ["coseek[dense]"]
    ]  # fmt: skip


@pytest.mark.slow
def test_an_encoder_is_trained_on_searches_and_searched_with(tmp_path: Path) -> None:
    words = ("all", "steps=20", "questions=40")
    printed = run(sys.executable, "train_encoder", tmp_path, *words, PYTHONPATH=str(ROOT / "src"))
    assert re.search(r"^labels: [1-9]\d* of [1-9]\d* searches$", printed, re.MULTILINE)
    found = dict(re.findall(r"^(bm25|dense): (\d\.\d\d) of", printed, re.MULTILINE))
    assert float(found["bm25"]) > 0.5 and float(found["dense"]) > 0.05
    assert {"labels.jsonl"} <= {path.name for path in (tmp_path / "all" / "labels").iterdir()}


@pytest.mark.parametrize("name", SHORT)
def test_an_example_is_short_and_uses_public_names_alone(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "coseek" in imported and imported - {"coseek"} <= sys.stdlib_module_names | {"collections.abc"}
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "coseek"
    }
    assert used <= set(coseek.__all__)
    assert len(text.splitlines()) <= 60


def test_eight_lines_are_eight_lines() -> None:
    text = (EXAMPLES / "eight_lines.py").read_text(encoding="utf-8").partition('"""\n')[2]
    assert len([line for line in text.splitlines() if line.strip()]) <= 8
