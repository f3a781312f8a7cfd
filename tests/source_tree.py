"""Source tree: the project's Python files and what they import. For test_architecture and its neighbours."""

import ast
import gc
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "coseek"


def sources(*folders: str) -> list[Path]:
    """Every Python file below these folders of the project, sorted."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, read once; nobody may change it."""
    # A million nodes that stay: looking through them for garbage, now and later, takes longer than parsing.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(parsed(path)))


def imported_modules(path: Path) -> set[str]:
    """The dotted names a file imports, wherever in the file it does so; a name imported from a module follows it."""
    modules: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}, line {node.lineno}: write the whole name of what is imported"
            modules.update(f"{node.module or ''}.{alias.name}" for alias in node.names)
    return modules


def imported_packages(path: Path) -> set[str]:
    """The packages of coseek a file imports."""
    return {module.split(".")[1] for module in imported_modules(path) if module.startswith("coseek.")}
