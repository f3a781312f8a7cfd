"""What is installed, here and in the container: pinned by digest, with a Python that we are tested with."""

import re
import tomllib
from collections.abc import Iterator

from tests.source_tree import ROOT

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
APART = {"torch"}
"""Installed before the lock, from the index with the right build."""


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


# --- the container


DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_its_python_is_one_that_we_are_tested_with() -> None:
    (version,) = re.findall(r"^FROM python:(3\.\d+)-", DOCKERFILE, flags=re.MULTILINE)
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_nothing_that_git_leaves_out_is_copied_into_it() -> None:
    def names(file: str) -> set[str]:
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        return {line.strip("/").removeprefix("**/") for line in lines if line and not line.startswith("#")}

    assert names(".gitignore") <= names(".dockerignore")
    copied = {"pyproject.toml", "constraints.txt", "Makefile", "README.md", "LICENSE", "src", "docs", "bench", "tests"}
    assert not copied & names(".dockerignore")
