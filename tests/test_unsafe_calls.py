"""No file that coseek reads can run code: no pickles, no evaluated text, no YAML with Python objects, no shell."""

import ast
from collections.abc import Iterator
from pathlib import Path

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
