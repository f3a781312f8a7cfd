"""What the house's counts are made of: circles of imports, and look-alike stretches."""

from pathlib import Path

from bench.house import code_lines, floors, stretch
from tests.source_tree import circles, room_imports

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


def test_rooms_that_import_each_other_by_way_of_a_third_are_one_circle() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []


def test_floors_are_the_rooms_of_the_longest_way_down() -> None:
    imports: dict[str, set[str]] = {"top": {"middle", "file"}, "middle": {"file"}, "file": {"low"}, "low": set()}
    assert floors(imports, {"top", "middle", "low"}) == 3


def test_the_rooms_of_the_package_import_something() -> None:
    imports = room_imports("")
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
