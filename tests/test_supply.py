"""What is installed: every library of development is pinned by digest, in the version of the constraints."""

import re
import tomllib
from collections.abc import Iterator

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
