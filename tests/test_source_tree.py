"""What the counts of the source tree are made of: cycles of imports, and look-alike stretches."""

import re
from pathlib import Path

import pytest
from bench.architecture import code_lines, layers, stretch
from tests.source_tree import cycles, package_imports

ONE = """
def mean(values):
    total = 0.0
    for value in values:
        total += value
    if not values:
        return 0.0
    return total / len(values)
"""
OTHER = '''
def middle(numbers):
    """Another docstring."""
    # A comment is no code line.
    total_of_all = 1.5
    for number in numbers:
        total_of_all += number

    if not numbers:
        return 2.0
    return total_of_all / len(numbers)
'''


def test_packages_that_import_each_other_by_way_of_a_third_are_one_cycle() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_layers_are_the_packages_of_the_longest_way_down() -> None:
    imports: dict[str, set[str]] = {"top": {"middle", "file"}, "middle": {"file"}, "file": {"low"}, "low": set()}
    assert layers(imports, {"top", "middle", "low"}) == 3


def test_the_packages_of_coseek_import_something() -> None:
    imports = package_imports("")
    assert "core" in imports["data"] and "cli" not in imports["core"]


def test_a_copy_with_other_names_numbers_and_comments_is_found(tmp_path: Path) -> None:
    for name, text in (("one.py", ONE), ("other.py", OTHER)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    one, other = code_lines(tmp_path / "one.py"), code_lines(tmp_path / "other.py")
    assert [line.shape for line in one] == [line.shape for line in other]
    assert stretch(one, 0, other, 0, same=False) == 7


def test_what_begins_sooner_or_repeats_one_line_is_no_stretch(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE, encoding="utf-8")
    (tmp_path / "rows.py").write_text("a = 1\n" * 20, encoding="utf-8")
    one, rows = code_lines(tmp_path / "one.py"), code_lines(tmp_path / "rows.py")
    assert stretch(one, 1, one, 1, same=False) == 0
    assert stretch(rows, 0, rows, 10, same=True) == 0


FIELDS = """
class Limits:
    turns: int = 4
    passages: int = 3
    query: str = "q"
    share: float = 0.5
    names: tuple[str, ...] = ()
    cache: Path | None = None
    strict: bool = False
"""
ROWS = """
CASES = [
    ("a", 1),
    ("b", [2]),
    ("c", f(3)),
    {"d": 4},
    ("e", 5, 6),
    "g",
    ("h", x + 7),
]
"""
PARAMETERS = """
def search(
    queries: Sequence[str],
    k: int,
    depth: int = 10,
    cache: Path | None = None,
    model: str = "base",
    share: float = 0.5,
    strict: bool = False,
) -> None: ...
"""


def shared(one: str, other: str, folder: Path) -> int:
    """Lines of the repeat that begins at the top of both texts, or below their first lines."""
    folder.mkdir()
    for name, text in (("one.py", one), ("other.py", other)):
        (folder / name).write_text(text, encoding="utf-8")
    first, second = (code_lines(folder / name, declared=True) for name in ("one.py", "other.py"))
    return max(stretch(first, at, second, at, same=False) for at in range(2))


def test_logic_that_was_copied_under_other_names_counts_where_declarations_are_compared(tmp_path: Path) -> None:
    assert shared(ONE, OTHER, tmp_path / "logic") == 7


@pytest.mark.parametrize("text", [FIELDS, ROWS, PARAMETERS])
def test_declarations_count_where_they_were_copied_and_not_where_they_have_the_same_form(
    text: str, tmp_path: Path
) -> None:
    renamed = re.sub(r'^(    \W*"?)(?=\w)', r"\1other_", text, flags=re.MULTILINE)
    assert renamed.count("other_") == 7
    assert shared(text, text, tmp_path / "copied") >= 7
    assert shared(text, renamed, tmp_path / "renamed") == 0
