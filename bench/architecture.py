"""Sizes of the tree and faults of its structure, each beside its bar. Exit 1 when a number misses its bar.

    python -m bench.architecture                 the counts
    python -m bench.architecture --stretches     and everything that was counted: modules, look-alike stretches

A *code line* is neither blank nor a comment nor part of a docstring.

A look-alike stretch is a maximal run of at least six code lines that two places share once names, numbers and strings
are replaced by placeholders, with at least four different lines among them. Imports do not count. Lines that declare
keep their names and values, so that they count where they were copied and not where two lists merely have fields of the
same types: the fields of a class, parameters on lines of their own, and the rows of a list, tuple, set or dict that is
written over several lines. Each pair of places counts once.
"""

import argparse
import ast
import io
import keyword
import statistics
import subprocess
import sys
import tempfile
import token
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "coseek"
TEMPLATES = PACKAGE / "cli" / "parts"
"""Files that `coseek new` copies for users: text of the package, and no code of it."""
SHORTEST, LEAST_SHAPES = 6, 4
"""Lines of a look-alike stretch, and different lines among them."""
LAYOUT = {
    token.NEWLINE, tokenize.NL, token.INDENT, token.DEDENT, tokenize.COMMENT, token.ENDMARKER, token.ENCODING
}  # fmt: skip
MAKE = """
from coseek.cli.main import main
assert main(["world", "make", "world", "--size", "tiny"]) == 0
assert main(["index", "world", "--out", "bm25"]) == 0
"""
RUN = """
import sys
from coseek.cli.main import main
run = ["run", "world", "--split", "test", "--agent", "rules", "--retriever", "bm25", "--out", "run", "count=2"]
assert main(run) == 0
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "coseek"))
"""


@dataclass(frozen=True)
class Count:
    """A number and its bars; `None` is no bar."""

    name: str
    value: int
    most: int | None = None
    least: int | None = None
    found: tuple[str, ...] = ()
    """What was counted, where it is worth reading."""

    @property
    def misses(self) -> bool:
        over = self.most is not None and self.value > self.most
        return over or (self.least is not None and self.value < self.least)

    @property
    def line(self) -> str:
        bars = [f"{sign} {bar:,}" for sign, bar in (("≥", self.least), ("≤", self.most)) if bar is not None]
        bar = f"  (bar {' and '.join(bars)}{', MISSED' if self.misses else ''})" if bars else ""
        return f"{self.value:>8,}  {self.name}{bar}"


@dataclass(frozen=True)
class Line:
    """A code line: its number in the file, and its tokens with placeholders for names, numbers and strings."""

    number: int
    shape: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stretches", action="store_true", help="print everything that was counted")
    args = parser.parse_args(arguments)
    missed = False
    for count in all_counts():
        missed |= count.misses
        print(count.line, flush=True)
        for line in count.found if args.stretches else ():
            print(f"          {line}")
    return int(missed)


def all_counts() -> Iterator[Count]:
    package = sources("src")
    outside = [path for path in package if not path.is_relative_to(PACKAGE / "lab")]
    yield Count("code lines of src", size_of(package), 36_000)
    yield Count("code lines of src outside lab", size_of(outside), 29_000)
    yield Count("code lines of tests", size_of(sources("tests")), 29_000)
    yield Count("code lines of bench", size_of(sources("bench")), 4_500)
    yield Count("files of src", len(package), 340)
    median = round(statistics.median(len(lines_of(path)) for path in package))
    yield Count("lines of the median file of src", median, 200, 100)
    modules = loaded()
    yield Count("modules that `coseek run` loads with BM25 and rules", len(modules), 90, found=tuple(modules))
    results = [*(ROOT / "bench" / "results").glob("*.md"), *(ROOT / "docs" / "papers").glob("*.md")]
    written = [path for path in (ROOT / "docs").rglob("*.md") if path not in results]
    yield Count("words of docs", sum(map(words, written)), 22_000)
    yield Count("words of results, docs/papers among them", sum(map(words, results)), 15_000)
    yield Count("words of README.md", words(ROOT / "README.md"), 800)
    twice = classes_twice()
    yield Count("class names that stand twice in src", len(twice), 0, found=tuple(twice))
    circles = cycles(package_imports())
    yield Count("cycles between packages", len(circles), 0, found=tuple(" ⇄ ".join(group) for group in circles))
    code = [path for path in sources("src", "tests", "bench") if not path.is_relative_to(TEMPLATES)]
    repeats = look_alikes(code)
    yield Count("look-alike stretches of logic in src, tests, bench", len(repeats), 35, found=tuple(repeats))


# --- sizes


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def size_of(paths: Iterable[Path]) -> int:
    return sum(len(numbers_of(path)) for path in paths)


def numbers_of(path: Path) -> set[int]:
    """The numbers of a file's code lines."""
    left_out = {number for node in nodes(path) if is_text(node) for number in lines_from(node)}
    parts = (part for part in tokens(path) if part.type not in LAYOUT)
    return {number for part in parts for number in range(part.start[0], part.end[0] + 1)} - left_out


def words(page: Path) -> int:
    """As `wc -w` counts them."""
    return len(page.read_text(encoding="utf-8").split())


def loaded() -> list[str]:
    """The modules of coseek that one run of the rule-based agent over BM25 loads."""
    with tempfile.TemporaryDirectory() as folder:
        for program in (MAKE, RUN):
            done = subprocess.run([sys.executable, "-c", program], cwd=folder, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode().splitlines()[-1].split()


# --- structure


@cache
def lines_of(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8").splitlines())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_bytes(), filename=str(path))))


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)


def classes_twice() -> list[str]:
    """Names of classes, wherever they stand in a file, that more than one class has."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sources("src"):
        for node in () if path.is_relative_to(TEMPLATES) else nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


def package_imports() -> dict[str, set[str]]:
    """Package → other packages of coseek that it imports; a file beside the packages is a package of its own."""
    packages = {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in sources("src")}
    imports: dict[str, set[str]] = {name: set() for name in packages.values() if not name.startswith("__")}
    for path, package in packages.items():
        for node in nodes(path) if package in imports else ():
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{one.name}" for one in node.names]
            others = {name.split(".")[1] for name in names if name.startswith("coseek.")}
            imports[package] |= others & imports.keys() - {package}
    return imports


def cycles(imports: Mapping[str, Set[str]]) -> list[list[str]]:
    """Groups of packages that import each other, directly or by way of others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = imports[todo.pop()] - seen
            seen |= new
            todo += new
        return seen

    below = {package: reached(package) for package in imports}
    groups = {
        frozenset(other for other in below[package] if package in below[other])
        for package in imports
        if package in below[package]
    }
    return sorted(sorted(group) for group in groups)


# --- look-alikes


def look_alikes(paths: Sequence[Path]) -> list[str]:
    """Each maximal look-alike stretch of each pair of places, as a line of text."""
    files = {path: code_lines(path) for path in paths}
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


def code_lines(path: Path) -> list[Line]:
    """The code lines of a file without imports; a string of several lines belongs to the line where it begins."""
    left_out = {number for node in nodes(path) if is_import(node) or is_text(node) for number in lines_from(node)}
    kept = {number for node in nodes(path) for number in declaring(node)}
    shapes: defaultdict[int, list[str]] = defaultdict(list)
    for part in tokens(path):
        if part.type not in LAYOUT and (number := part.start[0]) not in left_out:
            shapes[number].append(part.string if number in kept else placeholder(part))
    return [Line(number, " ".join(parts)) for number, parts in sorted(shapes.items())]


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_text(node: ast.AST) -> bool:
    """Whether a node is a string that is a statement: a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def lines_from(node: ast.AST) -> range:
    assert isinstance(node, ast.stmt)
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


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
