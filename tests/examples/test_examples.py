"""The examples run as they are printed, on the public names, and the first three on nothing but the core libraries.

The notebooks run from their first cell to their last, and are kept without outputs.
"""

import ast
import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from runpy import run_path

import pytest
from tests.source_tree import ROOT

import coseek

EXAMPLES = ROOT / "examples"
SHORT = ("eight_lines", "own_reward", "own_retriever", "train_encoder")
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries that coseek without extras asks for, and theirs."""
    folder, waiting, known = tmp_path_factory.mktemp("core"), ["coseek"], set[str]()
    while waiting:
        if (name := waiting.pop()) in known:
            continue
        known.add(name)
        library = distribution(name)
        waiting += [row[0] for dep in library.requires or () if ";" not in dep and (row := re.match(r"[\w.-]+", dep))]
        for top in {file.parts[0] for file in library.files or ()} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(library.locate_file(top))))
    return folder


def python(core: Path, folder: Path, *words: str) -> str:
    """What a fresh interpreter prints that finds the core's libraries alone, started in an empty folder."""
    paths = os.pathsep.join((str(core), str(ROOT / "src")))
    command = [sys.executable, "-S", "-W", "error", *words]
    here = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    return done.stdout


def example(name: str) -> str:
    return str(EXAMPLES / f"{name}.py")


@pytest.mark.slow
def test_a_question_a_reward_and_a_retriever_of_ones_own_need_only_the_core(core: Path, tmp_path: Path) -> None:
    *answers, right = python(core, tmp_path, example("eight_lines")).splitlines()
    assert len(answers) == 5 and all(re.fullmatch(r".+ -> .+", line) for line in answers)
    assert re.fullmatch(r"right: [0-5]\.0 of 5", right)
    rewards = python(core, tmp_path, example("own_reward"), "rewards").splitlines()
    assert len(rewards) == 20 and all(re.search(r"own_reward -?\d\.\d\d, f1 \d\.\d\d", line) for line in rewards)
    printed = python(core, tmp_path, example("own_retriever"), "search")
    scores = re.findall(r"^(\S+): (\d\.\d\d) of", printed, re.MULTILINE)
    assert [name for name, _ in scores] == ["bm25", "titles-first"]
    assert float(scores[1][1]) > float(scores[0][1])


@pytest.mark.slow
def test_what_needs_an_extra_says_which_where_only_the_core_is_installed(core: Path, tmp_path: Path) -> None:
    code = """
import coseek, importlib.util, pathlib
from coseek.core.errors import UserError
assert not any(map(importlib.util.find_spec, ("torch", "transformers", "httpx")))
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
    extras = re.findall(r"pip install '(.*)'", python(core, tmp_path, "-c", code))
    assert extras == ["coseek[train]", "coseek[train]", "coseek[dense]"]


@pytest.mark.slow
def test_an_encoder_is_trained_on_searches_and_searched_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_path(example("train_encoder"))["main"](tmp_path / "all", steps=3, questions=40)
    printed = capsys.readouterr().out
    assert re.search(r"^labels: [1-9]\d* of [1-9]\d* searches$", printed, re.MULTILINE)
    scores = dict(re.findall(r"^(bm25|dense): (\d\.\d\d) of", printed, re.MULTILINE))
    assert float(scores["bm25"]) > 0.5 and float(scores["dense"]) > 0.05


@pytest.mark.parametrize("name", SHORT)
def test_an_example_uses_public_names_alone(name: str) -> None:
    tree = ast.parse(Path(example(name)).read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "coseek" in imported and imported - {"coseek"} <= sys.stdlib_module_names | {"collections.abc"}
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "coseek"
    }
    assert used <= set(coseek.__all__)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_is_kept_without_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = json.loads(path.read_text(encoding="utf-8"))
    assert (tree["nbformat"], tree["nbformat_minor"]) == (4, 5)
    code = [cell for cell in tree["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    monkeypatch.chdir(tmp_path)
    exec("\n\n".join("".join(cell["source"]) for cell in code), {"__name__": "__main__"})  # noqa: S102 (our own)
    assert capsys.readouterr().out.strip()
