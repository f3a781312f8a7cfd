"""What is installed and released: pinned by digest, the same from one commit, and listed with its licence."""

import re
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.licences import table
from bench.release import differences
from bench.vulnerabilities import Advisory, named
from tests.source_tree import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APART = {"torch"}
"""Installed before the lock, from where the right build of it is."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return {canonical(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def required(*extras: str) -> Iterator[str]:
    """The libraries that the package with these extras names."""
    rows = [*PROJECT["dependencies"], *(row for extra in extras for row in PROJECT["optional-dependencies"][extra])]
    for row in rows:
        name, more = re.match(r"([\w.-]+)(?:\[([\w,-]+)\])?", row).groups()  # type: ignore[union-attr]
        if name == PROJECT["name"]:
            yield from required(*more.split(","))
        else:
            yield canonical(name)


def test_the_lock_holds_every_library_of_development_in_the_version_of_the_constraints() -> None:
    locked, constrained = pins(LOCK), pins((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    assert {*required("all", "dev")} - locked.keys() == APART
    assert {name: version for name, version in locked.items() if constrained.get(name, version) != version} == {}


def test_every_pin_of_the_lock_has_digests_and_no_file_of_pins_names_a_registry() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) == len(pins(LOCK)) > 100
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries)
    for name in ("requirements.lock", "constraints.txt", "pyproject.toml", "Makefile"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8"), name


def wheel(path: Path, text: str, year: int = 2026) -> Path:
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(zipfile.ZipInfo("same.py", (2026, 1, 1, 0, 0, 0)), "x = 1\n")
        file.writestr(zipfile.ZipInfo("one.py", (year, 1, 1, 0, 0, 0)), text)
    return path


@pytest.mark.parametrize(("text", "year", "differs"), [("1", 2026, False), ("2", 2026, True), ("1", 2025, True)])
def test_a_wheel_that_differs_in_a_byte_or_a_time_is_told_with_its_member(
    tmp_path: Path, text: str, year: int, differs: bool
) -> None:
    one, other = wheel(tmp_path / "one" / "a.whl", "1"), wheel(tmp_path / "other" / "a.whl", text, year)
    found = differences({"a.whl": one}, {"a.whl": other})
    assert found == (["a.whl differs in one.py"] if differs else [])
    assert differences({"a.whl": one}, {}) == ["one build has ['a.whl'], the other []"]


def test_licences_are_listed_whichever_way_a_package_names_them() -> None:
    components: list[object] = [
        {"name": "b", "version": "2", "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        {"name": "A", "version": "1", "licenses": [{"license": {"name": "License :: OSI Approved :: BSD License"}}]},
        {"name": "c", "version": "3"},
        {
            "name": "d",
            "version": "4",
            "licenses": [{"license": {"id": "ISC"}}, {"license": {"name": "a|b\nlong text"}}],
        },
    ]
    assert table({"components": components})[2:] == [
        "| A | 1 | BSD License |",
        "| b | 2 | MIT OR Apache-2.0 |",
        "| c | 3 | unknown |",
        "| d | 4 | ISC · a\\|b |",
    ]
    with pytest.raises(SystemExit, match="no component"):
        table({"components": []})


def test_a_pin_that_an_advisory_names_is_found_and_a_later_version_is_not() -> None:
    known = {"jinja2": [Advisory(id="1", cve="CVE-2019-10906", advisory="a way out of the sandbox", specs=["<2.10.1"])]}
    assert [pin for pin, _ in named({"jinja2": "2.10", "rich": "1"}, known)] == ["jinja2 2.10"]
    assert not list(named(pins(LOCK), known))
