"""Source tree: the project's Python files and what they import. For test_architecture and its neighbours."""

import ast
import gc
from collections.abc import Mapping, Set
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


def imported_names(path: Path) -> dict[str, str]:
    """Name in a file → the dotted name that it stands for there."""
    known: dict[str, str] = {}
    for node in nodes(path):
        if isinstance(node, ast.Import):
            known |= {one.asname: one.name for one in node.names if one.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {(one.asname or one.name): f"{node.module}.{one.name}" for one in node.names}
    return known


def dotted(node: ast.AST, known: Mapping[str, str]) -> str:
    """`np.lib.load` as `numpy.lib.load`, by the `imported_names` of the file; empty for what is no name."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (before := dotted(node.value, known)):
        return f"{before}.{node.attr}"
    return ""


def imported_packages(path: Path) -> set[str]:
    """The packages of coseek a file imports."""
    return {module.split(".")[1] for module in imported_modules(path) if module.startswith("coseek.")}


def package_imports() -> dict[str, set[str]]:
    """Package → other packages that it imports."""
    found: dict[str, set[str]] = {}
    for path in sources("src/coseek"):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        found.setdefault(package, set()).update(imported_packages(path) - {package})
    return {package: others & found.keys() for package, others in found.items()}


def cycles(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of packages that import each other, directly or by way of others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for other in imports[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        return seen

    below = {package: reached(package) for package in imports}
    on_cycle = [package for package in imports if package in below[package]]
    groups = {frozenset(other for other in below[package] if package in below[other]) for package in on_cycle}
    return sorted(sorted(group) for group in groups)
