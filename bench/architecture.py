"""Counts that say how well the source tree is kept, each beside its bar. Exit 1 when one is over its bar.

    python -m bench.architecture                 the counts
    python -m bench.architecture --stretches     and every look-alike stretch

A look-alike stretch is a maximal run of at least six code lines that two places share once names, numbers and strings
are replaced by placeholders, with at least four different lines among them. Imports, comments and docstrings are not
code lines. Each pair of places counts once.

The second count is of logic written twice: lines that declare keep their names and values there, so that they count
where they were copied and not where two lists merely have fields of the same types. Those are the fields of a class,
parameters on lines of their own, and the rows of a list, tuple, set or dict that is written over several lines.
"""

import argparse
import ast
import io
import keyword
import token
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.source_tree import PACKAGE, ROOT, cycles, imported_packages, nodes, package_imports, sources
from tests.test_architecture import LAYERS, NEIGHBOURS

MOST_REPEATS = 35
"""Half of the 70 that this rule counts in the tree before the architecture was redrawn (commit 8ba5a95)."""
TEMPLATES = PACKAGE / "cli" / "parts"
"""Files that `coseek new` copies for users: text of the package, and no code of it."""
SHORTEST, LEAST_SHAPES = 6, 4
"""Lines of a look-alike stretch, and different lines among them."""
LAYOUT = (token.NEWLINE, tokenize.NL, token.INDENT, token.DEDENT, tokenize.COMMENT, token.ENDMARKER, token.ENCODING)


@dataclass(frozen=True)
class Count:
    """A number and its bar; `None` is no bar."""

    name: str
    value: int
    bar: int | None
    found: tuple[str, ...] = ()
    """What was counted, where it is worth reading."""

    @property
    def is_over(self) -> bool:
        return self.bar is not None and self.value > self.bar


@dataclass(frozen=True)
class Line:
    """A code line: its number in the file, and its tokens with placeholders for names, numbers and strings."""

    number: int
    shape: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretches", action="store_true", help="print every look-alike stretch")
    args = parser.parse_args(arguments)
    counts = list(all_counts())
    for count in counts:
        bar = "" if count.bar is None else f"  (bar {count.bar}{', OVER' if count.is_over else ''})"
        print(f"{count.value:>8,}  {count.name}{bar}")
        for line in count.found if count.is_over or args.stretches else ():
            print(f"          {line}")
    return int(any(count.is_over for count in counts))


def all_counts() -> Iterator[Count]:
    yield from structure()
    yield Count("words in docs", sum(words(path) for path in (ROOT / "docs").rglob("*.md")), None)
    yield Count("words in README.md", words(ROOT / "README.md"), 800)
    code = [path for path in sources("src", "tests", "bench") if not path.is_relative_to(TEMPLATES)]
    yield Count("look-alike stretches of six lines or more in src, tests, bench", len(look_alikes(code)), None)
    repeats = tuple(look_alikes(code, declared=True))
    yield Count("of logic: lines that declare compared to the letter", len(repeats), MOST_REPEATS, repeats)
    yield Count("lines of src/coseek", sum(len(lines_of(path)) for path in sources("src/coseek")), None)


def structure() -> Iterator[Count]:
    """Count what no change may bring back: classes of one name, imports upward, cycles."""
    twice = classes_twice()
    yield Count("class names that stand twice in src", len(twice), 0, tuple(twice))
    upward = upward_imports()
    yield Count("imports upward or beside", len(upward), 0, tuple(upward))
    for folder in ("", "training", "pipelines"):
        found = cycles(package_imports(folder))
        name = f"cycles inside {folder}" if folder else "cycles between packages"
        yield Count(name, len(found), 0, tuple(" ⇄ ".join(group) for group in found))
    packages = {path.parent.name for path in (PACKAGE / "training").glob("*/*.py")}
    yield Count("packages of training", len(packages), 5, tuple(sorted(packages)))
    yield Count("layers of training", layers(package_imports("training"), packages), 3)


def words(page: Path) -> int:
    """As `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


@cache
def lines_of(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8").splitlines())


def classes_twice() -> list[str]:
    """Names of classes, wherever they stand in a file, that more than one class has."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sources("src/coseek"):
        for node in () if path.is_relative_to(TEMPLATES) else nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def upward_imports() -> list[str]:
    """Imports of packages on the same or a higher layer, but for the exceptions with a reason."""
    found = []
    for path in sources("src/coseek"):
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in sorted(imported_packages(path)) if package in LAYERS else ():
            above = other in LAYERS and other != package and LAYERS[other] >= LAYERS[package]
            if above and (package, other) not in NEIGHBOURS:
                found.append(f"{path.relative_to(ROOT)} imports {other}")
    return found


def layers(imports: Mapping[str, Set[str]], packages: Set[str]) -> int:
    """Packages on the longest way down from one of them to another. Single files are no layers; on a cycle, all."""
    if cycles(imports):
        return len(packages)

    @cache
    def depth(package: str) -> int:
        return (package in packages) + max((depth(other) for other in imports[package]), default=0)

    return max(map(depth, imports), default=0)


def look_alikes(paths: Sequence[Path], declared: bool = False) -> list[str]:
    """Each maximal look-alike stretch of each pair of places, as a line of text; `declared` as for `code_lines`."""
    files = {path: code_lines(path, declared) for path in paths}
    windows: defaultdict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path, lines in files.items():
        for start in range(len(lines) - SHORTEST + 1):
            windows[tuple(line.shape for line in lines[start : start + SHORTEST])].append((path, start))
    found = []
    for places in windows.values():
        for place, (one, at) in enumerate(places):
            for other, there in places[place + 1 :]:
                length = stretch(files[one], at, files[other], there, one == other)
                if length:
                    a, b = files[one][at].number, files[other][there].number
                    found.append(f"{one.relative_to(ROOT)}:{a} = {other.relative_to(ROOT)}:{b}, {length} lines")
    return sorted(found)


def stretch(one: Sequence[Line], at: int, other: Sequence[Line], there: int, same: bool) -> int:
    """Lines of the maximal stretch that begins at these places; 0 where it begins sooner, overlaps or is monotonous."""
    if at and there and one[at - 1].shape == other[there - 1].shape:
        return 0
    length = 0
    while at + length < len(one) and there + length < len(other):
        if one[at + length].shape != other[there + length].shape or (same and at + length >= there):
            break
        length += 1
    shapes = {line.shape for line in one[at : at + length]}
    return length if length >= SHORTEST and len(shapes) >= LEAST_SHAPES else 0


def code_lines(path: Path, declared: bool = False) -> list[Line]:
    """The code lines of a file; a string of several lines belongs to the line where it begins.

    With `declared`, lines that declare keep their names and values.
    """
    text = "\n".join(lines_of(path)) + "\n"
    left_out = {number for node in nodes(path) for number in not_code(node)}
    kept = {number for node in nodes(path) for number in declaring(node)} if declared else set()
    shapes: defaultdict[int, list[str]] = defaultdict(list)
    for part in tokenize.generate_tokens(io.StringIO(text).readline):
        if part.type not in LAYOUT and (number := part.start[0]) not in left_out:
            shapes[number].append(part.string if number in kept else placeholder(part))
    return [Line(number, " ".join(parts)) for number, parts in sorted(shapes.items())]


def not_code(node: ast.AST) -> range:
    """The lines of an import, or of a string that is a statement (a docstring)."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Expr) and is_text):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


def declaring(node: ast.AST) -> Iterator[int]:
    """The lines of a class's fields, of parameters below their `def`, and of rows of a display over several lines."""
    parts: Sequence[ast.AST | None] = ()
    if isinstance(node, ast.ClassDef):
        parts = [line for line in node.body if isinstance(line, ast.AnnAssign | ast.Assign)]
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        named = node.args
        parts = [*named.posonlyargs, *named.args, *named.kwonlyargs, *named.defaults, *named.kw_defaults]
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = [*node.keys, *node.values]
    for part in parts:
        if isinstance(part, ast.stmt):
            yield from range(part.lineno, (part.end_lineno or part.lineno) + 1)
        elif isinstance(part, ast.expr | ast.arg) and isinstance(node, ast.expr | ast.stmt):
            yield from range(max(part.lineno, node.lineno + 1), (part.end_lineno or part.lineno) + 1)


def placeholder(part: tokenize.TokenInfo) -> str:
    if part.type == token.NAME:
        return part.string if keyword.iskeyword(part.string) else "N"
    return {token.NUMBER: "0", token.STRING: "S"}.get(part.type, part.string)


if __name__ == "__main__":
    raise SystemExit(main())
