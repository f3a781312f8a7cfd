"""No file that coseek reads can run code: no pickles, no evaluated text, no YAML with Python objects, no shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.source_tree import PACKAGE, dotted, imported_names, nodes

MODULES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "commands"}
"""Modules that run code when they read, or run a shell."""
NAMES = {"eval", "exec", "compile", "__import__"}
CALLS = {"os.system", "os.popen", "builtins.eval", "builtins.exec", "pandas.read_pickle"}
SAFE_YAML = {
    *("safe_load", "safe_dump", "SafeLoader", "YAMLError", "MarkedYAMLError"),
    *("Node", "ScalarNode", "SequenceNode", "MappingNode"),
}
OFF = {"allow_pickle", "shell"}
"""Keywords that must be `False` where they stand."""


def unsafe(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what) of everything in a file that could run what it reads."""
    known = imported_names(path)
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, one.name) for one in node.names if one.name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in MODULES:
            yield node.lineno, node.module
    for node in nodes(path):
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, known)
            module, _, last = name.rpartition(".")
            if name in NAMES | CALLS or (module == "yaml" and last not in SAFE_YAML):
                yield node.lineno, name
        if isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in unsafe_call(node, dotted(node.func, known)))


def unsafe_call(call: ast.Call, name: str) -> Iterator[str]:
    """What is wrong with the arguments of a call."""
    given = {one.arg: one.value for one in call.keywords if one.arg}
    if name == "torch.load" and not is_constant(given.get("weights_only"), True):
        yield "torch.load without weights_only=True"
    yield from (f"{name} with {keyword}" for keyword in OFF & given.keys() if not is_constant(given[keyword], False))
    if is_constant(given.get("trust_remote_code"), True):  # anything else is a setting of the user
        yield f"{name} with trust_remote_code=True"


def is_constant(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_nothing_that_is_read_can_run_code() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}, line {line}: {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, what in unsafe(path)
    }
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib as j",
        "eval('1')",
        "run = exec",
        "import builtins\nbuiltins.eval('1')",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x', weights_only=False)",
        "from torch import load\nload('x')",
        "import torch\nsafe = 0\ntorch.load('x', weights_only=safe)",
        "import yaml\nyaml.load('x', yaml.Loader)",
        "from yaml import unsafe_load\nunsafe_load('x')",
        "import yaml\nread = yaml.full_load",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "import subprocess\nsubprocess.run('x', shell=True)",
        "import os\nos.system('x')",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
    ],
)
def test_each_way_to_run_code_is_noticed(source: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    assert list(unsafe(tmp_path / "one.py"))


@pytest.mark.parametrize(
    "source",
    [
        "# eval, pickle and torch.load in a comment",
        '"""exec and yaml.load in a docstring"""',
        "model.eval()",
        "import torch\ntorch.load('x', weights_only=True)",
        "import yaml\nyaml.safe_load('x')",
        "import numpy as np\nnp.load('x', allow_pickle=False)",
        "import re\nre.compile('x')",
        "def load(trust):\n    AutoModel.from_pretrained('x', trust_remote_code=trust)",
    ],
)
def test_what_is_harmless_passes(source: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(source, encoding="utf-8")
    assert not list(unsafe(tmp_path / "one.py"))
