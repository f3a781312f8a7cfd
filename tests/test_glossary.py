"""The glossary: its names are the code's names, and words that were given up stand nowhere in the code."""

import ast
import re

from tests.source_tree import PACKAGE, ROOT, nodes, sources

ROWS = re.findall(
    r"^\| ([^|]+?) \| ([^|]+?) \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), flags=re.MULTILINE
)
WORDS = ROWS[1:]
"""(word with its names, meaning), without the head."""


def words_of(text: str) -> set[str]:
    return set(text.split())


GIVEN_UP = words_of(
    """
    answering asides beginning complaint complaints feeding making wording wordings writers
    """
)
"""Words of an older dialect that are part of no identifier."""
NO_CLASS = words_of(
    """
    aside board course door frozen health journal lesson lessons past said sheet sick tally told watching
    writing
    """
)
"""Words of it that still name a local variable here and there, and no class or module."""
STANDARD = {"Frozen", "PastTurn", "TensorBoardTracker"}
"""Classes whose name has such a word in its ordinary sense."""


def names(word: str) -> list[str]:
    return re.findall(r"`([A-Za-z_]\w*)`", word)


def plain(word: str) -> str:
    return re.sub(r"\s*`[^`]*`", "", word).lower()


def classes() -> set[str]:
    found = (node for path in sources("src/coseek") for node in nodes(path))
    return {node.name for node in found if isinstance(node, ast.ClassDef)}


def modules() -> set[str]:
    """The names of files and folders."""
    return {part.removesuffix(".py") for path in sources("src/coseek") for part in path.relative_to(PACKAGE).parts}


def identifiers() -> set[str]:
    """Every name that the code defines: classes, functions, arguments and variables, modules and folders."""
    found = classes() | modules()
    for path in sources("src/coseek"):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return found


def parts(name: str) -> set[str]:
    """The words that an identifier is put together from."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", name)}


def test_words_are_sorted_and_each_stands_once() -> None:
    words = [plain(word) for word, _ in WORDS]
    assert words == sorted(set(words))


def test_every_class_of_the_glossary_exists() -> None:
    wanted = {name for row in WORDS for cell in row for name in names(cell) if name[0].isupper()}
    assert wanted and wanted - classes() == set()


def test_words_that_were_given_up_name_nothing_in_the_code() -> None:
    assert sorted(name for name in identifiers() if parts(name) & GIVEN_UP) == []
    named = classes() | modules()
    assert sorted(name for name in named - STANDARD if parts(name) & NO_CLASS) == []
